"""Planners on one budget whose replicas need room on a node, in virtual time."""

import asyncio
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import Any

from actors.connectors.protocol import Action, PoolsSnapshot
from actors.hosts import Look
from actors.planning.common_budget import CommonBudget
from headway.planning import Role
from headway.planning.placement import GPU, Node
from tests.actors.planner_cases import (
    INTERVAL_S,
    Deployment,
    Script,
    ScriptedActors,
    ScriptedPools,
    busy,
    settings,
)
from tests.engines.virtual_loop import on_virtual_time

CALM, FLOOD = 20.0, 3000.0
"""Requests an interval that one replica serves, and that need more than there may be."""
GROUP = 4


@dataclass
class Nodes:
    """GPUs by node, and where replicas are: by deployment, the oldest first, as (replica, node, GPUs)."""

    gpus: dict[str, int]
    at: dict[str, list[tuple[str, str, int]]] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=itertools.count)
    newest_first: bool = False
    """Serve stops otherwise than is known of it."""

    def free(self) -> dict[str, int]:
        taken = Counter[str]()
        for _, node, size in itertools.chain(*self.at.values()):
            taken[node] += size
        return {node: gpus - taken[node] for node, gpus in self.gpus.items()}

    def look(self) -> Look:
        free, every = self.free(), itertools.chain(*self.at.values())
        nodes = [
            Node(name=node, has={GPU: float(gpus)}, free={GPU: float(free[node])})
            for node, gpus in self.gpus.items()
        ]
        return nodes, {name: node for name, node, size in every if size == GROUP}

    def put(self, name: str, size: int, node: str | None = None) -> None:
        """On the emptiest node that has room, as Ray spreads; on none where there is none."""
        free = {each: gpus for each, gpus in self.free().items() if gpus >= size}
        where = node or max(free, key=lambda each: free[each], default="")
        self.at.setdefault(name, []).append((f"{name}{next(self.numbers)}", where, size))

    def stop(self, name: str) -> None:
        """One on no node, or on the node with the fewest; the newest of them."""
        counts = Counter(node for _, node, _ in itertools.chain(*self.at.values()))
        mine = [*enumerate(self.at[name])]
        if self.newest_first:
            at = mine[-1][0]
        else:
            at = min(mine, key=lambda one: (bool(one[1][1]), counts[one[1][1]], one[1][1], -one[0]))[0]
        del self.at[name][at]
        for each in self.at.values():
            each[:] = [one for one in each if one[1]] + [one for one in each if not one[1]]

    def has(self, name: str) -> int:
        return len(self.at[name])


@dataclass
class OnNodes(ScriptedPools):
    """Replicas of mixed pools on these nodes, of so many GPUs."""

    name: str = ""
    size: int = 1
    nodes: Nodes = field(default_factory=lambda: Nodes({}))

    async def set_targets(self, targets: Mapping[Role, int], reasons: Mapping[str, Any]) -> Action:
        while self.nodes.has(self.name) < targets[Role.MIXED]:
            self.nodes.put(self.name, self.size)
        while self.nodes.has(self.name) > targets[Role.MIXED]:
            self.nodes.stop(self.name)
        return await super().set_targets(targets, reasons)

    async def snapshot(self) -> PoolsSnapshot:
        found = await super().snapshot()
        replicas = [
            replace(each, replica=name, node=node, phase="ready" if node else "starting")
            for each, (name, node, _) in zip(found.replicas, self.nodes.at[self.name], strict=True)
        ]
        ready = sum(bool(each.node) for each in replicas)
        pool = replace(found.pools[Role.MIXED], ready=ready, starting=len(replicas) - ready)
        return PoolsSnapshot(pools={Role.MIXED: pool}, replicas=tuple(replicas))


