"""Plugins that fill replicas by their capacity for each request, and the profiles made of them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headway.engine.rules import EngineRules
from headway.routing.decide.context import Refusal, RoutingState, SchedulingContext
from headway.routing.decide.headroom import LATE_ROOM
from headway.routing.fleet.gpu_profiles import GpuProfile
from headway.routing.fleet.table import FleetRow, FloatArray, SlotArray
from headway.routing.types import RequestSlo, ShedReason
from headway_aibrix.capacity import Candidates, CapacitySource, CapacityTable, LoadQuery
from headway_aibrix.surfaces import SurfaceCapacity
from interp import Profile
from interp.jit import compiled

PULL = {"capacity-filter": 1.0, "least-pattern-load": 1.0, "max-score-picker": 1.0}
PULL_BIN_PACK = {"capacity-filter": 1.0, "bin-pack": 1.0, "max-score-picker": 1.0}

NOTE = "pattern-load"

ROUNDING = 1e-9
"""Loads are sums of fractions."""


def capacity_table(profiles: Mapping[str, GpuProfile | CapacitySource], rules: EngineRules) -> CapacityTable:
    """Capacities by GPU type: from a profile's surfaces, or of what is a source itself; none of others."""
    sources: dict[str, CapacitySource] = {}
    for gpu_type, profile in profiles.items():
        if isinstance(profile, Profile):
            sources[gpu_type] = SurfaceCapacity(profile=profile, rules=rules)
        elif isinstance(profile, CapacitySource):
            sources[gpu_type] = profile
    return CapacityTable(sources)


class _Known(NamedTuple):
    profiles: Mapping[str, GpuProfile]
    table: CapacityTable


@dataclass(slots=True, kw_only=True)
class _Loads:
    """The loads of requests by the router's profiles; the table is made again when these change."""

    # Any: pydantic, which checks parameters, would want a schema of all that a profile holds.
    _known: Any = field(default=None, init=False, repr=False)

    def loads(self, context: SchedulingContext) -> FloatArray:
        """The part of each candidate that the request takes, f8[C]; infinite where it never fits.

        Under what is left of its TTFT SLO; without an SLO of its own under the deployment's, whose TTFT does
        not run while it waits. A critical request that no candidate could serve within its SLO has lost it:
        it takes what one without an SLO does, or a whole replica.
        """
        if NOTE not in context.notes:
            slo = context.record.slo
            left = RequestSlo(ttft_s=slo.ttft_s - context.waited_s, tpot_s=slo.tpot_s)
            loads = self.loads_within(context, left if slo.given else context.state.slo)
            if context.record.request.critical and np.isinf(loads).all():
                loads = np.minimum(self.loads_within(context, slo) / LATE_ROOM, 1.0)
            context.notes[NOTE] = loads
        return context.notes[NOTE]

    def loads_within(self, context: SchedulingContext, slo: RequestSlo) -> FloatArray:
        """The same under any SLO, counted from now; 1 / batch limit where no capacity is known."""
        record, state, role = context.record, context.state, context.role
        tokens, output = record.request.input_tokens, record.expected_output
        asked = LoadQuery(input_tokens=tokens, output_tokens=output, role=role, slo=slo)
        out = np.full(len(context.slots), 1.0 / state.rules.max_batch_size)
        table = self._table(state)
        for kind, gpu_type in state.fleet.kinds(role).items():
            among = Candidates(state.fleet.table, context.slots, context.cached_tokens, kind)
            table.fill(asked, gpu_type, among, out)
        return out

    def _table(self, state: RoutingState) -> CapacityTable:
        if self._known is None or self._known.profiles is not state.profiles:
            self._known = _Known(state.profiles, capacity_table(state.profiles, state.rules))
        known: _Known = self._known
        return known.table


