"""Replica starts of one pool: how long they take, and which of them do not happen.

Each rise of a target is an order at that time; each replica that becomes ready fulfils the oldest order. What
is seen at a decision has happened by then: a start takes until it is seen. With the known lead

    known     the longest of the last RECENT starts; until one has been seen, the first guess
    patience  SEEN_PATIENCE · max(known, guess) where starts have been seen, GUESS_PATIENCE · guess before
    lead      the longer of known and the age of the oldest order; known where that is older than patience

An order that is older than patience is overdue: its replicas are missing, as in a cluster that is full. How
long they wait says nothing of how long a start takes, neither while they do nor when they come. A first guess
may be off by more than starts that were seen differ, so it has more patience.

A start may take long all the same: the first one, of which only a guess was known, or after starts have
become slower for good. So where none has been seen, or where for a second time all that was missing came late
without a timely start between, the time that an overdue replica took counts as known, at most patience: from
there the next one is timely. The first timely start ends that assumption.

Replicas are missing, too, when ready ones are lost and not replaced, and when somebody else sets fewer than
were ordered. What the requests lose by it is read off the loss curve of the last interval: the share of its
requests that a constant fleet of the replicas that are ready would have lost of those that can keep their SLO
(`learning`). It speaks of that interval alone: a queue that has built up makes it worse. While a pool misses
replicas

    lead      that of replicas that come
    queue     nothing is added for it: what is missing would have to come first
    budget    what is missing holds no GPUs when a budget is divided
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, inf, isnan

import numpy as np

from headway.planning.hindsight.history import PoolHistory
from headway.planning.types import NAN, Observation, PoolState, Role

RECENT = 10
SEEN_PATIENCE, GUESS_PATIENCE = 3.0, 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StartOrder:
    """Replicas that were ordered at a time and have not become ready."""

    at_s: float
    replicas: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingReplicas:
    """Replicas that do not come: how many, and since when the oldest of them is wanted, in seconds of the
    observation's clock. Of them `revoked` were taken back by somebody else.
    """

    replicas: int
    since_s: float
    revoked: int = 0


Orders = tuple[StartOrder, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaStarts:
    """The starts of one pool, as observed.

    `orders` are under way, `lost` replicas were ready and are to be replaced, `seen_s` the latest starts in
    seconds. `ready` and `desired` are as last observed, `target` as last decided, `revoked_s` is when
    somebody else was first seen to set fewer. `patience_s` as in the module, `assumed_s` what an overdue
    start lets assume, 0 without one; `late` counts the times that all that was missing came after all, since
    the last timely start.
    """

    orders: Orders = ()
    lost: Orders = ()
    seen_s: tuple[float, ...] = ()
    ready: int | None = None
    desired: int | None = None
    target: int | None = None
    revoked_s: float | None = None
    patience_s: float = inf
    assumed_s: float = 0.0
    late: int = 0

    def observe(self, now_s: float, interval_s: float, pool: PoolState, guess_s: float) -> "ReplicaStarts":
        """With what has become ready since the last decision."""
        came = 0 if self.ready is None else max(0, pool.ready - self.ready)
        orders, fulfilled, rest = _fulfilled(_until(now_s, self.orders), came)
        ages = [now_s - order.at_s for order in fulfilled]
        timely = [age_s for age_s in ages if age_s <= self.patience_s]
        learnt = replace(
            self, seen_s=(*self.seen_s, *timely)[-RECENT:], assumed_s=self._assumed_s(ages, timely)
        )
        patience_s = learnt._patience_s(interval_s, guess_s)
        lost, _, _ = _fulfilled(_until(now_s, self.lost), rest)
        outstanding = max(pool.starting, pool.desired - pool.ready)
        if pool.starting == 0:
            # Whatever was still ordered has failed or was taken back by somebody else.
            orders, lost, outstanding = (), (), 0
        orders = _newest_dropped(orders, _count(orders) - outstanding)
        more = pool.starting - _count(orders) - _count(lost)
        lost = _newest_dropped(lost, -more)
        if more > 0:
            lost = (*lost, StartOrder(at_s=now_s, replicas=more))
        came_late = len(ages) > len(timely) and not _older(orders, now_s - patience_s)
        return replace(
            learnt,
            orders=orders,
            lost=lost,
            ready=pool.ready,
            desired=pool.desired,
            revoked_s=self._revoked_s(now_s, pool.desired),
            patience_s=patience_s,
            late=0 if timely else self.late + came_late,
        )

    def _assumed_s(self, ages: Sequence[float], timely: Sequence[float]) -> float:
        if timely:
            return 0.0
        if ages and (self.late or not (self.seen_s or self.assumed_s)):
            return min(max(ages), self.patience_s)
        return self.assumed_s

    def known_s(self, guess_s: float) -> float:
        """Seconds that starts have taken of late; `guess_s` until one has been seen."""
        return max(*self.seen_s, self.assumed_s) if self.seen_s else self.assumed_s or guess_s

    def due_s(self, now_s: float, guess_s: float) -> float:
        """Seconds until the oldest order serves, or one that is made now."""
        ordered_s = now_s - min((order.at_s for order in self.orders), default=now_s)
        return max(0.0, self.known_s(guess_s) - ordered_s)

    def _patience_s(self, interval_s: float, guess_s: float) -> float:
        # Nothing is seen in less than an interval.
        times = SEEN_PATIENCE if self.seen_s or self.assumed_s else GUESS_PATIENCE
        return times * max(self.known_s(guess_s), guess_s, interval_s)

    def _revoked_s(self, now_s: float, desired: int) -> float | None:
        if self.desired is None or self.target is None or desired >= self.target:
            return None
        # Lower than set, but never higher, is a target that nobody has taken: a dry run, or a step.
        return now_s if self.revoked_s is None and desired < self.desired else self.revoked_s

    def order(self, now_s: float, pool: PoolState, target: int) -> "ReplicaStarts":
        """With an order for what `target` is above the desired count; a lower target takes orders back."""
        orders = self.orders
        if target > pool.desired:
            orders = (*orders, StartOrder(at_s=now_s, replicas=target - pool.desired))
        return replace(self, orders=_newest_dropped(orders, pool.desired - target), target=target)

    def lead_s(self, now_s: float, guess_s: float) -> float:
        """Seconds from an order to a ready replica; `guess_s` until one has been seen."""
        known_s = self.known_s(guess_s)
        if not self.orders or self._overdue(now_s):
            return known_s
        return max(known_s, now_s - self.orders[0].at_s)

    def _overdue(self, now_s: float) -> list[StartOrder]:
        return _older((*self.orders, *self.lost), now_s - self.patience_s)

    def missing(self, now_s: float) -> MissingReplicas | None:
        """The replicas that do not come; None where all that are ordered may yet do so in time."""
        overdue = self._overdue(now_s)
        since_s = [order.at_s for order in overdue]
        revoked = 0
        if self.revoked_s is not None and self.revoked_s < now_s:
            revoked = (self.target or 0) - (self.desired or 0)
            since_s.append(self.revoked_s)
        if not since_s:
            return None
        return MissingReplicas(replicas=_count(overdue) + revoked, since_s=min(since_s), revoked=revoked)


def _count(orders: Sequence[StartOrder]) -> int:
    return sum(order.replicas for order in orders)


def _until(now_s: float, orders: Orders) -> Orders:
    """The orders on a clock that may have been set back: none is of later than now."""
    return tuple(replace(order, at_s=min(order.at_s, now_s)) for order in orders)


def _older(orders: Sequence[StartOrder], at_s: float) -> list[StartOrder]:
    return [order for order in orders if order.at_s < at_s]


def _fulfilled(orders: Orders, came: int) -> tuple[Orders, list[StartOrder], int]:
    """What is left of orders, oldest first, after so many came; those that got any; how many are over."""
    fulfilled = []
    while came > 0 and orders:
        first, orders = orders[0], orders[1:]
        fulfilled.append(first)
        if first.replicas > came:
            orders = (StartOrder(at_s=first.at_s, replicas=first.replicas - came), *orders)
        came -= first.replicas
    return orders, fulfilled, max(0, came)


def _newest_dropped(orders: Orders, count: int) -> Orders:
    """Orders without the newest `count` replicas."""
    while count > 0 and orders:
        last, orders = orders[-1], orders[:-1]
        if last.replicas > count:
            orders = (*orders, StartOrder(at_s=last.at_s, replicas=last.replicas - count))
        count -= last.replicas
    return orders


def lead_intervals(lead_s: float, interval_s: float) -> int:
    """Intervals between the last one known and the first one that an order now can serve whole."""
    return ceil(lead_s / interval_s - 1e-9) + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingCapacity:
    """What one pool misses: so many `replicas` since `since_s`, seconds of the observation's clock.

    Of them `revoked` were set lower by somebody else. `ready` replicas serve, which lose `lost_share` of the
    last interval's requests; NaN where that is not known.
    """

    replicas: int
    revoked: int
    since_s: float
    ready: int
    lost_share: float


def missing_capacity(
    pools: Mapping[Role, tuple[ReplicaStarts, PoolHistory]], observation: Observation
) -> Mapping[Role, MissingCapacity]:
    """Of each pool that misses replicas."""
    found: dict[Role, MissingCapacity] = {}
    for role, (starts, history) in pools.items():
        if (missing := starts.missing(observation.now_s)) is not None:
            found[role] = _of(missing, history, observation.pools[role].ready)
    return found


def _of(missing: MissingReplicas, history: PoolHistory, ready: int) -> MissingCapacity:
    return MissingCapacity(
        replicas=missing.replicas,
        revoked=missing.revoked,
        since_s=missing.since_s,
        ready=ready,
        lost_share=_lost_share(history, ready),
    )


def _lost_share(history: PoolHistory, ready: int) -> float:
    if len(history) == 0 or history.requests[-1] == 0:
        return NAN
    (lost,) = history.lost_with(np.array([ready]), 1)
    return float(lost / history.requests[-1])


def missing_lines(missing: Mapping[Role, MissingCapacity], now_s: float) -> Iterator[str]:
    """A sentence per pool, as operators read it."""
    for role, each in missing.items():
        are = "1 replica is" if each.replicas == 1 else f"{each.replicas} replicas are"
        yield f"{role}: {are} missing, {_cause(each)} {_ago(now_s - each.since_s)} ago{_effect(each)}"


def _cause(missing: MissingCapacity) -> str:
    if missing.revoked == 0:
        return "ordered but not started,"
    return "taken back by somebody else" + ("" if missing.revoked == missing.replicas else " or not started,")


def _effect(missing: MissingCapacity) -> str:
    if isnan(missing.lost_share):
        return ""
    if missing.ready == 0:
        return "; none serves"
    serve = "1 that serves loses" if missing.ready == 1 else f"{missing.ready} that serve lose"
    return f"; the {serve} {100.0 * missing.lost_share:.1f} % of the last requests"


def _ago(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120.0 else f"{seconds / 60.0:.0f} min"
