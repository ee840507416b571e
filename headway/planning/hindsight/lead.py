"""How long a replica takes from the order until it serves, as observed.

Each rise of a target is an order at that time; each replica that becomes ready fulfils the oldest. What is
seen at a decision happened since the last one: the middle of that interval counts. The lead is the longest of
the last RECENT starts, or the age of an order that has waited longer still; until one has been seen, the
first guess. A replica that changes its role is no start: it is expected before all orders and says nothing of
the lead.
"""

from dataclasses import dataclass, replace
from math import ceil

from headway.planning.types import PoolState

RECENT = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Replicas that were ordered at a time and have not become ready."""

    at_s: float
    replicas: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Starts:
    """One pool's orders under way, its latest starts in seconds, replicas that come by a change of role."""

    orders: tuple[Order, ...] = ()
    seen_s: tuple[float, ...] = ()
    ready: int | None = None
    changing: int = 0

    def observe(self, now_s: float, interval_s: float, pool: PoolState) -> "Starts":
        """With what has become ready since the last decision."""
        came = 0 if self.ready is None else max(0, pool.ready - self.ready)
        changed = min(came, self.changing)
        came -= changed
        orders, seen = list(self.orders), list(self.seen_s)
        while came > 0 and orders:
            first = orders.pop(0)
            seen.append(max(0.0, now_s - interval_s / 2.0 - first.at_s))
            if first.replicas > came:
                orders.insert(0, Order(at_s=first.at_s, replicas=first.replicas - came))
            came -= first.replicas
        if pool.starting == 0:
            orders = []
        changing = self.changing - changed if pool.ready < pool.desired else 0
        return Starts(orders=tuple(orders), seen_s=tuple(seen[-RECENT:]), ready=pool.ready, changing=changing)

    def change(self, taken: int, given: int) -> "Starts":
        """With replicas that are to come from other pools, and those that go to others."""
        ready = None if self.ready is None else self.ready - given
        return replace(self, ready=ready, changing=self.changing + taken)

    def order(self, now_s: float, pool: PoolState, target: int) -> "Starts":
        """With an order for what `target` is above the desired count; a lower target takes orders back."""
        orders = list(self.orders)
        if target > pool.desired:
            orders.append(Order(at_s=now_s, replicas=target - pool.desired))
        revoked = min(max(0, pool.desired - target), self.changing)
        excess = pool.desired - target - revoked
        while excess > 0 and orders:
            last = orders.pop()
            if last.replicas > excess:
                orders.append(Order(at_s=last.at_s, replicas=last.replicas - excess))
            excess -= last.replicas
        return replace(self, orders=tuple(orders), changing=self.changing - revoked)

    def lead_s(self, now_s: float, guess_s: float) -> float:
        """Seconds from an order to a ready replica."""
        known = max(self.seen_s, default=guess_s)
        waiting = now_s - self.orders[0].at_s if self.orders else 0.0
        return max(known, waiting)


def lead_intervals(lead_s: float, interval_s: float) -> int:
    """Intervals between the last one known and the first one that an order now can serve whole."""
    return ceil(lead_s / interval_s - 1e-9) + 1
