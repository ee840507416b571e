"""What one request may claim at the cost of others, and for how long.

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

import numpy as np

from headway.routing.fleet.records import Record, Replica
from headway.routing.fleet.table import SlotArray
from headway.routing.queue.fair_shares import TenantShares
from headway.routing.queue.heads import CRITICAL_WORTH

NOWHERE = -1


def guard_kept(replica: Replica | None, record: Record) -> None:
    """A guarded request there has ended within its SLO."""
    if replica is not None and record.guard_s < replica.kept_out_s:
        replica.guard_debt -= _worth(record)
        if replica.guard_debt <= 0.0:
            replica.guard_debt, replica.kept_out_s = 0.0, inf


def turned_away(replica: Replica, record: Record) -> list[Record]:
    """That request was, by guards there. The requests whose guards are spent."""
    if not replica.alive:
        return []
    replica.guard_debt += _worth(record)
    replica.kept_out_s = min(replica.kept_out_s, record.slo.tpot_s)
    guarded = [each for each in replica.running if each.guard_s < replica.kept_out_s]
    if replica.guard_debt < sum(map(_worth, guarded)):
        return []
    replica.guard_debt, replica.kept_out_s = 0.0, inf
    return guarded


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
