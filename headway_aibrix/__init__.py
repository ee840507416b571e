"""AIBrix's pull routing beside the router: replicas take requests while they have capacity for them.

    plugins     `capacity-filter`, `least-pattern-load`, and the profiles `pull` and `pull_bin_pack`
    capacity    capacity and load by Little's law
    surfaces    from a profile's latency surfaces
    profiles    from AIBrix's own GPU profiles, which `routing.gpu_profiles` may name

The router finds all of it by entry points (`headway.routing_plugins`, `headway.routing_profiles`,
`headway.gpu_profiles`), as it finds what any other package brings. Nothing imports this package.
"""
