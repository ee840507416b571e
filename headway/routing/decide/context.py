"""A scheduling decision in the making: the candidates of one role for one request, and the chosen one.

`SchedulingContext` is what plugins look at, `RoutingState` what it reads from. Arrays that plugins share are
computed when the first asks for them and shrink with the candidates. C is the number of candidates.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf, nan
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headway.config import Role
from headway.engine.rules import EngineRules
from headway.routing.fleet.adapters import AdapterIndex
from headway.routing.fleet.affinity import PrefixIndex, Sessions
from headway.routing.fleet.fleet import RoutedFleet
from headway.routing.fleet.gpu_profiles import GpuProfile
from headway.routing.fleet.records import Record, Replica, Sample
from headway.routing.fleet.table import ROLE_CODES, FleetRow, FloatArray, SlotArray
from headway.routing.predict.corrections import Handovers
from headway.routing.predict.forecast import ForecastRow, features_of
from headway.routing.predict.latency import LatencyForecaster
from headway.routing.predict.reports import EngineReports
from headway.routing.queue.fair_shares import TenantShares
from headway.routing.types import RequestSlo, ShedReason

TTFT_S, TPOT_S = int(ForecastRow.TTFT_S), int(ForecastRow.TPOT_S)
WORK_S, ITERATION_S = int(ForecastRow.WORK_S), int(ForecastRow.ITERATION_S)
QUEUE_S = int(ForecastRow.QUEUE_S)


@dataclass(slots=True, kw_only=True)
class RoutingState:
    """All that a router goes by.

    `roles` are those that a request passes; `slo` is the deployment's now; `profiles` by GPU type.
    """

    roles: tuple[Role, ...]
    fleet: RoutedFleet
    reports: EngineReports
    rules: EngineRules
    prefixes: PrefixIndex
    sessions: Sessions
    adapters: AdapterIndex
    latency: LatencyForecaster
    handovers: Handovers
    profiles: Mapping[str, GpuProfile]
    shares: TenantShares
    slo: RequestSlo
    generator: np.random.Generator


class Refusal(NamedTuple):
    """No candidate is left: the reason, and `explain()` in words, which few callers need.

    Waiting may help until `hopeful_until_s`, −inf if it never does. `unjudged`: nothing is wrong with the
    request, but there is no prediction to judge by. `role` is the place among the deployment's roles of the
    one without a candidate. `nearest` is the slot that lacks least for the request, `blocked_at` one that
    only the SLOs of those that run there keep closed; −1 for none. `of_next`: there would be one if the next
    role had room at once. `late_s`: one that is due so much later would have a candidate.
    """

    reason: ShedReason
    explain: Callable[[], str]
    hopeful_until_s: float = inf
    retry_after_s: float = 1.0
    unjudged: bool = False
    role: int = 0
    nearest: int = -1
    blocked_at: int = -1
    late_s: float = inf
    of_next: bool = False


class SchedulingContext:
    """The candidates of one role for one request. Lives as long as the decision.

    `slots` are the candidates' columns of the fleet's table. `further_s` comes on top of this role's part of
    TTFT, `next_wait_s` of it because the next role has no room yet. Plugins keep arrays of their own in
    `notes` from one step to the next, by name. `partial`: there are more candidates, which are asked where
    none of these may take the request.
    """

    __slots__ = (
        "_cached",
        "_forecast",
        "_prior",
        "further_s",
        "next_wait_s",
        "notes",
        "now_s",
        "partial",
        "record",
        "role",
        "slots",
        "state",
    )

    def __init__(self, state: RoutingState, now_s: float, record: Record, role: Role) -> None:
        self.state, self.now_s, self.record, self.role = state, now_s, record, role
        self.slots: SlotArray = state.fleet.ready(role)
        self.further_s, self.next_wait_s, self.partial = 0.0, 0.0, False
        self.notes: dict[str, FloatArray] = {}
        self._cached: FloatArray | None = None
        self._prior: FloatArray | None = None
        self._forecast: FloatArray | None = None

    @property
    def waited_s(self) -> float:
        """Seconds since the request arrived."""
        return self.now_s - self.record.request.arrival_s

    @property
    def cached_tokens(self) -> FloatArray:
        """Leading prompt tokens that each candidate is thought to hold, f8[C]; at least one is computed.

        Decode replicas compute no prompt and hold none.
        """
        if self._cached is None:
            self._cached = self._cached_now()
        return self._cached

    @property
    def forecasted(self) -> bool:
        """True once the forecast has been asked for."""
        return self._forecast is not None

    @property
    def prior(self) -> FloatArray:
        """This role's part of TTFT, TPOT and their parts by the profile, f8[len(ForecastRow), C]."""
        if self._prior is None:
            self._prior = self.state.latency.rows(self, self.state.fleet.table)
        return self._prior

    @property
    def forecast(self) -> FloatArray:
        """The same with `further_s` in TTFT, and corrected by what was learned."""
        if self._forecast is None:
            self._forecast = self.state.latency.corrected(self, self.prior, self.state.fleet.table)
        return self._forecast

    @property
    def alone_s(self) -> tuple[float, float]:
        """TTFT and TPOT if all replicas were idle; infinite where no ready replica has a profile.

        For a held request, as it was when first asked.
        """
        record, state = self.record, self.state
        if record.alone_s is None:
            ttft_s, tpot_s = self.between_s(), 0.0
            for role in state.roles:
                part_s, tpot_s = state.latency.alone_s(self.about(role), state.fleet.ready_kinds(role))
                ttft_s += part_s
            record.alone_s = ttft_s, tpot_s
        return record.alone_s

    @property
    def hopeful_until_s(self) -> float:
        """The time until which waiting may help: an idle replica could keep the SLO; −inf if none can now."""
        record, (ttft_s, tpot_s) = self.record, self.alone_s
        start_by_s = record.request.arrival_s + record.slo.ttft_s - ttft_s
        return start_by_s if tpot_s <= record.slo.tpot_s and self.now_s <= start_by_s else -inf

    def column(self, row: FleetRow) -> FloatArray:
        """One quantity of all candidates, a copy, f8[C]."""
        values: FloatArray = self.state.fleet.table[row].take(self.slots)
        return values

    def about(self, role: Role, slots: SlotArray | None = None) -> "SchedulingContext":
        """A context of the same request in `role`, of all candidates or those in `slots`."""
        other = SchedulingContext(self.state, self.now_s, self.record, role)
        if slots is not None:
            other.slots = slots
        if role is self.role:
            other.further_s, other.next_wait_s = self.further_s, self.next_wait_s
        return other

    def part(self, places: SlotArray) -> "SchedulingContext":
        """The context of the candidates in these places, before a forecast was asked for."""
        other = self.about(self.role, self.slots)
        other._cached, other.notes = self._cached, self.notes
        other._take(places)
        return other

    def restrict(self, keep: NDArray[np.bool_]) -> None:
        """Go on with those that `keep` marks."""
        self._take(keep.nonzero()[0])

    def _take(self, kept: SlotArray) -> None:
        self.slots = self.slots.take(kept)
        if self._cached is not None:
            self._cached = self._cached.take(kept)
        if self._prior is not None:
            # Without corrections both are one array, which stays one.
            same = self._forecast is self._prior
            self._prior = self._prior.take(kept, axis=1)
            self._forecast = self._prior if same else self._forecast
        if self._forecast is not None and self._forecast is not self._prior:
            self._forecast = self._forecast.take(kept, axis=1)
        self.notes = {name: values.take(kept) for name, values in self.notes.items()}

    def between_s(self) -> float:
        """Seconds of the KV transfer between two roles."""
        roles, request = self.state.roles, self.record.request
        return self.state.rules.transfer_s(request.input_tokens) if len(roles) > 1 else 0.0

    def _cached_now(self) -> FloatArray:
        request, prefixes = self.record.request, self.state.prefixes
        if self.role is Role.DECODE:
            return np.zeros(len(self.slots))
        most = request.input_tokens - 1
        if len(self.slots) == 1:
            run = prefixes.run_at(int(self.slots[0]), request.blocks)
            return np.array([float(min(run * request.block_tokens, most))])
        tokens = prefixes.runs(request.blocks, self.state.fleet.slots, request.block_tokens, most)
        return np.zeros(len(self.slots)) if tokens is None else tokens.take(self.slots)


