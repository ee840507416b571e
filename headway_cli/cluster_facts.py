"""What a Ray cluster has, asked of the cluster and of each of its nodes.

    look(config, address) -> ClusterFacts      blocks for some seconds; needs no application on the cluster

Each node is asked by a task that runs there and holds no resource. A node that does not answer within
`ASKED_WITHIN_S` is reported so. What an autoscaler may add is in the file that it was started with, on the
head, such as `ray up` writes it. KubeRay's autoscaler has none: what it may add, Ray does not know.
"""

import os
import platform
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from actors.hosts import HEAD_RESOURCE, addresses, alive_nodes
from headway.config import ConfigError, HeadwayConfig
from headway.engine.kinds import engine_kind
from headway_cli.cluster import APPLICATION, cluster, exposed

ASKED_WITHIN_S = 60.0
ROUGH = frozenset({"memory", "object_store_memory"})
"""Resources of which nodes of one group have amounts of their own."""
AUTOSCALER_FILE, AUTOSCALER_GCS = "--autoscaling-config=", "--gcs-address="
"""Arguments with which Ray starts an autoscaler, of this cluster or of another one on the same machine."""
CGROUP_LIMIT = "/sys/fs/cgroup/memory.max"


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """What an autoscaler may add: node types as (name, resources, most of it), and most workers in all."""

    types: Sequence[tuple[str, Mapping[str, float], int]]
    workers: int = sys.maxsize


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """The answers of one node. `fault` is why there are none; `engine` why no engine could start there."""

    fault: str = ""
    headway: str = ""
    python: str = ""
    engine: str = ""
    port_taken: bool = False
    memory_bytes: int = 0
    weights_bytes: int = 0
    gpu_bytes: int = 0
    growth: Growth | None = None
    """Of the node on which the autoscaler runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One host: its address, its resources in Ray, and its answers."""

    address: str
    resources: Mapping[str, float]
    head: bool = False
    said: Said = field(default_factory=Said)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A kind of node of which the autoscaler may add `more`."""

    name: str
    resources: Mapping[str, float]
    more: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFacts:
    """A cluster at one moment. `exposed`: empty, or why others may run code on it."""

    nodes: Sequence[Node]
    groups: Sequence[Group] = ()
    more: int = sys.maxsize
    """Nodes of all groups together that may be added."""
    hosts: Sequence[str] = ()
    exposed: str = ""
    headway: str = ""
    python: str = ""
    occupied: bool = False
    """True where the application is there already, which holds the gateway's port."""


def look(config: HeadwayConfig, address: str) -> ClusterFacts:
    """The facts of the cluster at `address`. CliError: it cannot be joined."""
    from actors.control_plane import live

    with cluster(address, insecure=True, warn=False):
        nodes = sorted(alive_nodes(), key=lambda node: str(node["NodeManagerAddress"]))
        said = _asked(config, nodes)
        growth = next((one.growth for one in said.values() if one.growth), Growth(types=()))
        return ClusterFacts(
            nodes=[
                Node(
                    address=str(node["NodeManagerAddress"]),
                    resources=node["Resources"],
                    head=HEAD_RESOURCE in node["Resources"],
                    said=said[node["NodeID"]],
                )
                for node in nodes
            ],
            groups=growing(growth.types, [node["Resources"] for node in nodes]),
            more=max(0, growth.workers - (len(nodes) - 1)),
            hosts=addresses(),
            exposed=exposed(),
            headway=version("headway"),
            python=platform.python_version(),
            occupied=APPLICATION in (live() or ()),
        )


def _asked(config: HeadwayConfig, nodes: Sequence[Mapping[str, Any]]) -> Mapping[str, Said]:
    import ray
    from ray.exceptions import GetTimeoutError, RayError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    # Keys stay here: no node needs them for an answer.
    settings = config.model_dump_json(exclude={"gateway": {"api_keys"}})
    ask = ray.remote(answer)
    asked = {
        node["NodeID"]: ask.options(
            num_cpus=0,
            max_retries=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False),
        ).remote(settings, ray.get_runtime_context().gcs_address)
        for node in nodes
    }
    ray.wait(list(asked.values()), num_returns=len(asked), timeout=ASKED_WITHIN_S)
    said = {}
    for node, answered in asked.items():
        try:
            said[node] = ray.get(answered, timeout=0.5)
        except GetTimeoutError:
            said[node] = Said(fault=f"no answer within {ASKED_WITHIN_S:g} s")
        except (RayError, ImportError) as error:
            said[node] = Said(fault=str(error).strip().splitlines()[-1])
    return said


