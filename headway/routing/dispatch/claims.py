"""What one request may claim at the cost of others, and for how long.

A tight SLO. Under an SLO s a replica bears n(s) requests of a kind: the largest batch that decodes within its
TPOT, and where it computes prompts, too, no more than can begin at once and be within its TTFT. So a request
with s is charged its tokens × max(1, n(deployment's) / n(s)), at most MOST_TIMES: a tenant that asks for a
replica to itself has soon had its share.

A guard, the TPOT SLO of those that run at a replica, which newcomers have to keep. It stands while it saves
more requests than it costs, as one rents skis until the rent comes to their price:

    debt(replica) + w        a request was turned away that only guards there had kept out
    debt(replica) − w        a request that kept such requests out has kept its SLO
    debt >= Σ w              over those there that keep such requests out: they bind nobody any more

w is 1, or CRITICAL_WORTH for a critical one. Guards keep out what has a looser SLO: those count that are
tighter than the SLO of all to whom the debt is owed. So a few long requests with an SLO that leaves no room
for others cost about as many others as they are; a class of short ones, most of which keep their SLO, seldom
loses its guards.

A place in turn. Where a tenant whose turn it is finds no room, the replica that lacks least for its request
is kept free of tenants that are ahead of it (`fair_shares`), so that what becomes free there is not taken by
whatever is small enough. One replica for a key, and no more than half of the fleet; of a single one, that.
"""

from math import inf
from typing import NamedTuple

import numpy as np

from headway.config import Role
from headway.routing.decide.context import RoutingState, SchedulingContext
from headway.routing.fleet.records import Record, Replica
from headway.routing.fleet.table import FleetRow, SlotArray
from headway.routing.queue.fair_shares import TenantShares
from headway.routing.queue.held_lines import pattern_of, rounded_down
from headway.routing.types import RequestSlo

MOST_TIMES = 100.0
CRITICAL_WORTH = 3.0
"""Requests that are not critical, beside one that is."""

MOST_KNOWN = 10_000
"""Tightnesses that are remembered."""

NOWHERE = -1


class Tightness:
    """How many times its tokens a request is charged for its SLO, to within 1/64 of it."""

    def __init__(self) -> None:
        self._known: dict[tuple[float, ...], float] = {}

    def of(self, now_s: float, record: Record, state: RoutingState) -> float:
        """From 1 to MOST_TIMES; 1 where no replica is ready, or its profile is not known."""
        slo, slots = record.slo, state.fleet.ready(state.roles[-1])
        if not slo.given or slo == state.slo or not len(slots):
            return 1.0
        lengths = pattern_of(record.request, record.expected_output)[1:]
        key = (*lengths, rounded_down(slo.ttft_s), rounded_down(slo.tpot_s))
        if key not in self._known:
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            context = SchedulingContext(state, now_s, record, state.roles[-1]).about(
                state.roles[-1], slots[:1]
            )
            own, usual = (borne(context, each) for each in (slo, state.slo))
            self._known[key] = min(max(usual / own, 1.0), MOST_TIMES)
        return self._known[key]


def borne(context: SchedulingContext, slo: RequestSlo) -> float:
    """The requests like this one that the first candidate bears under an SLO, at least 1; see the module.

    1 without a profile.
    """
    latency, record = context.state.latency, context.record
    kind = int(context.state.fleet.table[FleetRow.KIND, context.slots[0]])
    if kind < 0:
        return 1.0
    kept, beyond = 1.0, float(context.state.rules.max_batch_size) + 1.0
    while beyond - kept > 1.0:
        tried = float(int(0.5 * (kept + beyond)))
        if latency.shared_tpot_s(kind, tried, tried * record.mean_tokens, 0.0) <= slo.tpot_s:
            kept = tried
        else:
            beyond = tried
    if context.role is Role.DECODE:
        return kept
    prompt_s = latency.alone_s(context, {kind})[0]
    return max(min(kept, slo.ttft_s / prompt_s), 1.0)


class GuardBalance:
    """What the guards of each replica have cost and saved."""

    def __init__(self) -> None:
        self._debts: dict[Replica, _Debt] = {}

    def kept(self, replica: Replica | None, record: Record) -> None:
        """A guarded request there has ended within its SLO."""
        debt = self._debts.get(replica) if replica is not None else None
        if replica is None or debt is None or record.guard_s >= debt.tpot_slo_s:
            return
        owed = debt.owed - _worth(record)
        if owed > 0.0:
            self._debts[replica] = debt._replace(owed=owed)
        else:
            del self._debts[replica]

    def forget(self, replica: Replica) -> None:
        """The replica is GONE."""
        self._debts.pop(replica, None)

    def turned_away(self, replica: Replica, record: Record) -> list[Record]:
        """That request was, by guards there. The requests whose guards are spent."""
        debt = self._debts.pop(replica, NO_DEBT)
        if not replica.alive:
            return []
        debt = _Debt(debt.owed + _worth(record), min(debt.tpot_slo_s, record.slo.tpot_s))
        guarded = [each for each in replica.running if each.guard_s < debt.tpot_slo_s]
        if debt.owed < sum(map(_worth, guarded)):
            self._debts[replica] = debt
            return []
        return guarded


class _Debt(NamedTuple):
    """The worth of the requests that were turned away, and the tightest of their TPOT SLOs."""

    owed: float
    tpot_slo_s: float


NO_DEBT = _Debt(0.0, inf)


def _worth(record: Record) -> float:
    return CRITICAL_WORTH if record.request.critical else 1.0


class KeptRoom:
    """The replicas that are kept for tenants whose turn it is, a slot for each key."""

    def __init__(self, shares: TenantShares) -> None:
        self._shares = shares
        self._kept: dict[str, tuple[str, int]] = {}

    def keep(self, tenant: str, slot: int, replicas: int) -> None:
        """The replica in `slot` lacks least for the tenant's request, of so many replicas."""
        if not self._shares.others(tenant):
            return
        key = tenant.partition("/")[0]
        if slot == NOWHERE or self._shares.ahead(tenant):
            self._kept.pop(key, None)
        elif key in self._kept or 2 * (len(self._kept) + 1) <= max(replicas, 2):
            self._kept[key] = (tenant, slot)

    def barred(self, tenant: str) -> SlotArray | None:
        """The slots that are not for this tenant now; None for none."""
        if not self._kept:
            return None
        for key, (owner, _) in list(self._kept.items()):
            if not self._shares.waiting(owner) or self._shares.ahead(owner):
                del self._kept[key]
        mine = tenant.partition("/")[0]
        slots = [slot for key, (_, slot) in self._kept.items() if key != mine]
        if not slots or not self._shares.ahead(tenant):
            return None
        return np.array(slots, dtype=np.int64)
