"""Ray Serve applications: the gateway, the engines' deployments, and builders for `serve run`.

serve run serve_apps.disagg:app                        defaults
serve run serve_apps.disagg:build config=headway.yaml  settings from a file
serve run serve_apps.agg:app                           one pool of mixed replicas
"""
