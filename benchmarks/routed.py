"""Server CPU per streamed request: placed by the Router against placed by the gateway itself, in one run.

    direct    gateway, least_load -> prefill -> decode
    routed    the same with profile `slo`: gateway <-> Router, which judges every replica by predictions;
              the LatencyTrainer learns meanwhile

Streams, rounds and what is counted are those of `benchmarks.gateway`; Router and LatencyTrainer count too,
with what they do when idle. Both have one replica of each role and generous SLOs, so that nothing is held or
shed.
"""

import statistics
from pathlib import Path
from typing import Any

from benchmarks.gateway import SETTINGS, Route, cluster, free_port, ratios
from headway.config import HeadwayConfig

SLO = {"ttft_ms": 60_000, "itl_ms": 2_000}


def main(data: Path | None) -> int:
    """Print both figures of each round and their ratio."""
    del data  # needs none
    with cluster():
        from ray import serve

        serve.start(http_options={"host": "127.0.0.1", "port": free_port()})
        found = ratios(
            deploy("direct", "least_load"), deploy("routed", "slo", "ray::Router", "ray::LatencyTrainer")
        )
    print(f"ratio {statistics.median(found):.3f} ({found[0]:.3f} to {found[-1]:.3f})")
    return 0


def deploy(name: str, profile: str, *actors: str) -> Route:
    """An application of this profile, of a model of its own; `actors` serve its requests too."""
    from ray import serve

    from serve_apps.builders import application

    settings: dict[str, Any] = {**SETTINGS, "model": name, "slo": SLO, "routing": {"profile": profile}}
    app = application(HeadwayConfig.model_validate(settings), control_plane=False)
    (address,) = serve.run(app, name=name, route_prefix=f"/{name}").addresses.remote().result()
    replicas = (f"ServeReplica:{name}:{deployment}" for deployment in ("Gateway", "Prefill", "Decode"))
    return Route(name=name, url=f"{address}/v1/completions", model=name, titles=(*replicas, *actors))
