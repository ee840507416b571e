"""Elastic prefill offload in a mixed pool: builds the question for `offload.decide` from the fleet's state.

D is the replica that the profile chose, where the session lives. P is the other ready replica that would be
done with the prompt first, others' losses counted. The prediction of an offloaded request follows its way:
queue and prefill at P, transfer of what D has not cached (`handover`), then D's next iteration.
"""

from math import exp, inf, nan

import numpy as np

from headway.config.routing import OffloadSettings
from headway.routing.columns import Column
from headway.routing.forecast import Row
from headway.routing.offload import (
    HitRates,
    OffloadDecision,
    OffloadQuestion,
    OffloadReason,
    Site,
    best_prefill,
    classify,
    decide,
)
from headway.routing.question import Knowledge, Question
from headway.routing.seat import Seat, take_seat
from headway.routing.types import Placement, RouteClass

BELOW_THRESHOLD = {
    route_class: OffloadDecision(route_class=route_class, reason=OffloadReason.BELOW_THRESHOLD)
    for route_class in (RouteClass.WARM, RouteClass.MEDIUM)
}
"""Decisions that need no figures of the fleet; `decide` says the same."""

NEVER = {
    route_class: OffloadDecision(route_class=route_class, reason=OffloadReason.NEVER)
    for route_class in (RouteClass.WARM, RouteClass.MEDIUM, RouteClass.HEAVY_COLO)
}
"""What is said of requests where nothing is to be decided: their class."""

RATE_MEMORY_S = 10.0
"""Arrivals are averaged over about so long."""


class Offloading:
    """Decides for heavy requests."""

    def __init__(self, know: Knowledge, settings: OffloadSettings) -> None:
        self._know, self._settings = know, settings
        self._rate_rps, self._rate_at_s = 0.0, -inf
        self._hits = HitRates()

    def arrived(self, now_s: float) -> None:
        """A request came: the rate at which others come to queue."""
        if self._settings.mode == "never":
            return
        kept = exp((self._rate_at_s - now_s) / RATE_MEMORY_S)
        self._rate_rps = self._rate_rps * kept + 1.0 / RATE_MEMORY_S
        self._rate_at_s = now_s

    def considered(self, seat: Seat) -> tuple[OffloadDecision, Seat | None]:
        """The decision for a request that the profile sends to `seat`, and P's seat if it is offloaded."""
        question = seat.question
        uncached = int(seat.missing_tokens)
        route_class = classify(uncached, self._settings)
        if self._settings.mode == "never":
            return NEVER[route_class], None
        self._count(seat)
        if route_class is not RouteClass.HEAVY_COLO:
            return BELOW_THRESHOLD[route_class], None
        return self._heavy(seat, question.about(question.role))

    def _count(self, seat: Seat) -> None:
        """How often prefixes are found: what P's cache is worth."""
        tokens, cached = seat.question.record.request.input_tokens, int(seat.cached_tokens)
        self._hits = self._hits.add(tokens, local_tokens=cached)

    def _heavy(self, seat: Seat, everyone: Question) -> tuple[OffloadDecision, Seat | None]:
        listed = np.nonzero(everyone.slots == seat.replica.slot)[0]
        d = int(listed[0]) if len(listed) else None
        rows, work_s = everyone.forecast, everyone.forecast[Row.WORK_S]
        prefill_tokens, kv_tokens = everyone.column(Column.PREFILL_TOKENS), everyone.column(Column.KV_TOKENS)
        outstanding = prefill_tokens + kv_tokens
        if np.isfinite(work_s).any():
            others_s = (everyone.column(Column.RUNNING) + everyone.column(Column.COMING)) * work_s
            p = best_prefill(rows[Row.QUEUE_S], work_s, d=d, others_s=others_s)
        else:
            p = best_prefill(outstanding, np.zeros(len(outstanding)), d=d)
        at_d = take_seat(everyone.about(everyone.role, np.array([seat.replica.slot])), 0)
        other = None if p is None else take_seat(everyone, p)
        asked = OffloadQuestion(
            now_s=everyone.now_s,
            d=self._site(at_d, len(everyone.slots)),
            p=None if other is None else self._site(other, len(everyone.slots)),
            transfer_s=self._know.handovers.seconds(int(seat.missing_tokens)),
            chunk_tokens=self._know.rules.chunk_tokens,
            mean_outstanding_tokens=float(outstanding.mean()),
        )
        decision = decide(asked, self._settings)
        return decision, (other if decision.offload else None)

    def _site(self, seat: Seat, ready: int) -> Site:
        cell = self._know.fleet.table[:, seat.replica.slot].tolist()
        there = cell[Column.RUNNING] + cell[Column.COMING]
        known = seat.ttft_s < inf
        return Site(
            uncached_tokens=int(seat.missing_tokens),
            queue_s=seat.queue_s if known else 0.0,
            prefill_s=seat.work_s if known else nan,
            running=int(cell[Column.RUNNING]),
            waiting=int(cell[Column.COMING]),
            remaining_tokens=0.5 * cell[Column.OUTPUT_TOKENS] / there if there else 0.0,
            iteration_s=seat.iteration_s,
            arrival_rps=self._rate_rps / ready,
            outstanding_tokens=cell[Column.PREFILL_TOKENS] + cell[Column.KV_TOKENS],
            decode_tokens=cell[Column.KV_TOKENS],
            reuse=self._hits.reuse,
        )


def restored(placement: Placement) -> OffloadDecision | None:
    """The decision that a placement was made by; None if there was none."""
    if placement.route_class is None or placement.reason not in set(OffloadReason):
        return None
    return OffloadDecision(
        route_class=placement.route_class,
        reason=OffloadReason(placement.reason),
        offload=placement.route_class is RouteClass.HEAVY_P2P,
        deadline_s=placement.deadline_s if placement.deadline_s < inf else None,
    )
