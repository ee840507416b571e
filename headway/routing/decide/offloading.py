"""Elastic prefill offload in a mixed pool: inputs of `offload_decision` from the fleet's state, and traces.

D is the replica that the profile chose, where the session lives. P is the other ready replica that would be
done with the prompt first, others' losses counted. The prediction of an offloaded request follows its way:
queue and prefill at P, transfer of what D has not cached (`corrections.Handovers`), then D's next iteration.

Traces are of requests with a decision, kept when they end. A trace is of the attempt that was the last: a
prompt that was taken back from P has the stamps of its way at D. Where prompt and output are of one replica,
its driver may tell of the first token alone; then the prompt is done at that time.
"""

from collections import deque
from collections.abc import Sequence
from math import exp, inf, nan

import numpy as np

from headway.config.routing import OffloadSettings
from headway.routing.decide.context import ChosenReplica, RoutingState, SchedulingContext, choose_replica
from headway.routing.decide.offload_decision import best_prefill, classify, decide
from headway.routing.fleet.records import Record
from headway.routing.fleet.table import FleetRow
from headway.routing.offload import OffloadDecision, OffloadQuestion, OffloadReason, OffloadTrace, Site
from headway.routing.predict.forecast import ForecastRow
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
"""Requests where nothing is to be decided have their class all the same."""

RATE_MEMORY_S = 10.0
"""Arrivals are averaged over about so long."""

MOST_TRACES = 10_000
"""Traces kept; the oldest go first."""


class Offloading:
    """Decides for heavy requests."""

    def __init__(self, state: RoutingState, settings: OffloadSettings) -> None:
        self._state, self._settings = state, settings
        self._rate_rps, self._rate_at_s = 0.0, -inf
        self._prompt_tokens = self._cached_tokens = 0

    def arrived(self, now_s: float) -> None:
        """Count a request in the rate at which others come to queue."""
        if self._settings.mode == "never":
            return
        kept = exp((self._rate_at_s - now_s) / RATE_MEMORY_S)
        self._rate_rps = self._rate_rps * kept + 1.0 / RATE_MEMORY_S
        self._rate_at_s = now_s

    def considered(self, chosen: ChosenReplica) -> tuple[OffloadDecision, ChosenReplica | None]:
        """The decision for a request that the profile sends to `chosen`, and P if it is offloaded."""
        route_class = classify(int(chosen.missing_tokens), self._settings)
        if self._settings.mode == "never":
            return NEVER[route_class], None
        self._prompt_tokens += chosen.context.record.request.input_tokens
        self._cached_tokens += int(chosen.cached_tokens)
        if route_class is not RouteClass.HEAVY_COLO:
            return BELOW_THRESHOLD[route_class], None
        return self._heavy(chosen, chosen.context.about(chosen.context.role))

    @property
    def _reuse(self) -> float:
        """Cached prompt tokens per token that was not cached: what P's cache is worth."""
        missed = self._prompt_tokens - self._cached_tokens
        return self._cached_tokens / missed if missed else 0.0

    def _heavy(
        self, chosen: ChosenReplica, everyone: SchedulingContext
    ) -> tuple[OffloadDecision, ChosenReplica | None]:
        listed = np.nonzero(everyone.slots == chosen.replica.slot)[0]
        d = int(listed[0]) if len(listed) else None
        rows, work_s = everyone.forecast, everyone.forecast[ForecastRow.WORK_S]
        outstanding = everyone.column(FleetRow.PREFILL_TOKENS) + everyone.column(FleetRow.KV_TOKENS)
        if np.isfinite(work_s).any():
            others_s = (everyone.column(FleetRow.RUNNING) + everyone.column(FleetRow.COMING)) * work_s
            p = best_prefill(rows[ForecastRow.QUEUE_S], work_s, d=d, others_s=others_s)
        else:
            p = best_prefill(outstanding, np.zeros(len(outstanding)), d=d)
        at_d = choose_replica(everyone.about(everyone.role, np.array([chosen.replica.slot])), 0)
        other = None if p is None else choose_replica(everyone, p)
        asked = OffloadQuestion(
            now_s=everyone.now_s,
            d=self._site(at_d, len(everyone.slots)),
            p=None if other is None else self._site(other, len(everyone.slots)),
            transfer_s=self._state.handovers.seconds(int(chosen.missing_tokens)),
            chunk_tokens=self._state.rules.chunk_tokens,
            mean_outstanding_tokens=float(outstanding.mean()),
        )
        decision = decide(asked, self._settings)
        return decision, (other if decision.offload else None)

    def _site(self, chosen: ChosenReplica, ready: int) -> Site:
        cell = self._state.fleet.table[:, chosen.replica.slot].tolist()
        there = cell[FleetRow.RUNNING] + cell[FleetRow.COMING]
        known = chosen.ttft_s < inf
        return Site(
            uncached_tokens=int(chosen.missing_tokens),
            queue_s=chosen.queue_s if known else 0.0,
            prefill_s=chosen.work_s if known else nan,
            running=int(cell[FleetRow.RUNNING]),
            waiting=int(cell[FleetRow.COMING]),
            remaining_tokens=0.5 * cell[FleetRow.OUTPUT_TOKENS] / there if there else 0.0,
            iteration_s=chosen.iteration_s,
            arrival_rps=self._rate_rps / ready,
            outstanding_tokens=cell[FleetRow.PREFILL_TOKENS] + cell[FleetRow.KV_TOKENS],
            decode_tokens=cell[FleetRow.KV_TOKENS],
            reuse=self._reuse,
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


class Traces:
    """The latest traces of one router, none with `offload.mode: never`."""

    def __init__(self, settings: OffloadSettings, most: int = MOST_TRACES) -> None:
        self._on = settings.mode != "never"
        self._kept: deque[OffloadTrace] = deque(maxlen=most)

    def ended(self, record: Record, done_s: float | None) -> None:
        """A request has all its tokens since `done_s`, or has failed (None)."""
        if self._on and record.offload is not None:
            self._kept.append(_trace(record, record.offload, done_s))

    def latest(self, count: int) -> Sequence[OffloadTrace]:
        """The last `count` of those kept, the oldest first."""
        return tuple(self._kept)[-count:] if count > 0 else ()

    def take(self) -> Sequence[OffloadTrace]:
        """All that are kept, the oldest first; they are the caller's then."""
        taken = tuple(self._kept)
        self._kept.clear()
        return taken


def _trace(record: Record, decision: OffloadDecision, done_s: float | None) -> OffloadTrace:
    def known(time_s: float) -> float | None:
        return time_s if time_s >= 0.0 else None

    return OffloadTrace(
        request_id=record.request.request_id,
        route_class=decision.route_class,
        offload_decision_reason=decision.reason,
        t_proxy_recv=record.request.arrival_s,
        t_prefill_sent=known(record.placed_s),
        t_prefill_done=known(record.prefilled_s),
        t_first_token=known(record.first_token_s),
        t_done=done_s,
    )
