"""The room on nodes: which replicas of an application that shares a budget find any.

It is judged where Ray is asked for the engines' GPUs, and has the whole budget: else there may be nodes to
come, which have to be asked for. It is what is free, what drains, and what others would give up. The latter
is not counted on for `VAIN_S` if they did so, and after `HOPES` decisions Serve has stopped others.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from math import inf

from actors.connectors.protocol import Replica
from actors.hosts import NO_NODES, Look
from headway.config import ConfigError, HeadwayConfig
from headway.engine.kinds import node_needs
from headway.planning import Role
from headway.planning.common_budget import Division
from headway.planning.placement import EVERY, GPU, Layout, OnNode, Placement, free_words, placed
from interp import ProfileError

logger = logging.getLogger(__name__)

HOPES, VAIN_S = 2, 1800.0
NODES_S = 1.0
"""For as long what is free on nodes is not asked for again."""


class Nodes:
    """Ray's nodes, as they were seen last."""

    def __init__(self, look: Callable[[], Look]) -> None:
        self._look, self._looked_s = look, -inf
        self._nodes, self._groups = NO_NODES

    def layout(self, rooms: Mapping[str, "Room"], now_s: float) -> Layout:
        """What is free on them, and the replicas of all applications. Blocks while it asks Ray."""
        if abs(now_s - self._looked_s) >= NODES_S:
            (self._nodes, self._groups), self._looked_s = self._look(), now_s
        replicas = {name: [*room.on_nodes(self._groups)] for name, room in rooms.items()}
        return Layout(nodes=self._nodes, replicas=replicas)

    @property
    def words(self) -> str:
        """What is free on them."""
        return free_words(node.free for node in self._nodes)


class Room:
    """That of one application."""

    def __init__(self, name: str, config: Callable[[], HeadwayConfig]) -> None:
        self._name, self._config = name, config
        self.replicas: Sequence[Replica] | None = None
        """As they were seen last."""
        self._hopes = 0
        """Decisions in which room may still come of what others have given up."""
        self._vain_s = -inf
        """When none had come."""

    @property
    def judged(self) -> bool:
        """False where nothing is known of it."""
        return bool(self._needs) and self.replicas is not None

    def gpus(self, layout: Layout) -> float:
        """Those of the nodes that have the rest of what a replica needs."""
        return min(map(layout.gpus, self._needs.values()))

    def on_nodes(self, groups: Mapping[str, str]) -> Iterator[OnNode]:
        """Its replicas whose needs are known, but those that wait for room."""
        for each in sorted(self.replicas or (), key=lambda each: each.started_s):
            if each.role in self._needs and groups.get(each.replica) != "":
                node, draining = each.node or groups.get(each.replica, ""), each.phase == "draining"
                yield OnNode(role=each.role, node=node, needs=self._needs[each.role], draining=draining)

    def place(
        self,
        wanted: Mapping[Role, int],
        layout: Layout,
        divided: Callable[[], Division],
        gpus: Callable[[Mapping[Role, int]], int],
        now_s: float,
    ) -> Placement:
        """Of the replicas wanted those that find room; all where no more than these are due to it."""
        there = Counter(one.role for one in layout.replicas[self._name] if not one.draining)
        found = now = placed(wanted, there, self._needs, layout.rooms())
        if not now.most:
            self._hopes = 0
            return EVERY
        division = divided()
        mine = division.due[self._name].gpus

        def enough(found: Placement) -> bool:
            return not found.most or mine <= gpus({**wanted, **found.most})

        if enough(now):
            self._hopes = 0
            return EVERY
        if now_s - self._vain_s >= VAIN_S:
            others = (name for name in division.due if name != self._name)
            keep = {name: min(division.claims[name].holds, division.due[name].gpus) for name in others}
            found = placed(wanted, there, self._needs, layout.rooms(keep))
        if found.most != now.most:
            self._hopes = HOPES
        elif self._hopes:
            # What Ray says is free lags behind.
            self._hopes -= 1
            if self._hopes:
                return EVERY
            self._vain_s = now_s
        return EVERY if enough(found) else found

    @cached_property
    def _needs(self) -> Mapping[Role, Mapping[str, float]]:
        """What a replica takes of a node, of pools for which Ray is asked for GPUs.

        What sleeps keeps its place, so of pools with sleepers nothing is judged.
        """
        config = self._config()
        if config.connector.kind != "ray_serve":
            return {}
        try:
            needs = {Role(name): node_needs(config, Role(name)) for name in config.pools}
        except (ConfigError, ProfileError) as error:
            logger.warning("%s: what its replicas take of a node is not known: %s", self._name, error)
            return {}
        awake = (role for role in needs if not config.pools[role.value].sleepers)
        return {role: needs[role] for role in awake if GPU in needs[role]}
