"""Findings about a configuration on a cluster: pure, from the settings and the facts to lines.

findings(config, facts, limits) -> the lines, each a fault with what to do, or what is well
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from actors.hosts import unreachable_gateway, unreachable_source
from headway.config import HeadwayConfig, Role
from headway.engine.kinds import node_needs
from headway.planning.placement import fits, take
from headway.planning.types import PoolLimits
from headway_cli.cluster_facts import ROUGH, ClusterFacts, Node

GIGABYTE = 1e9
FITS_SHARE = 0.9
"""Of a GPU's memory at most for weights: vLLM's default of what it takes in all."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line; `ok` if nothing is to be done."""

    ok: bool
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What replicas of one role take of a node each, and how many there may be."""

    role: Role
    each: Mapping[str, float]
    gpus: int
    limits: PoolLimits


def findings(
    config: HeadwayConfig,
    facts: ClusterFacts,
    limits: Mapping[Role, PoolLimits],
    *,
    gateway_placed: bool = False,
) -> list[Finding]:
    """All findings, faults first. `gateway_placed`: a resource in the file places the gateway on a host."""
    needs = [_need(config, role, limits[role]) for role in sorted(limits)]
    found = [
        *_hosts(facts),
        *_access(config, facts, gateway_placed),
        *_engines(facts),
        *(line for need in needs for line in _places(need, facts)),
        *_room(needs, facts),
        *_budget(config, needs, facts),
        *_memory(needs, facts),
    ]
    return sorted(found, key=lambda one: one.ok)


def _need(config: HeadwayConfig, role: Role, limits: PoolLimits) -> Need:
    each = node_needs(config, role)
    return Need(role=role, each=each, gpus=int(each.get("GPU", 0)), limits=limits)


def _hosts(facts: ClusterFacts) -> Iterator[Finding]:
    for node in facts.nodes:
        if node.said.headway not in ("", facts.headway):
            yield Finding(
                False,
                f"node {node.address} has Headway {node.said.headway}, this machine {facts.headway}: "
                "install one version on all nodes",
            )
        elif node.said.fault:
            yield Finding(False, f"node {node.address}: {node.said.fault}: install Headway on every node")
        elif node.said.python.rsplit(".", 1)[0] != facts.python.rsplit(".", 1)[0]:
            yield Finding(
                False,
                f"node {node.address} has Python {node.said.python}, this machine {facts.python}: "
                "use one version",
            )
    more = min(sum(group.more for group in facts.groups), facts.more)
    adds = f", up to {more} more by the autoscaler" if more else ""
    yield Finding(True, f"{_count(len(facts.nodes), 'node')}{adds}: {_totals(facts)}")


def _access(config: HeadwayConfig, facts: ClusterFacts, gateway_placed: bool) -> Iterator[Finding]:
    if facts.exposed:
        yield Finding(
            False, f"{facts.exposed}: set RAY_AUTH_MODE=token on every node, or keep it off the network"
        )
    gateway = "" if gateway_placed else unreachable_gateway(config, facts.hosts)
    for fault in (gateway, unreachable_source(config, facts.hosts)):
        if fault:
            yield Finding(False, fault)
    taken = [node.address for node in facts.nodes if node.said.port_taken]
    if taken and not facts.occupied:
        yield Finding(
            False,
            f"gateway.port: {config.gateway.port} is taken on {', '.join(taken)}: free it, or choose another",
        )


def _engines(facts: ClusterFacts) -> Iterator[Finding]:
    """Faults of nodes on which an engine may run, one line for all nodes that share one."""
    by_fault: dict[str, list[str]] = {}
    for node in facts.nodes:
        if node.said.engine and not (node.head and len(facts.nodes) > 1):
            by_fault.setdefault(node.said.engine, []).append(node.address)
    for fault, places in by_fault.items():
        yield Finding(False, f"node {', '.join(places)}: {fault}")


def _places(need: Need, facts: ClusterFacts) -> Iterator[Finding]:
    """A fault where no node is large enough for one replica, now or later."""
    kinds = [dict(node.resources) for node in facts.nodes] + [dict(group.resources) for group in facts.groups]
    if any(fits(need.each, kind) for kind in kinds):
        return
    for name, amount in need.each.items():
        most = max((kind.get(name, 0.0) for kind in kinds), default=0.0)
        if most >= amount:
            continue
        if name == "GPU":
            what = f"a replica needs {need.gpus} GPUs on one node, but the largest node has {most:g}"
            fix = f"set pools.{need.role}.gpus_per_replica, or add larger nodes"
        elif most == 0:
            what = f"a replica needs {name}: {amount:g}, which no node has"
            pool = f"pools.{need.role}.resources"
            fix = f"declare it on the nodes (ray start --resources), or drop it from {pool}"
        else:
            what = f"a replica needs {name}: {amount:g}, but the largest node has {most:g}"
            fix = f"lower pools.{need.role}.resources, or add larger nodes"
        yield Finding(False, f"{need.role}: {what}: {fix}")
        return
    said = ", ".join(f"{name}: {amount:g}" for name, amount in need.each.items())
    yield Finding(False, f"{need.role}: no single node has all that a replica needs ({said})")


def _room(needs: Sequence[Need], facts: ClusterFacts) -> Iterator[Finding]:
    """Whether the smallest fleet finds its places, the largest replicas first."""
    free = [dict(node.resources) for node in facts.nodes]
    later = [
        dict(group.resources) for group in facts.groups for _ in range(min(group.more, facts.more, 1000))
    ]
    waits, homeless = dict[Role, int](), dict[Role, int]()
    for need in sorted(needs, key=lambda one: -one.gpus):
        for _ in range(need.limits.min_replicas):
            if not take(need.each, free):
                table = waits if take(need.each, later) else homeless
                table[need.role] = table.get(need.role, 0) + 1
    for role, count in homeless.items():
        yield Finding(
            False,
            f"{role}: no room for {count} of the {_least(needs, role)} replicas of "
            f"pools.{role}.min_replicas: lower it, or add nodes",
        )
    for role, count in waits.items():
        yield Finding(
            True, f"{role}: {count} of the first replicas will wait for the autoscaler to add nodes"
        )


def _budget(config: HeadwayConfig, needs: Sequence[Need], facts: ClusterFacts) -> Iterator[Finding]:
    """The GPUs that the plan may ask for against those that exist or may be added."""
    if not any(need.gpus for need in needs):
        return
    now = sum(node.resources.get("GPU", 0.0) for node in facts.nodes)
    ever = now + _gpus_to_come(facts)
    asked = sum(need.gpus * need.limits.max_replicas for need in needs)
    budget, key = config.planner.max_gpu_budget, "planner.max_gpu_budget"
    if budget is None or asked < budget:
        budget, key = asked, "max_replicas of the pools"
    there = f"{now:g}" + (f", and {ever:g} with what the autoscaler may add" if ever > now else "")
    if budget > ever:
        yield Finding(
            False,
            f"{key}: the plan may ask for {budget} GPUs, the cluster has {there}: "
            f"set planner.max_gpu_budget to {max(int(ever), 1)}, or add nodes",
        )
    else:
        yield Finding(True, f"{key}: the plan may ask for {budget} GPUs, the cluster has {there}")


def _gpus_to_come(facts: ClusterFacts) -> float:
    """The most GPUs that the autoscaler may add: by nodes with many of them first."""
    left, gpus = facts.more, 0.0
    for group in sorted(facts.groups, key=lambda one: -one.resources.get("GPU", 0.0)):
        added = min(group.more, left)
        left, gpus = left - added, gpus + added * group.resources.get("GPU", 0.0)
    return gpus


def _memory(needs: Sequence[Need], facts: ClusterFacts) -> Iterator[Finding]:
    """Weights that no memory of the node holds."""
    for need in needs:
        small = [node for node in facts.nodes if fits(need.each, node.resources) and _too_small(need, node)]
        if small:
            said = small[0].said
            has = f"{(said.gpu_bytes if need.gpus else said.memory_bytes) / GIGABYTE:.0f} GB"
            on = _count(need.gpus, "GPU") if need.gpus else "CPUs"
            yield Finding(
                False,
                f"{need.role}: the weights take {said.weights_bytes / GIGABYTE:.1f} GB on {on}, and node "
                f"{', '.join(node.address for node in small)} has {has}{' a GPU' if need.gpus else ''}: "
                "use more GPUs a replica, or larger nodes",
            )


def _too_small(need: Need, node: Node) -> bool:
    said = node.said
    holds = need.gpus * said.gpu_bytes if need.gpus else said.memory_bytes
    return bool(holds) and said.weights_bytes > holds * FITS_SHARE


def _least(needs: Sequence[Need], role: Role) -> int:
    return next(need.limits.min_replicas for need in needs if need.role == role)


def _totals(facts: ClusterFacts) -> str:
    totals: dict[str, float] = {}
    for node in facts.nodes:
        for name, amount in node.resources.items():
            if ":" not in name and name not in ROUGH:
                totals[name] = totals.get(name, 0.0) + amount
    return ", ".join(f"{amount:g} {name}" for name, amount in sorted(totals.items()))


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