def answer(settings: str, gcs_address: str) -> Said:
    """The facts of the machine on which this runs."""
    headway, python = version("headway"), platform.python_version()
    try:
        config = HeadwayConfig.model_validate_json(settings)
    except ValidationError:
        return Said(headway=headway, python=python, fault="its Headway does not know all of these settings")
    kind = engine_kind(config)
    try:
        kind.check_here(config)
        engine = ""
    except ConfigError as error:
        engine = str(error)
    return Said(
        headway=headway,
        python=python,
        engine=engine,
        port_taken=_is_taken(config.gateway.host, config.gateway.port),
        memory_bytes=_memory_bytes(),
        weights_bytes=_weights_bytes(kind.model(config)),
        gpu_bytes=_gpu_bytes(),
        growth=_growth(gcs_address),
    )


def _is_taken(host: str, port: int) -> bool:
    if port == 0:
        return False
    family, kind, protocol, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind, protocol) as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind(place)
        except OSError:
            return True
    return False


def _memory_bytes() -> int:
    """Of the machine, or of the container where that has less."""
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        with open(CGROUP_LIMIT, encoding="ascii") as file:
            return min(whole, int(file.read()))
    except (OSError, ValueError):
        return whole


def _weights_bytes(model: str | None) -> int:
    """Size of the safetensors of a model in a directory; 0 where there is none."""
    return sum(file.stat().st_size for file in Path(model).glob("*.safetensors")) if model else 0


def _gpu_bytes() -> int:
    """Memory of the smallest GPU here; 0 without one, or without NVIDIA's library."""
    try:
        import pynvml
    except ImportError:
        return 0
    try:
        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
        return min((int(pynvml.nvmlDeviceGetMemoryInfo(one).total) for one in handles), default=0)
    except pynvml.NVMLError:
        return 0


def _growth(gcs_address: str) -> Growth | None:
    """What the autoscaler of this cluster may do, if it runs on this machine; None without one."""
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = process.read_bytes().decode(errors="replace").split("\0")
            if _argument(words, AUTOSCALER_GCS).rpartition(":")[2] != gcs_address.rpartition(":")[2]:
                continue
            tree = yaml.safe_load(Path(_argument(words, AUTOSCALER_FILE)).read_bytes())
            types = [
                (name, {**kind["resources"]}, int(kind.get("max_workers", 0)))
                for name, kind in tree["available_node_types"].items()
                if name != tree.get("head_node_type")
            ]
            return Growth(types=types, workers=int(tree.get("max_workers", sys.maxsize)))
        # Processes end while they are looked at, most have no such arguments, and a file may be another's.
        except (OSError, ValueError, TypeError, KeyError, AttributeError, yaml.YAMLError):
            continue
    return None


def _argument(words: Sequence[str], name: str) -> str:
    """The value of an argument; ValueError unless it is there once."""
    (value,) = [word.removeprefix(name) for word in words if word.startswith(name)]
    return value


def growing(
    kinds: Sequence[tuple[str, Mapping[str, float], int]], here: Sequence[Mapping[str, float]]
) -> Sequence[Group]:
    """Groups (name, resources, most nodes or below 0 for any number) less the nodes that are there.

    Ray does not say of which group a node is: it is laid to the first one with these resources, memory aside.
    """
    used = [0] * len(kinds)
    for node in here:
        alike = (
            place
            for place, (_, resources, _) in enumerate(kinds)
            if all(node.get(name) == amount for name, amount in resources.items() if name not in ROUGH)
        )
        if (place := next(alike, None)) is not None:
            used[place] += 1
    groups = []
    for (name, resources, most), count in zip(kinds, used, strict=True):
        more = sys.maxsize if most < 0 else most - count
        if more > 0:
            groups.append(Group(name=name, resources=resources, more=more))
    return groups
