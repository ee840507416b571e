"""`slo-scorer`: only replicas that keep every SLO there, and among them by headroom (the Gateway API's).

For a newcomer with SLOs (S_t, S_p) that has waited w, at a replica whose tightest running TPOT SLO is s;
TTFT and TPOT are `forecast`'s, times a safety factor that follows the live errors:

    TTFT headroom   h_t = S_t − w − TTFT
    TPOT headroom   h_p = min(S_p − TPOT, s − TPOT of those running once the newcomer is there)
    queued          what the newcomer delays them by is within their least slack
    valid           h_t >= 0, h_p >= 0 and the queued keep theirs; or none is there, and the prediction
                    itself, without safety, is within the SLOs: what an idle replica cannot keep is lost
    x_t, x_p        how far h_t, h_p lie below the most among the valid, in [0, 1] of their range (or of
                    2 % of the SLO, whichever is more)
    share           1 − a x_t − (1 − a) x_p, a = `ttft_weight`; an SLO that is not given leaves its weight
    score           0.7 share + 0.3 likeness, likeness = min(S_p, s) / max(S_p, s)
    none is valid   what the request may demand instead is in `judge.DEMANDS`; the score is then
                    1 / (1 + what is missing, relative to the SLOs, same weights), of others where its own are
                    lost

Room for critical requests (`demand`): where a request that is not critical is to be valid, h_p must also bear
z √(λ τ) / R sequences more, each of which adds as much as those there do on average, (TPOT' − ITL(1)) / n.

Candidates without a prediction are dropped where others have one; where none has, the request goes to the
fallback profile. What follows where no demand is met, and patience, are in docs/routing.md. Parameters left
null are those of `routing.slo`.
"""

from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from headway.config import Role
from headway.config.routing import RoutingSettings
from headway.routing.decide.context import Refusal, RoutingState, SchedulingContext
from headway.routing.decide.headroom import CHUNKS, LEAST, SloTerms, judge, nearest_of
from headway.routing.decide.judge import (
    DEMANDS,
    HARMLESS_SHARE,
    Demand,
    HeldTerms,
    Situation,
    between_s,
    fitting,
)
from headway.routing.decide.lora_affinity import LoraAffinityScorer
from headway.routing.decide.overruling import overruled
from headway.routing.fleet.table import ROLE_CODES, FleetRow, FloatArray, SlotArray
from headway.routing.predict.corrections import FIRST_SAFETY
from headway.routing.predict.forecast import ForecastRow
from headway.routing.queue.heads import Marks, RequestClass
from headway.routing.queue.held_lines import CRITICAL_PATIENCE
from headway.routing.types import RouteRequest, ShedReason

Share = Annotated[float, Field(ge=0.0, le=1.0)]

NOTE = "slo-scorer"

NONE_OF_FEW = Refusal(reason=ShedReason.NO_HEADROOM, explain=lambda: "all are asked next")

ADAPTERS, LEAST_LOADED = LoraAffinityScorer(), 0.05


