"""`slo-scorer`: only replicas that keep everybody's SLO, and among them by headroom (document 002).

For a newcomer with SLOs (S_t, S_p) that has waited w, at a replica whose tightest running TPOT SLO is s;
TTFT and TPOT are `forecast`'s, times a safety factor that follows the live errors (`calibration`), or 1 +
`margin`:

    TTFT headroom   h_t = S_t − w − TTFT
    TPOT headroom   h_p = min(S_p − TPOT, s − TPOT of those running once the newcomer is there)
    queued          what the newcomer delays them by is within their least slack
    valid           h_t >= 0, h_p >= 0 and the queued keep theirs; or nobody is there, and the prediction
                    itself, without safety, is within the SLOs: what an idle replica cannot keep is lost
    x_t, x_p        how far h_t, h_p lie below the most among the valid, in [0, 1] of their range (or of
                    2 % of the SLO, whichever is more)
    share           1 − a x_t − (1 − a) x_p, a = `ttft_weight`; an SLO that is not given leaves its weight
    strategy        highest: the share; lowest: 1 − share
    score           (1 − b) that + b · likeness, b = `likeness_weight`, likeness = min(S_p, s) / max(S_p, s):
                    the tightest request sets what a replica can bear, so like keeps with like

Room for critical requests (`demand`): where a request that is not critical is to be valid, h_p must also bear
z √(λ τ) / R sequences more, each of which adds as much as those there do on average, (TPOT' − ITL(1)) / n.
A TPOT SLO that the whole fleet could not keep for critical requests alone binds no other: s is infinite then.

Invalid replicas are dropped. `patient`: a request that is not critical also passes by replicas that have a
prompt to compute already (or two chunks of prompt tokens), unless it would be served sooner there than
at any that has none. Engines serve in order of arrival; what the router still holds can be overtaken by what
is more urgent, what it has handed out cannot. Without `routing.slo.hold` nobody is patient.

None valid:
    critical        all stay; score = 1 / (1 + what is missing, relative to the SLOs, same weights). If no
                    idle replica could keep its SLO either, or its TPOT SLO is lost to the fleet, only what
                    others lose counts: least harm.
    otherwise       NO_HEADROOM; waiting may help until S_t − w falls below TTFT on an idle replica, and never
                    if not even that suffices.
A share `exploration` of requests draws among all candidates alike, for the sake of training. Candidates
without a prediction are dropped where others have one; where none has, the request goes to the fallback
profile. Parameters left null are those of `routing.slo`.
"""

from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from headway.config.roles import Role
from headway.config.routing import RoutingSettings
from headway.routing.context import Question, Refusal
from headway.routing.forecast import Row
from headway.routing.plugins.headroom import Promise, judge
from headway.routing.table import Column, FloatArray
from headway.routing.types import ShedReason

Share = Annotated[float, Field(ge=0.0, le=1.0)]

NOTE = "slo-scorer"


@dataclass(slots=True, kw_only=True)
class SloScorer:
    """Judges candidates by predicted latency."""

    uses_predictions: ClassVar[bool] = True
    records_outcomes: ClassVar[bool] = True

    strategy: Literal["lowest", "highest"] | None = None
    exploration: Share | None = None
    ttft_weight: Share | None = None
    likeness_weight: Share = 0.3
    margin: Share | None = None
    patient: bool = True

    def with_settings(self, routing: RoutingSettings) -> "SloScorer":
        """Parameters that are null filled from `routing.slo`."""
        settings = routing.slo
        return SloScorer(
            strategy=self.strategy or settings.strategy,
            exploration=settings.exploration if self.exploration is None else self.exploration,
            likeness_weight=self.likeness_weight,
            margin=self.margin,
            patient=self.patient and settings.hold,
            ttft_weight=settings.ttft_weight if self.ttft_weight is None else self.ttft_weight,
        )

    def keep(self, question: Question) -> NDArray[np.bool_] | None:
        """bool[C]; None for all."""
        _count(question)
        verdict = self._judged(question, least_harm=False)
        valid = verdict > 0.0
        if self.exploration and question.know.generator.random() < self.exploration:
            question.notes[NOTE] = np.ones(len(verdict))
            return np.isfinite(verdict)
        if np.count_nonzero(valid) or not question.record.request.critical:
            question.notes[NOTE] = verdict
            return valid
        usable = np.isfinite(verdict)
        if not usable.any():
            return usable
        if lost(question):
            verdict = self._judged(question, least_harm=True)
        question.notes[NOTE] = 1.0 / (1.0 - np.minimum(verdict, 0.0))
        return usable

    def score(self, question: Question) -> FloatArray:
        """f8[C] in (0, 1]."""
        return question.notes[NOTE]

    def refusal(self, question: Question) -> Refusal:
        """Why nobody stays: nothing to judge by, or no headroom."""
        if not np.isfinite(question.forecast[Row.TTFT_S]).any():
            return Refusal(reason=ShedReason.NO_HEADROOM, explain=lambda: "no prediction", unjudged=True)
        return no_headroom(question)

    def _judged(self, question: Question, *, least_harm: bool) -> FloatArray:
        record, latency, table = question.record, question.know.latency, question.know.fleet.table
        reserve, first_itl_s = _reserve(question)
        promise = Promise(
            ttft_s=record.slo.ttft_s,
            left_s=record.slo.ttft_s - question.waited_s,
            tpot_s=record.slo.tpot_s if question.role is not Role.PREFILL else inf,
            ttft_weight=self.ttft_weight or 0.0,
            likeness_weight=self.likeness_weight,
            ttft_safety=latency.ttft_safety.factor if self.margin is None else 1.0 + self.margin,
            tpot_safety=latency.tpot_safety.factor if self.margin is None else 1.0 + self.margin,
            chunk_tokens=float(question.know.rules.chunk_tokens),
            highest=self.strategy != "lowest",
            least_harm=least_harm,
            patient=self.patient and not record.request.critical and question.role is not Role.DECODE,
            reserve=reserve,
            first_itl_s=first_itl_s,
            void_s=latency.critical.void_s,
        )
        return judge(question.forecast, table, question.slots, tuple(promise))