@dataclass(slots=True, kw_only=True)
class ChosenReplica:
    """The replica for one role of one request, its figures as plain numbers.

    `ttft_s` and `tpot_s` are predicted, NaN without a profile.
    """

    replica: Replica
    cached_tokens: float
    ttft_s: float
    tpot_s: float
    work_s: float
    iteration_s: float
    queue_s: float
    prior_ttft_s: float
    prior_tpot_s: float
    context: SchedulingContext

    @property
    def missing_tokens(self) -> float:
        """Prompt tokens that the replica has not cached."""
        return self.context.record.request.input_tokens - self.cached_tokens

    def busy_s(self) -> float:
        """Seconds that the prompt keeps the replica busy, which packs prompts into iterations."""
        chunk = self.context.state.rules.chunk_tokens
        return self.work_s + self.iteration_s * (self.missing_tokens / chunk if chunk else 1.0)

    def tracked(self) -> tuple[Sample, ...]:
        """The prediction to learn from; nothing without one."""
        if not self.ttft_s < inf:
            return ()
        context, role, slot = self.context, self.context.role, self.replica.slot
        input_tokens = float(context.record.request.input_tokens)
        row = Sample(
            features=features_of(
                ROLE_CODES[role], context.state.fleet.table, slot, self.cached_tokens, input_tokens
            ),
            prior_ttft_s=nan if role is Role.DECODE else self.prior_ttft_s,
            prior_tpot_s=nan if role is Role.PREFILL else self.prior_tpot_s,
            ttft_s=nan if role is Role.PREFILL else self.ttft_s,
            tpot_s=nan if role is Role.PREFILL else self.tpot_s,
        )
        return (row,)


def choose_replica(context: SchedulingContext, position: int) -> ChosenReplica:
    """The candidate at `position`. Where no forecast was asked for yet, only its own is computed."""
    replica = context.state.fleet.at(int(context.slots[position]))
    if not context.forecasted:
        context, position = context.part(np.array([position])), 0
    rows = context.forecast[:, position].tolist()
    prior = rows if context.forecast is context.prior else context.prior[:, position].tolist()
    known = rows[WORK_S] < inf
    return ChosenReplica(
        replica=replica,
        cached_tokens=float(context.cached_tokens[position]),
        ttft_s=rows[TTFT_S],
        tpot_s=rows[TPOT_S],
        work_s=rows[WORK_S] if known else 0.0,
        iteration_s=rows[ITERATION_S] if known else 0.0,
        queue_s=rows[QUEUE_S],
        prior_ttft_s=prior[TTFT_S] if prior is rows else prior[TTFT_S] + context.further_s,
        prior_tpot_s=prior[TPOT_S],
        context=context,
    )