@dataclass(slots=True, kw_only=True)
class SloScorer:
    """Judges candidates by predicted latency."""

    uses_predictions: ClassVar[bool] = True
    records_outcomes: ClassVar[bool] = True

    ttft_weight: Share | None = None
    patient: bool = True

    def with_settings(self, routing: RoutingSettings) -> "SloScorer":
        """Parameters that are null filled from `routing.slo`."""
        settings = routing.slo
        weight = settings.ttft_weight if self.ttft_weight is None else self.ttft_weight
        return replace(self, patient=self.patient and settings.hold, ttft_weight=weight)

    def keep(self, context: SchedulingContext) -> NDArray[np.bool_] | None:
        """The candidates that meet the first of the request's demands that any meets, bool[C]."""
        _count(context)
        record = context.record
        record.refused = False
        context.notes[NOTE] = verdict = self._judged(context)
        valid: NDArray[np.bool_] = verdict > 0.0
        if context.partial or valid.any():
            return valid
        demands = self._demands(context)
        if Demand.AS_PREDICTED in demands:
            context.notes[NOTE] = verdict = self._judged(context, nominal=True)
            if (valid := verdict > 0.0).any():
                return valid
        if (place := overruled(context, partial(self._judged, context))) is not None:
            record.refused = True
            context.notes[NOTE] = np.ones(len(verdict))
            probe: NDArray[np.bool_] = np.arange(len(verdict)) == place
            return probe
        usable = np.isfinite(verdict)
        if usable.any() and demands & (Demand.HARMLESS | Demand.ANYWHERE):
            return self._least_bad(context, demands, verdict, usable)
        return valid

    def fitting(  # noqa: PLR0917 - as its protocol
        self,
        state: RoutingState,
        now_s: float,
        heads: FloatArray,
        role: int,
        slots: SlotArray,
        open_lines: Marks,
    ) -> Marks:
        """The open lines but for those for whose heads none of `slots` meets a demand; see `judge`."""
        if not self.patient:
            return open_lines.copy()
        latency, of_role = state.latency, state.roles[role]
        count, (transfer_s, transfer_s_per_token) = (
            len(state.fleet.ready(of_role)),
            between_s(state, now_s, role),
        )
        stay_s, others_stay_s = latency.stays.both
        terms = HeldTerms(
            now_s=now_s,
            stay_s=stay_s,
            others_stay_s=others_stay_s,
            role=role,
            role_code=ROLE_CODES[of_role],
            ttft_weight=self.ttft_weight or 0.0,
            caution=latency.evidence.freshness.weight,
            reserve=0.0 if of_role is Role.PREFILL else latency.critical.room(now_s, stay_s, max(count, 1)),
            some=len(slots) < count,
            several=state.shares.several,
            transfer_s=transfer_s,
            transfer_s_per_token=transfer_s_per_token,
        )
        return fitting(state, heads, slots, terms, open_lines)

    def score(self, context: SchedulingContext) -> FloatArray:
        """f8[C] in (0, 1]; where the request's adapter is not loaded, a fraction."""
        score = context.notes[NOTE]
        if not context.record.request.adapter:
            return score
        loaded: FloatArray = LEAST_LOADED + (1.0 - LEAST_LOADED) * ADAPTERS.score(context)
        return score * loaded

    def refusal(self, context: SchedulingContext) -> Refusal:
        """The reason that none stays: nothing to judge by, or no headroom."""
        if context.partial:
            return NONE_OF_FEW
        if not np.isfinite(context.forecast[ForecastRow.TTFT_S]).any():
            return Refusal(reason=ShedReason.NO_HEADROOM, explain=lambda: "no prediction", unjudged=True)
        # One that may miss its SLO has found no room here: for it the next role does not matter.
        wait_s = context.next_wait_s if self._situation(context) is Situation.HOPEFUL else 0.0
        nominal = Demand.AS_PREDICTED in self._demands(context)
        figures = tuple(self._terms(context, nominal=nominal))
        table = context.state.fleet.table
        nearest, blocked, of_next = nearest_of(context.forecast, table, context.slots, figures, wait_s)
        return replace(no_headroom(context), nearest=nearest, blocked_at=blocked, of_next=of_next)

    def _least_bad(
        self,
        context: SchedulingContext,
        demands: Demand,
        verdict: FloatArray,
        usable: NDArray[np.bool_],
    ) -> NDArray[np.bool_]:
        """The candidates of a request that may miss its SLO: those that meet HARMLESS, ROOM or ANYWHERE."""
        context.record.refused = True
        if self._situation(context) is not Situation.HOPEFUL:
            verdict = self._judged(context, least_harm=True)
        context.notes[NOTE] = 1.0 / (1.0 - np.minimum(verdict, 0.0))
        if Demand.ANYWHERE in demands:
            return usable
        room: NDArray[np.bool_] = usable & has_room(context)
        harm = -verdict - LEAST - 0.01 * context.forecast[ForecastRow.TTFT_S]
        harmless: NDArray[np.bool_] = room & (harm <= HARMLESS_SHARE)
        one_at_a_time: NDArray[np.bool_] = context.column(FleetRow.FORCED) == 0.0
        if Demand.ROOM in demands and not (context.narrow or harmless.any()):
            return room & one_at_a_time
        return harmless & one_at_a_time if context.record.yields else harmless

    def _demands(self, context: SchedulingContext) -> Demand:
        """What the request may demand of a replica now; without patience it goes anywhere before it waits."""
        of_class = RequestClass.of(context.record.request)
        if of_class is RequestClass.CRITICAL and context.state.shares.several:
            of_class = RequestClass.CRITICAL_AMONG_TENANTS
        demands = Demand(int(DEMANDS[of_class, self._situation(context)]))
        anywhere = not self.patient and of_class is not RequestClass.NAMES_SLO
        return demands | Demand.ANYWHERE if anywhere else demands

    def _situation(self, context: SchedulingContext) -> Situation:
        record, slo = context.record, context.record.slo
        ttft_s, tpot_s = context.alone_s
        if record.forced:
            return Situation.FORCED
        if ttft_s > slo.ttft_s - context.waited_s or tpot_s > slo.tpot_s:
            return Situation.LOST
        # A forecast that says no may be too careful, above all of when KV becomes free.
        long = CRITICAL_PATIENCE * (slo.ttft_s - ttft_s) < context.waited_s
        late = self.patient and record.request.critical and long
        return Situation.LATE if late else Situation.HOPEFUL

    def _judged(
        self,
        context: SchedulingContext,
        *,
        least_harm: bool = False,
        nominal: bool = False,
        rows: FloatArray | None = None,
    ) -> FloatArray:
        terms = self._terms(context, least_harm=least_harm, nominal=nominal, supposed=rows is not None)
        rows = context.forecast if rows is None else rows
        return judge(rows, context.state.fleet.table, context.slots, tuple(terms))

    def _terms(
        self,
        context: SchedulingContext,
        *,
        least_harm: bool = False,
        nominal: bool = False,
        supposed: bool = False,
    ) -> SloTerms:
        record = context.record
        reserve, first_itl_s = _reserve(context)
        # What was learnt of replicas was learnt of other predictions than those that are supposed.
        caution = 0.0 if nominal or supposed else context.state.latency.evidence.freshness.weight
        return SloTerms(
            ttft_s=record.slo.ttft_s,
            left_s=record.slo.ttft_s - context.waited_s,
            tpot_s=record.slo.tpot_s if context.role is not Role.PREFILL else inf,
            ttft_weight=self.ttft_weight or 0.0,
            chunk_tokens=float(context.state.rules.chunk_tokens),
            safety=FIRST_SAFETY if supposed else 1.0,
            caution=caution,
            least_harm=least_harm,
            patient=self.patient and not record.request.critical and context.role is not Role.DECODE,
            reserve=reserve,
            first_itl_s=first_itl_s,
        )


