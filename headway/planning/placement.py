"""Which replicas find room: what a replica needs is on one node, so of 7 GPUs free on three nodes a group of
4 may find none.

Theory. A node has what is free there, and soon what drains: Ray starts the next replica when that is gone.
Replicas are placed one after the other, those with the most GPUs first, each where the fewest GPUs stay free.
Where sizes divide each other (1, 2, 4, 8) and only GPUs are short, no other order places more.

What another deployment gives up comes from where Ray Serve stops replicas, which nobody can tell it: the head
last, nodes with fewer replicas of all deployments first, the newest of a node first.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from headway.planning.types import PoolLimits, Role
from headway.words import plural

GPU = "GPU"
ROUNDING = 1e-6

Amounts = Mapping[str, float]
"""By Ray's names of resources."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node, and what is free of what it has."""

    name: str
    has: Amounts
    free: Amounts
    head: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OnNode:
    """A replica, what it needs, and its node; "" while it has none."""

    role: Role
    node: str
    needs: Amounts
    draining: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Nodes, and by deployment its replicas, the oldest first."""

    nodes: Sequence[Node]
    replicas: Mapping[str, Sequence[OnNode]]

    def gpus(self, needs: Amounts) -> float:
        """GPUs of nodes that have the rest of what is needed."""
        rest = {name: amount for name, amount in needs.items() if name != GPU}
        return sum(node.has.get(GPU, 0.0) for node in self.nodes if fits(rest, node.has))

    def rooms(self, keep: Mapping[str, int] | None = None) -> list[dict[str, float]]:
        """What is free on each node once replicas that have none yet have one, and what drains is gone, and
        what deployments have beyond the GPUs that they keep.
        """
        rooms = {node.name: dict(node.free) for node in self.nodes}
        every = [one for each in self.replicas.values() for one in each]
        stopped = [one for name, gpus in (keep or {}).items() for one in self._stopped(name, gpus)]
        for one in [*(one for one in every if one.draining), *stopped]:
            room = rooms.get(one.node, {})
            for resource, amount in one.needs.items():
                room[resource] = room.get(resource, 0.0) + amount
        given_up = set(map(id, stopped))
        coming = [one.needs for one in every if not (one.node or one.draining or id(one) in given_up)]
        for needs in sorted(coming, key=_gpus, reverse=True):
            take(needs, rooms.values())
        return list(rooms.values())

    def stopping(self, name: str) -> Sequence[OnNode]:
        """Its replicas in the order in which Serve stops them: first those that have no node yet."""
        up = [one for each in self.replicas.values() for one in each if one.node and not one.draining]
        counts, heads = Counter(one.node for one in up), {node.name for node in self.nodes if node.head}
        own = [one for one in reversed(self.replicas.get(name, ())) if not one.draining]
        return sorted(own, key=lambda one: (one.node in heads, counts[one.node], one.node))

    def _stopped(self, name: str, keeps: int) -> Iterable[OnNode]:
        up = self.stopping(name)
        more = sum(_gpus(one.needs) for one in up) - keeps
        for one in up:
            if _gpus(one.needs) <= more + ROUNDING:
                more -= _gpus(one.needs)
                yield one


class RoomLimits(PoolLimits):
    """Limits of a pool whose maximum is what finds room."""

    most_by: ClassVar[str] = "room on a node"


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Replicas that there is room for, by role, of pools that want more; `words` say why there is no more."""

    most: Mapping[Role, int] = field(default_factory=dict)
    words: str = ""

    def within(self, limits: Mapping[Role, PoolLimits]) -> Mapping[Role, PoolLimits]:
        """Limits that keep to it, but for minimums."""
        bounded = {
            role: RoomLimits(
                min_replicas=limits[role].min_replicas,
                max_replicas=limits[role].clamped(most),
                gpus_per_replica=limits[role].gpus_per_replica,
                sleepers=limits[role].sleepers,
            )
            for role, most in self.most.items()
        }
        return {**limits, **bounded}


EVERY = Placement()
"""All that is wanted has room."""


def placed(
    wanted: Mapping[Role, int],
    there: Mapping[Role, int],
    needs: Mapping[Role, Amounts],
    rooms: list[dict[str, float]],
) -> Placement:
    """Of the replicas wanted beyond those that are there, which find room, of roles with needs."""
    most = {role: there.get(role, 0) for role in wanted if role in needs}
    for role in sorted(most, key=lambda role: (-_gpus(needs[role]), role)):
        while most[role] < wanted[role] and take(needs[role], rooms):
            most[role] += 1
    lacking = {role: count for role, count in most.items() if count < wanted[role]}
    words = (
        f"{wanted[role] - count} of {wanted[role]} {'' if len(wanted) == 1 else f'{role} '}replicas wanted "
        f"{'fits' if wanted[role] - count == 1 else 'fit'} no node: {_why(needs[role], rooms)}"
        for role, count in lacking.items()
    )
    return Placement(most=lacking, words="; ".join(words))


def fits(needs: Amounts, room: Amounts) -> bool:
    """True if a node has all of it."""
    return all(room.get(name, 0.0) + ROUNDING >= amount for name, amount in needs.items())


def take(needs: Amounts, rooms: Iterable[dict[str, float]]) -> dict[str, float] | None:
    """Take it from the node where the fewest GPUs stay free, which is returned; None if none has room."""
    room = min((room for room in rooms if fits(needs, room)), key=_gpus, default=None)
    if room is not None:
        for name, amount in needs.items():
            room[name] -= amount
    return room


def free_words(rooms: Iterable[Amounts]) -> str:
    """`7 GPUs free, at most 3 on a node`; empty without a node."""
    free = [round(_gpus(room)) for room in rooms]
    return f"{plural(sum(free), 'GPU')} free, at most {max(free)} on a node" if free else ""


def _gpus(amounts: Amounts) -> float:
    return amounts.get(GPU, 0.0)


def _why(needs: Amounts, rooms: Sequence[Amounts]) -> str:
    rest = {name: amount for name, amount in needs.items() if name != GPU}
    free = [round(_gpus(room)) for room in rooms if fits(rest, room)]
    most = f"most free is {max(free, default=0)}; {sum(free)} are free in all"
    return f"{plural(round(_gpus(needs)), 'GPU')} on one node needed, {most}"
