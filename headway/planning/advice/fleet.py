"""The fleet that a plan would have: what it orders serves a start-up later, what it releases drains.

Of releases those go first that have not come yet, the newest ones first. What is seen of the real fleet's
starts says how long a start takes (`SeenStarts`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isnan
from statistics import median

from headway.planning.types import NAN, PoolState, Role

RECENT = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedPool:
    """One pool: `desired` replicas, of which `ready` serve and the others do so from `coming_s` on, ascending
    seconds of the observation's clock.
    """

    desired: int
    ready: int
    coming_s: tuple[float, ...] = ()

    @classmethod
    def like(cls, pool: PoolState, now_s: float, start_up_s: float) -> "PlannedPool":
        """The real pool, as a plan finds it that begins now."""
        ready = min(pool.ready, pool.desired)
        coming = (now_s + start_up_s,) * (pool.desired - ready)
        return cls(desired=pool.desired, ready=ready, coming_s=coming)

    def at(self, now_s: float) -> "PlannedPool":
        """With what has become ready by then."""
        came = sum(at_s <= now_s for at_s in self.coming_s)
        return replace(self, ready=self.ready + came, coming_s=self.coming_s[came:]) if came else self

    def order(self, target: int, now_s: float, start_up_s: float) -> "PlannedPool":
        """With another target, set now."""
        more = target - self.desired
        if more >= 0:
            coming = tuple(sorted((*self.coming_s, *(now_s + start_up_s,) * more)))
            return replace(self, desired=target, coming_s=coming)
        cancelled = min(-more, len(self.coming_s))
        kept = self.coming_s[: len(self.coming_s) - cancelled]
        return PlannedPool(desired=target, ready=self.ready + more + cancelled, coming_s=kept)


PlannedFleet = Mapping[Role, PlannedPool]


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenStarts:
    """Starts of one real pool: when those under way were first seen, and how long the latest took, in s."""

    under_way_s: tuple[float, ...] = ()
    ready: int | None = None
    took_s: tuple[float, ...] = ()

    def see(self, now_s: float, starting: int, ready: int) -> "SeenStarts":
        """With the counts of now."""
        came = 0 if self.ready is None else min(max(0, ready - self.ready), len(self.under_way_s))
        took = (now_s - at_s for at_s in self.under_way_s[:came] if not isnan(at_s))
        left = self.under_way_s[came:][:starting]
        # Of those that were under way at the first look it is not known since when.
        begun_s = NAN if self.ready is None else now_s
        return SeenStarts(
            under_way_s=(*left, *(begun_s,) * (starting - len(left))),
            ready=ready,
            took_s=(*self.took_s, *took)[-RECENT:],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StartUp:
    """How long a start takes: `stated_s` where settings say, else as seen, else a guess."""

    guess_s: float
    stated_s: float | None = None
    seen: Mapping[Role, SeenStarts] = field(default_factory=dict)

    @property
    def sure(self) -> bool:
        """True where it is no guess."""
        return self.stated_s is not None or any(each.took_s for each in self.seen.values())

    def of(self, role: Role) -> float:
        """Seconds that a replica of that role takes; another role's where its own were never seen."""
        if self.stated_s is not None:
            return self.stated_s
        own = self.seen.get(role)
        took = own.took_s if own else ()
        took = took or tuple(each for seen in self.seen.values() for each in seen.took_s)
        return float(median(took)) if took else self.guess_s

    def see(self, looks: Sequence[tuple[float, Mapping[Role, PoolState]]]) -> "StartUp":
        """With looks at the real fleet, in order of time."""
        seen = dict(self.seen)
        for now_s, pools in looks:
            for role, pool in pools.items():
                seen[role] = seen.get(role, SeenStarts()).see(now_s, pool.starting, pool.ready)
        return replace(self, seen=seen)
