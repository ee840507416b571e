"""Connectors carry decisions out: Ray Serve directly, an outside system by decision ids, or Kubernetes."""
