"""`slo-scorer`: only replicas that keep every SLO there, and among them by headroom (the Gateway API's).

For a newcomer with SLOs (S_t, S_p) that has waited w, at a replica whose tightest running TPOT SLO is s;
TTFT and TPOT are `forecast`'s, times a safety factor that follows the live errors:

    TTFT headroom   h_t = S_t − w − TTFT
    TPOT headroom   h_p = min(S_p − TPOT, s − TPOT of those running once the newcomer is there)
    valid           h_t >= 0 and h_p >= 0; or none is there, and the prediction itself, without safety, is
                    within the SLOs: what an idle replica cannot keep is lost
    x_t, x_p        how far h_t, h_p lie below the most among the valid, in [0, 1] of their range (or of
                    2 % of the SLO, whichever is more)
    score           1 − a x_t − (1 − a) x_p, a = TTFT_WEIGHT; an SLO that is not given leaves its weight
    none is valid   where it may go all the same is in `judge`; the score is then 1 / (1 + what is missing,
                    relative to the SLOs, same weights), of others where its own are lost

Candidates without a prediction are dropped where others have one; where none has, the request goes to the
fallback profile. What follows where no demand is met, and patience, are in docs/routing.md.
"""

from dataclasses import dataclass
from math import inf
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from headway.config import Role
from headway.routing.decide.context import Refusal, SchedulingContext
from headway.routing.decide.headroom import SloTerms, harmless, judge, nearest_of
from headway.routing.decide.judge import places, reserve
from headway.routing.decide.lora_affinity import LoraAffinityScorer
from headway.routing.decide.overruling import overruled
from headway.routing.fleet.table import FloatArray
from headway.routing.predict.corrections import FIRST_SAFETY
from headway.routing.queue.heads import RequestClass
from headway.routing.types import ShedReason

NOTE = "slo-scorer"

ADAPTERS, LEAST_LOADED = LoraAffinityScorer(), 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class SloScorer:
    """Judges candidates by predicted latency."""

    uses_predictions: ClassVar[bool] = True
    records_outcomes: ClassVar[bool] = True
    judges_held: ClassVar[bool] = True

    def keep(self, context: SchedulingContext) -> NDArray[np.bool_] | None:
        """The candidates that may take the request, bool[C]; see `judge`."""
        record = context.record
        if record.request.critical and context.role is not Role.PREFILL and not record.counted:
            record.counted = True
            context.state.latency.critical.seen(context.now_s)
        record.refused = False
        terms = _terms(context)
        context.notes[NOTE] = verdict = _verdict(context, terms)
        valid: NDArray[np.bool_] = verdict > 0.0
        if context.partial or np.count_nonzero(valid):
            return valid
        # What was learnt of replicas was learnt of other predictions than those that are supposed.
        supposed = terms._replace(safety=FIRST_SAFETY, caution=0.0)
        if (place := overruled(context, lambda rows: _verdict(context, supposed, rows))) is not None:
            record.refused = True
            context.notes[NOTE] = np.ones(len(verdict))
            probe: NDArray[np.bool_] = np.arange(len(verdict)) == place
            return probe
        if RequestClass.of(record.request) is RequestClass.NAMES_SLO or not _is_lost(context):
            return valid
        if not (usable := np.isfinite(verdict)).any():
            return valid
        # It is served although its SLO is lost.
        record.refused = True
        verdict = _verdict(context, terms._replace(least_harm=True))
        context.notes[NOTE] = 1.0 / (1.0 - np.minimum(verdict, 0.0))
        table = context.state.fleet.table
        free: NDArray[np.bool_] = usable & harmless(context.forecast, table, context.slots, tuple(terms))
        if record.overdue and not free.any():
            replicas = map(context.state.fleet.at, context.slots.tolist())
            return usable & np.array([each.taken >= each.overdue_from for each in replicas], dtype=np.bool_)
        return free

    def score(self, context: SchedulingContext) -> FloatArray:
        """f8[C] in (0, 1]; where the request's adapter is not loaded, a fraction."""
        score = context.notes[NOTE]
        if not context.record.request.adapter:
            return score
        loaded: FloatArray = LEAST_LOADED + (1.0 - LEAST_LOADED) * ADAPTERS.score(context)
        return score * loaded

    def refusal(self, context: SchedulingContext) -> Refusal:
        """The reason that none stays: nothing to judge by, or no headroom; and if waiting may help."""
        record, rows, table = context.record, context.forecast, context.state.fleet.table
        # One that may miss its SLO has found no room here: for it the next role does not matter.
        wait_s = 0.0 if _is_lost(context) else context.next_wait_s
        figures = tuple(_terms(context))
        (nearest, blocked, of_next, late_s), least_s = nearest_of(rows, table, context.slots, figures, wait_s)
        best_ttft_s, best_tpot_s, tightest_s = least_s
        if best_ttft_s == inf:
            return Refusal(reason=ShedReason.NO_HEADROOM, explain=lambda: "no prediction", unjudged=True)
        # Figures, not the context: thousands are held, and for long, while replicas come and go.
        role, candidates, tpot_slo_s = context.role, len(context.slots), record.slo.tpot_s
        left_s = record.slo.ttft_s - context.waited_s
        return Refusal(
            reason=ShedReason.NO_HEADROOM,
            explain=lambda: (
                f"{candidates} {role} replicas: TTFT at least {_ms(best_ttft_s)} with "
                f"{_ms(max(left_s, 0.0))} left, TPOT at least {_ms(best_tpot_s)} for {_ms(tpot_slo_s)}, "
                f"tightest running {_ms(tightest_s)}"
            ),
            hopeful_until_s=context.hopeful_until_s,
            retry_after_s=min(max(best_ttft_s - left_s, 1.0), 60.0),
            nearest=nearest,
            blocked_at=blocked,
            of_next=of_next,
            late_s=late_s,
        )


def _terms(context: SchedulingContext) -> SloTerms:
    record, state = context.record, context.state
    # The critical requests may all be those of a tenant that has had more than its share.
    keeps_room = not record.request.critical and not _in_turn(context)
    return SloTerms(
        ttft_s=record.slo.ttft_s,
        left_s=record.slo.ttft_s - context.waited_s,
        tpot_s=record.slo.tpot_s if context.role is not Role.PREFILL else inf,
        chunk_tokens=float(state.rules.chunk_tokens),
        max_batch=places(state, context.role),
        caution=state.latency.evidence.freshness.weight,
        now_s=context.now_s,
        reserve=reserve(state, context.now_s, context.role) if keeps_room else 0.0,
    )


def _verdict(context: SchedulingContext, terms: SloTerms, rows: FloatArray | None = None) -> FloatArray:
    """What `headroom.judge` says of the candidates by the forecast, or by other `rows`."""
    rows = context.forecast if rows is None else rows
    return judge(rows, context.state.fleet.table, context.slots, tuple(terms))


def _is_lost(context: SchedulingContext) -> bool:
    """True if not even an idle replica keeps the SLO, or the request may wait no longer."""
    record, (ttft_s, tpot_s) = context.record, context.alone_s
    late = ttft_s > record.slo.ttft_s - context.waited_s
    return record.overdue or late or tpot_s > record.slo.tpot_s


def _in_turn(context: SchedulingContext) -> bool:
    """True if its tenant is one of several, and none of those that others go before."""
    shares, tenant = context.state.shares, context.record.request.tenant
    return shares.others(tenant) and not shares.ahead(tenant)


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
