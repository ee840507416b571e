"""The hosts of the cluster: where named actors are placed, what only one host can reach, and what is free.

The named actors go to the head, softly: Serve's controller and the GCS, without which they can do little, are
there, and no other host's loss touches them. Without room on the head, or without that head, Ray puts them
elsewhere, where they work as well.
"""

from collections.abc import Mapping, Sequence
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from actors import compat_ray
from headway.config import HeadwayConfig
from headway.planning.placement import GPU, Node

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


Look = tuple[Sequence[Node], Mapping[str, str]]
"""The nodes with GPUs, and by replica the node of its placement group, "" while that waits for room."""
NO_NODES: Look = (), {}


def nodes_and_groups() -> Look:
    """As Ray has them; nothing where this process has none. Blocks while it asks the GCS."""
    import ray
    from ray.util import placement_group_table

    if not ray.is_initialized():
        return NO_NODES
    free, nodes = compat_ray.free_by_node(), [node for node in alive_nodes() if GPU in node["Resources"]]
    found = [
        Node(name=name, has=has, free=free.get(name, {}), head=HEAD_RESOURCE in has)
        for name, has in ((node["NodeID"], node["Resources"]) for node in nodes)
    ]
    groups = (group for group in placement_group_table().values() if group["state"] != "REMOVED")
    # Serve gives a group the name of its replica.
    return found, {
        group["name"].rpartition("#")[2]: next(iter(group["bundles_to_node_id"].values()), "")
        for group in groups
    }


def alive_nodes() -> Sequence[Mapping[str, Any]]:
    """The nodes that are alive, as Ray describes them."""
    import ray

    nodes: Sequence[Mapping[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    return [node for node in nodes if node["Alive"]]
