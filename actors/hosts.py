"""The hosts of the cluster: where named actors are placed, and what only one host can reach.

The named actors go to the head, softly: Serve's controller and the GCS, without which they can do little, are
there, and no other host's loss touches them. Without room on the head, or without that head, Ray puts them
elsewhere, where they work as well.
"""

from collections.abc import Mapping, Sequence
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from headway.config import HeadwayConfig

HEAD_RESOURCE = "node:__internal_head__"
"""Ray's own mark of the head."""

LEAST_BYTES = 1
"""Ray puts actors that ask for nothing at all on a random node, whatever their affinity."""


def on_head() -> dict[str, Any]:
    """Options of an actor that prefers the head; none where the cluster shows no head."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    for node in alive_nodes():
        if HEAD_RESOURCE in node["Resources"]:
            near = NodeAffinitySchedulingStrategy(node["NodeID"], soft=True)
            return {"scheduling_strategy": near, "memory": LEAST_BYTES}
    return {}


def addresses() -> Sequence[str]:
    """The addresses of the hosts that are alive, each once."""
    return sorted({str(node["NodeManagerAddress"]) for node in alive_nodes()})


def is_loopback(host: str) -> bool:
    """True for a name or address of whichever host it is asked on."""
    if host == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def unreachable_source(config: HeadwayConfig, hosts: Sequence[str]) -> str:
    """Empty, or one line: why the collector could not read the configured address on every host."""
    host = urlsplit(config.metrics.url or "").hostname or ""
    if len(hosts) < 2 or not is_loopback(host):
        return ""
    return (
        f"metrics.url: {host} is another machine on each of this cluster's {len(hosts)} hosts, "
        "and the MetricCollector may run on any: give an address that all of them reach"
    )


def unreachable_gateway(config: HeadwayConfig, hosts: Sequence[str]) -> str:
    """Empty, or one line: why nobody could say at which host's loopback the gateway listens."""
    if len(hosts) < 2 or not config.gateway.loopback:
        return ""
    return (
        f"gateway.host: {config.gateway.host} is another machine on each of the {len(hosts)} hosts, "
        "and Ray puts the gateway on any: set gateway.host to 0.0.0.0, and keys"
    )


def alive_nodes() -> Sequence[Mapping[str, Any]]:
    """The nodes that are alive, as Ray describes them."""
    import ray

    nodes: Sequence[Mapping[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    return [node for node in nodes if node["Alive"]]