def has_room(context: SchedulingContext) -> NDArray[np.bool_]:
    """Candidates that begin a prompt at once, or nearly so, bool[C]; all of those that only decode."""
    if context.role is Role.DECODE:
        return np.ones(len(context.slots), dtype=np.bool_)
    few = context.column(FleetRow.PREFILL_TOKENS) <= CHUNKS * context.state.rules.chunk_tokens
    room: NDArray[np.bool_] = few | (context.column(FleetRow.WAITING) == 0.0)
    return room


def _count(context: SchedulingContext) -> None:
    """Count the demand, once for each request."""
    record, latency, now_s = context.record, context.state.latency, context.now_s
    if context.role is Role.PREFILL or record.counted:
        return
    record.counted = True
    if record.request.critical:
        latency.critical.seen(now_s)


def _reserve(context: SchedulingContext) -> tuple[float, float]:
    """The sequences that are to find room after this request, and the ITL of one alone."""
    record, latency = context.record, context.state.latency
    if record.request.critical or context.role is Role.PREFILL:
        return 0.0, 0.0
    if context.state.shares.in_turn(record.request.tenant):
        # The critical requests may all be those of one that has had more than its share.
        return 0.0, 0.0
    replicas = len(context.state.fleet.ready(context.role))
    reserve = latency.critical.room(context.now_s, latency.stay_s, replicas)
    if reserve == 0.0:
        return 0.0, 0.0
    # The profile of the first candidate stands for the fleet.
    kind = int(context.state.fleet.table[FleetRow.KIND, context.slots[0]])
    return reserve, latency.shared_tpot_s(kind, 1.0, record.mean_tokens, 0.0)


def no_headroom(context: SchedulingContext) -> Refusal:
    """The refusal for want of headroom: what is missing, and until when waiting may help."""
    record, rows = context.record, context.forecast
    best_ttft_s = float(np.fmin.reduce(rows[ForecastRow.TTFT_S]))
    left_s = record.slo.ttft_s - context.waited_s
    # Figures, not the context: thousands are held, and for long, while replicas come and go.
    role, candidates, tpot_slo_s = context.role, len(context.slots), record.slo.tpot_s
    best_tpot_s = float(np.fmin.reduce(rows[ForecastRow.TPOT_S]))
    tightest_s = float(context.column(FleetRow.TPOT_SLO_S).min())
    return Refusal(
        reason=ShedReason.NO_HEADROOM,
        explain=lambda: (
            f"{candidates} {role} replicas: TTFT at least {_ms(best_ttft_s)} with "
            f"{_ms(max(left_s, 0.0))} left, TPOT at least {_ms(best_tpot_s)} for {_ms(tpot_slo_s)}, "
            f"tightest running {_ms(tightest_s)}"
        ),
        hopeful_until_s=context.hopeful_until_s,
        retry_after_s=min(max(best_ttft_s - left_s, 1.0), 60.0),
    )


def _ms(seconds: float) -> str:
    """In milliseconds, whole or to three digits."""
    milliseconds = seconds * 1e3
    return "no limit" if seconds == inf else f"{milliseconds:{'.0f' if milliseconds >= 100.0 else '.3g'}} ms"


@dataclass(frozen=True, slots=True, kw_only=True)
class SloRequestTracker:
    """`slo-request-tracker`: pairs predictions with outcomes; it neither filters nor scores.

    The router predicts the latency of each request that the profile places, and turns features and prediction
    into a training sample when the request is done. Without a usable prediction nothing is tracked.
    """

    records_outcomes: ClassVar[bool] = True


@dataclass(frozen=True, slots=True, kw_only=True)
class SloAwareProfileHandler:
    """`slo-aware-profile-handler`: requests that ask for prediction-based scheduling go by `prediction`.

    All others go by `routing.profile`. It stands in no profile; one of the settings replaces the built-in.
    """

    prediction: str = "slo"

    def profile(self, request: RouteRequest, default: str) -> str:
        """The name of the request's profile."""
        return self.prediction if request.prediction_based else default
