"""`lora-affinity-scorer`: prefers replicas that have the request's LoRA adapter, as many as its load needs.

    home        has the adapter (`headway.routing.fleet.adapters`)
    crowded     a home with more requests than `CROWDED` of the mean and `FEW`, or with requests and more
                than `OVERFULL` of the mean work of late
    busy        a crowded home, or one with requests and more than `BUSY` of the mean work of late
    grow        there is no home that is not busy; or there are fewer than the adapter's share of the work
                needs, and none is idle

| candidate                                 | score  | where more homes are wanted |
|-------------------------------------------|--------|-----------------------------|
| a home that is not busy                   | 1      | 0.8                         |
| a busy home that is not crowded           | 0.75   | 0.75                        |
| a crowded home                            | 0.6    | 0.6                         |
| has room for one more adapter             | to 0.5 | to 1                        |
| would drop one that no request there uses | to 0.3 | to 0.7                      |
| all adapters there are in use: it waits   | 0      | 0                           |

"To": up to 0.1 less, the more work a replica had of late. Without an adapter all are 1, at once.

A home that is beyond the mean shares its adapters with replicas that have room until it is not, and only one
that is crowded has others drop an adapter for that: with 50 adapters of Zipf's shares on 8 replicas with room
for 8 each, that made a third of the loads at the same balance.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headway.routing.decide.context import SchedulingContext
from headway.routing.decide.scorers import requests_at
from headway.routing.fleet.table import FleetRow, FloatArray, SlotArray
from interp.jit import compiled

BUSY, OVERFULL = 1.2, 1.4
"""Below these, chance alone makes homes busy."""

CROWDED, FEW = 1.5, 2.0
"""Of requests there now, whose number varies more."""

GRADE = 0.1
"""What much work takes of the score of a new home."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraAffinityScorer:
    """Needs no settings: engines say how many adapters they have room for."""

    def score(self, context: SchedulingContext) -> FloatArray:
        """In [0, 1]; 1 for all where no adapter is asked for."""
        adapter, slots = context.record.request.adapter, context.slots
        if not adapter:
            return np.ones(len(slots))
        index, fleet = context.state.adapters, context.state.fleet
        has, replicas = np.zeros(fleet.slots, dtype=np.bool_), len(fleet.ready(context.role))
        has[list(index.homes(adapter))] = True
        terms = float(index.wanted(adapter, replicas)), index.mean_work(replicas)
        return scores_of(fleet.table, slots, has, requests_at(context), terms)


@compiled
def scores_of(
    table: FloatArray,
    slots: SlotArray,
    has: NDArray[np.bool_],
    requests: FloatArray,
    terms: tuple[float, float],
) -> FloatArray:
    """f8[C], by the table above; `has`: the homes, of all slots. `terms`: homes wanted, mean work."""
    wanted, mean_work = terms
    crowd = CROWDED * requests.mean() + FEW
    homes, idle, free = 0, False, False
    for place in range(len(slots)):
        slot = slots[place]
        if has[slot]:
            homes += 1
            busy = table[FleetRow.ADAPTER_WORK, slot] > BUSY * mean_work or requests[place] > crowd
            idle |= requests[place] == 0.0
            free |= not busy or requests[place] == 0.0
    grow = not free or (homes < wanted and not idle)
    scores = np.zeros(len(slots))
    for place in range(len(slots)):
        slot = slots[place]
        work = table[FleetRow.ADAPTER_WORK, slot]
        if has[slot]:
            busy = requests[place] > 0.0 and (work > BUSY * mean_work or requests[place] > crowd)
            if busy:
                crowded = requests[place] > crowd or work > OVERFULL * mean_work
                scores[place] = 0.6 if crowded else 0.75
            else:
                scores[place] = 0.8 if grow else 1.0
            continue
        grade = GRADE * min(1.0, 0.5 * work / mean_work) if mean_work > 0.0 else 0.0
        if table[FleetRow.ADAPTERS, slot] < table[FleetRow.ADAPTER_ROOM, slot]:
            scores[place] = (1.0 if grow else 0.5) - grade
        elif table[FleetRow.ADAPTERS_IN_USE, slot] < table[FleetRow.ADAPTER_ROOM, slot]:
            scores[place] = (0.7 if grow else 0.3) - grade
    return scores