class Fleet:
    """`chat` has groups of 4 GPUs and comes first; `batch` has replicas of one. The budget is all GPUs."""

    def __init__(self, nodes: Nodes) -> None:
        self.nodes, self.budget = nodes, CommonBudget(nodes.look)
        self.load = {"chat": CALM, "batch": FLOOD}
        self.chat = self._deployment("chat", GROUP, share__priority=1)
        self.batch = self._deployment("batch", 1)

    def _deployment(self, name: str, size: int, **own: Any) -> Deployment:
        config = settings(
            planner__policy="headway",
            planner__headway__hold_s=0.0,
            planner__headway__lead_s=20.0,
            engine__kind="vllm",
            engine__vllm__device="cuda",
            fleet__gpus=sum(self.nodes.gpus.values()),
            pools={"mixed": {"min_replicas": 1, "max_replicas": 40, "gpus_per_replica": size}},
            **own,
        )
        counts = {Role.MIXED: self.nodes.has(name)}
        return Deployment(
            config=config,
            actors=ScriptedActors(
                collecting=Script(lambda: busy(requests=self.load[name], completed=self.load[name], load={}))
            ),
            pools=OnNodes(counts=counts, name=name, size=size, nodes=self.nodes),
            name=name,
            budget=self.budget,
        )

    async def run_for(self, seconds: float, **load: float) -> None:
        self.load |= load
        async with AsyncExitStack() as stack:
            for each in (self.chat, self.batch):
                await stack.enter_async_context(each.running())
                await asyncio.sleep(3.0)
            await asyncio.sleep(seconds)


@on_virtual_time
async def test_gpus_on_four_nodes_are_no_group_and_go_to_who_can_use_them():
    nodes = Nodes({"a": 4, "b": 4, "c": 4, "d": 4, "e": 4})
    nodes.put("chat", GROUP, "e")
    for node in ("a", "a", "b", "b", "b", "c", "c", "c", "d"):
        nodes.put("other", 1, node)
    nodes.put("batch", 1, "d")
    fleet = Fleet(nodes)
    assert max(nodes.free().values()) == 2
    await fleet.run_for(10 * INTERVAL_S, chat=FLOOD)
    # 9 GPUs of the budget are in use by others, who have no part in it.
    assert nodes.has("chat") == 1
    assert nodes.has("batch") == 7
    assert not any(nodes.free().values())
    said = fleet.chat.log.last.summary
    assert "replicas wanted fit no node: 4 GPUs on one node needed, most free is" in said
    assert "limited to 1 by room on a node" in said
    grant = fleet.chat.log.last.reasons["grant"]
    assert (grant["gpus"], grant["wanted"] > 4) == (4, True)
    (words,) = (each.words for each in fleet.budget.document().deployments if each.name == "chat")
    assert words in said
    assert fleet.budget.document().room == "0 GPUs free, at most 0 on a node"


@on_virtual_time
async def test_a_group_gets_its_node_from_who_gives_way():
    nodes = Nodes({"a": 4, "b": 4, "c": 4})
    nodes.put("chat", GROUP, "c")
    nodes.put("batch", 1)
    fleet = Fleet(nodes)
    await fleet.run_for(6 * INTERVAL_S)
    assert (nodes.has("chat"), nodes.has("batch")) == (1, 8)
    await fleet.run_for(6 * INTERVAL_S, chat=FLOOD)
    assert (nodes.has("chat"), nodes.has("batch")) == (2, 4)
    assert all(node for _, node, _ in nodes.at["chat"])
    # As batch keeps its minimum, no more is due to chat: the budget is what it lacks.
    assert "the others leave no room for more" in fleet.chat.log.last.summary
    assert not any("no node" in record["summary"] for record in fleet.chat.records())


@on_virtual_time
async def test_who_gives_way_in_vain_does_not_go_on_doing_so():
    nodes = Nodes({"a": 4, "b": 4, "c": 4}, newest_first=True)
    nodes.put("chat", GROUP, "c")
    nodes.put("batch", 1)
    fleet = Fleet(nodes)
    await fleet.run_for(6 * INTERVAL_S)
    await fleet.run_for(20 * INTERVAL_S, chat=FLOOD)
    assert (nodes.has("chat"), nodes.has("batch")) == (1, 8)
    counts = [(record["created_at"], record["targets"]["mixed"]) for record in fleet.batch.records()]
    falls = [at_s for (_, before), (at_s, later) in itertools.pairwise(counts) if later < before]
    assert falls[0] < falls[-1] + 1.0 <= falls[0] + 4 * INTERVAL_S