def _count(question: Question) -> None:
    """Tell of the demand, once for each request."""
    record, latency, now_s = question.record, question.know.latency, question.now_s
    if question.role is Role.PREFILL:
        return
    if not record.request.critical:
        if question.waited_s <= 0.0:
            latency.critical.other(now_s)
        return
    work_s = float(question.forecast[Row.WORK_S, 0])
    output_tokens, work_s = float(record.expected_output), work_s if work_s < inf else 0.0
    latency.critical.seen(now_s, record.slo.tpot_s, output_tokens, record.mean_tokens, work_s)
    latency.critical.check(now_s, len(question.slots), partial(latency.shared_tpot_s, _kind(question)))


def _reserve(question: Question) -> tuple[float, float]:
    """The sequences that are to find room after this request, and the ITL of one alone."""
    record, latency = question.record, question.know.latency
    if record.request.critical or question.role is Role.PREFILL:
        return 0.0, 0.0
    reserve = latency.critical.room(question.now_s, latency.stay_s, len(question.slots))
    if reserve == 0.0:
        return 0.0, 0.0
    return reserve, latency.shared_tpot_s(_kind(question), 1.0, record.mean_tokens, 0.0)


def _kind(question: Question) -> int:
    """The profile of the first candidate: it stands for the fleet."""
    return int(question.know.fleet.table[Column.KIND, question.slots[0]])


def lost(question: Question) -> bool:
    """Whether not even an idle replica would keep the request's SLO any more, or the fleet its TPOT."""
    slo = question.record.slo
    if slo.tpot_s == question.know.latency.critical.void_s:
        return True
    ttft_s, tpot_s = question.alone_s
    return ttft_s > slo.ttft_s - question.waited_s or tpot_s > slo.tpot_s


def no_headroom(question: Question) -> Refusal:
    """What is missing, in words, and until when waiting may help."""
    record, rows = question.record, question.forecast
    best_ttft_s, left_s = float(np.nanmin(rows[Row.TTFT_S])), record.slo.ttft_s - question.waited_s
    return Refusal(
        reason=ShedReason.NO_HEADROOM,
        explain=lambda: _missing(question, best_ttft_s, left_s),
        hopeful_until_s=question.hopeful_until_s,
        retry_after_s=min(max(best_ttft_s - left_s, 1.0), 60.0),
    )


def _missing(question: Question, best_ttft_s: float, left_s: float) -> str:
    slo, best_tpot_s = question.record.slo, float(np.nanmin(question.forecast[Row.TPOT_S]))
    tightest_s = float(np.min(question.column(Column.TPOT_SLO_S)))
    return (
        f"{len(question.slots)} {question.role} replicas: TTFT at least {_ms(best_ttft_s)} with "
        f"{_ms(max(left_s, 0.0))} left, TPOT at least {_ms(best_tpot_s)} for {_ms(slo.tpot_s)}, "
        f"tightest running {_ms(tightest_s)}"
    )


def _ms(seconds: float) -> str:
    """In milliseconds, whole or to three digits."""
    milliseconds = seconds * 1e3
    return "no limit" if seconds == inf else f"{milliseconds:{'.0f' if milliseconds >= 100.0 else '.3g'}} ms"