@dataclass(slots=True, kw_only=True)
class LeastPatternLoad(_Loads):
    """`least-pattern-load`: 1 / (1 + load there + new), the load of `capacity-filter`.

    The newcomer's own part counts, as in the queue simulator: it is less on a faster GPU type, and where a
    part of its prompt is cached.
    """

    def score(self, context: SchedulingContext) -> FloatArray:
        """In (0, 1]; 0 where it never fits."""
        score: FloatArray = 1.0 / (1.0 + context.column(FleetRow.LOAD) + self.loads(context))
        return score


@dataclass(slots=True, kw_only=True)
class CapacityFilter(_Loads):
    """`capacity-filter`: AIBrix's pull; only replicas with room for the request.

        keep ⟺ load + new <= 1,   new = 1 / Capacity(own lengths, cached tokens, GPU type, role, SLO left)

    The load is the sum over the requests there that this rule placed. A replica without anything there has
    room for any request of finite load: one that an idle replica would serve within its SLO. Where nothing is
    known (no profile), new = 1 / max_batch_size. A request without an SLO is held to the deployment's. None
    with room: the request waits, as long as an idle replica could still keep its SLO. None that ever had
    capacity: NO_CAPACITY, at once; none any more, since it has waited: NO_HEADROOM. Critical requests always
    fit an idle replica.
    """

    def keep(self, context: SchedulingContext) -> NDArray[np.bool_]:
        """bool[C]"""
        return room_for(context.state.fleet.table, context.slots, self.loads(context))

    def refusal(self, context: SchedulingContext) -> Refusal:
        """Waiting helps while an idle replica could keep the SLO."""
        role, slo, whole = context.role, context.record.slo, best_of_kinds(context)
        if not np.isinf(self.loads(whole)).all():
            return Refusal(
                reason=ShedReason.NO_HEADROOM,
                explain=lambda: f"no {role} replica has room",
                hopeful_until_s=_hopeful_until_s(context),
            )
        late = slo.given and not np.isinf(self.loads_within(whole, slo)).all()
        return Refusal(
            reason=ShedReason.NO_HEADROOM if late else ShedReason.NO_CAPACITY,
            explain=lambda: f"no {role} replica {'can keep' if late else 'keeps'} its SLO, were it idle",
            hopeful_until_s=-inf,
        )


def best_of_kinds(context: SchedulingContext) -> SchedulingContext:
    """Of each kind of replica of the role one with most of the prompt cached: no other has a lower load."""
    whole = context.about(context.role)
    return whole.part(most_cached(context.state.fleet.table, whole.slots, whole.cached_tokens))


def _hopeful_until_s(context: SchedulingContext) -> float:
    """The time until which an idle replica could keep a request's SLO; infinite for critical ones, and where
    a replica without surfaces may, of which that is not known."""
    kinds = {kind for role in context.state.roles for kind in context.state.fleet.ready_kinds(role)}
    if context.record.request.critical or min(kinds, default=-1) < 0:
        return inf
    return context.hopeful_until_s


@compiled
def room_for(table: FloatArray, slots: SlotArray, new: FloatArray) -> NDArray[np.bool_]:
    """Where loads of `new` fit beside those there, bool[C]; any finite one where nothing is."""
    out = np.empty(len(slots), dtype=np.bool_)
    for place in range(len(slots)):
        load = table[FleetRow.LOAD, slots[place]]
        out[place] = load + new[place] <= 1.0 + ROUNDING or (load == 0.0 and new[place] < np.inf)
    return out


@compiled
def most_cached(table: FloatArray, slots: SlotArray, cached: FloatArray) -> SlotArray:
    """For each kind of replica the place of the one with most in `cached`, of equals the first."""
    found, places = 0, np.empty(len(slots), dtype=np.int64)
    for place in range(len(slots)):
        known, kind = found, table[FleetRow.KIND, slots[place]]
        for other in range(found):
            if table[FleetRow.KIND, slots[places[other]]] == kind:
                known = other
                break
        if known == found or cached[place] > cached[places[known]]:
            places[known] = place
            found += known == found
    return places[:found]
