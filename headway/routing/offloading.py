"""Traces of requests with an offload decision (document 004), kept when they end: completed or failed.

A trace is of the attempt that was the last: a prompt that was taken back from P has the stamps of its way at
D. Where prompt and output are of one replica, its driver may tell of the first token alone; then the prompt
is done at that time.


Elastic prefill offload in a mixed pool: builds the question for `offload.decide` from the fleet's state.

D is the replica that the profile chose, where the session lives. P is the other ready replica that would be
done with the prompt first, others' losses counted. The prediction of an offloaded request follows its way:
queue and prefill at P, transfer of what D has not cached (`handover`), then D's next iteration.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, inf, nan
from typing import Self

import numpy as np

from headway.config.routing import OffloadSettings
from headway.routing.context import ChosenReplica, RoutingState, SchedulingContext, choose_replica
from headway.routing.forecast import ForecastRow
from headway.routing.offload import OffloadDecision, OffloadQuestion, OffloadReason, OffloadTrace, Site
from headway.routing.offload_decision import best_prefill, classify, decide
from headway.routing.records import Record
from headway.routing.table import FleetRow
from headway.routing.types import Placement, RouteClass, RoutingError

MOST_TRACES = 10_000
"""Traces kept; the oldest go first."""


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
    return OffloadTrace(
        request_id=record.request.request_id,
        route_class=decision.route_class,
        offload_decision_reason=decision.reason,
        t_proxy_recv=record.request.arrival_s,
        t_prefill_sent=_known(record.placed_s),
        t_prefill_done=_known(record.prefilled_s),
        t_first_token=_known(record.first_token_s),
        t_done=done_s,
    )


def _known(time_s: float) -> float | None:
    return time_s if time_s >= 0.0 else None


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


@dataclass(frozen=True, slots=True, kw_only=True)
class HitRates:
    """Counts of prompt tokens; rates are NaN before the first."""

    prompt_tokens: int = 0
    local_tokens: int = 0
    external_tokens: int = 0

    def add(self, prompt_tokens: int, *, local_tokens: int = 0, external_tokens: int = 0) -> Self:
        """The counts with one more lookup. RoutingError if more was hit than asked for."""
        if min(local_tokens, external_tokens) < 0 or local_tokens + external_tokens > prompt_tokens:
            raise RoutingError(
                f"{local_tokens} + {external_tokens} of {prompt_tokens} prompt tokens cannot be hit"
            )
        return type(self)(
            prompt_tokens=self.prompt_tokens + prompt_tokens,
            local_tokens=self.local_tokens + local_tokens,
            external_tokens=self.external_tokens + external_tokens,
        )

    def __add__(self, other: "HitRates") -> "HitRates":
        return HitRates(
            prompt_tokens=self.prompt_tokens + other.prompt_tokens,
            local_tokens=self.local_tokens + other.local_tokens,
            external_tokens=self.external_tokens + other.external_tokens,
        )

    @property
    def local(self) -> float:
        """Share found in the own cache."""
        return self._rate(self.local_tokens)

    @property
    def external(self) -> float:
        """Share that came from elsewhere."""
        return self._rate(self.external_tokens)

    @property
    def combined(self) -> float:
        """Share that needed no computing here."""
        return self._rate(self.local_tokens + self.external_tokens)

    @property
    def reuse(self) -> float:
        """Tokens found in the own cache per token that was not, h / (1 − h); 0 before the first."""
        missed = self.prompt_tokens - self.local_tokens
        return self.local_tokens / missed if missed else 0.0

    def _rate(self, tokens: int) -> float:
        return tokens / self.prompt_tokens if self.prompt_tokens else nan


class Offloading:
    """Decides for heavy requests."""

    def __init__(self, state: RoutingState, settings: OffloadSettings) -> None:
        self._state, self._settings = state, settings
        self._rate_rps, self._rate_at_s = 0.0, -inf
        self._hits = HitRates()

    def arrived(self, now_s: float) -> None:
        """A request came: the rate at which others come to queue."""
        if self._settings.mode == "never":
            return
        kept = exp((self._rate_at_s - now_s) / RATE_MEMORY_S)
        self._rate_rps = self._rate_rps * kept + 1.0 / RATE_MEMORY_S
        self._rate_at_s = now_s

    def considered(self, chosen: ChosenReplica) -> tuple[OffloadDecision, ChosenReplica | None]:
        """The decision for a request that the profile sends to `seat`, and P's seat if it is offloaded."""
        context = chosen.context
        uncached = int(chosen.missing_tokens)
        route_class = classify(uncached, self._settings)
        if self._settings.mode == "never":
            return NEVER[route_class], None
        self._count(chosen)
        if route_class is not RouteClass.HEAVY_COLO:
            return BELOW_THRESHOLD[route_class], None
        return self._heavy(chosen, context.about(context.role))

    def _count(self, chosen: ChosenReplica) -> None:
        """How often prefixes are found: what P's cache is worth."""
        tokens, cached = chosen.context.record.request.input_tokens, int(chosen.cached_tokens)
        self._hits = self._hits.add(tokens, local_tokens=cached)

    def _heavy(
        self, chosen: ChosenReplica, everyone: SchedulingContext
    ) -> tuple[OffloadDecision, ChosenReplica | None]:
        listed = np.nonzero(everyone.slots == chosen.replica.slot)[0]
        d = int(listed[0]) if len(listed) else None
        rows, work_s = everyone.forecast, everyone.forecast[ForecastRow.WORK_S]
        prefill_tokens, kv_tokens = (
            everyone.column(FleetRow.PREFILL_TOKENS),
            everyone.column(FleetRow.KV_TOKENS),
        )
        outstanding = prefill_tokens + kv_tokens
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
