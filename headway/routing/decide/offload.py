"""The offload decision (after agentic-kvc's): classes, then one rule per mode, and the costs compared.

    u = uncached prompt tokens at D
    WARM    u <= warm_tokens            computed at D
    MEDIUM  u <  heavy_tokens           computed at D
    HEAVY   otherwise: HEAVY_P2P if offloaded, else HEAVY_COLO

The modes, and how the estimate differs from the document's formula, are in docs/offload.md. P is the
replica that is done first:

    P = argmin_x  Q_x + T_x(u_x) + others_x,   x ≠ D

An offloaded prompt has until deadline = now + deadline_factor (Q_P + T_P + C_P i_P) + deadline_slack, and for
ever where the profile is silent. When it passes, or P is lost, the request is computed at D after all.

The estimate sums E2E delay over requests: one request later by one second is one request-second. For a
prompt at replica x (D or P):

    u_x   uncached prompt tokens                 T_x   engine seconds that they take, from the profile
    Q_x   seconds of prefill queued before it    C_x   iterations that carry it, ⌈u_x / chunk⌉, at least 1
    i_x   seconds of a decode iteration there    X     seconds that moving its KV from P to D takes
    N_x   requests decoding, or queued ahead and decoding by then; r_x their mean remaining tokens
    λ_x   requests per second that come to queue at x
    h_x   share of prompt tokens that are found in its prefix cache

    own    O_x = Q_x + T_x + C_x i_x             until its first token, less X
    decode G_x = N_x T_x min(1, r_x / C_x)       each decode loses T over C iterations, while it takes part
    behind B_x = λ_x (Q_x T_x + T_x² / 2)        those that come wait T longer, meanwhile half of T on average
    evict  E_x = h_x / (1 − h_x) T_x (1 + N_x)   what the prompt displaces would have saved as many tokens

    offload ⟺ benefit > cost
    benefit = (O_D − O_P − X)⁺ + G_D + B_D       cost = (O_P + X − O_D)⁺ + G_P + B_P + E_P

D caches the prompt either way, computed or received, so E counts for P alone. With two equally busy, equally
warm replicas the sides differ by X alone, against offload: it moves work, it removes none.

The prediction of an offloaded request follows its way: queue and prefill at P, transfer of what D has not
cached (`corrections.Handovers`), then D's next iteration.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import ceil, exp, inf, isnan, nan
from typing import NamedTuple

import numpy as np

from headway.config.routing import OffloadSettings
from headway.routing.decide.context import ChosenReplica, RoutingState, SchedulingContext, choose_replica
from headway.routing.fleet.records import Record
from headway.routing.fleet.table import FleetRow
from headway.routing.offload import (
    OFFLOADING,
    OffloadDecision,
    OffloadQuestion,
    OffloadReason,
    OffloadTrace,
    Site,
)
from headway.routing.predict.forecast import ForecastRow
from headway.routing.types import Placement, RouteClass
from interp.arrays import FloatArray

OVERLOAD = 1.5
"""Heuristic: P may have so many times the mean of outstanding tokens."""


def best_prefill(done_s: FloatArray, d: int) -> int | None:
    """The place of P, the first of equals; None without one.

    `done_s` f8[C] is what the prompt takes at each replica, NaN or infinite where it can't go; D, which is in
    the place `d`, is none.
    """
    others_s = np.where(np.isfinite(done_s), done_s, inf)
    others_s[d] = inf
    best = int(others_s.argmin())
    return best if others_s[best] < inf else None


class Delays(NamedTuple):
    """`own_s` is seconds of this request (queue included); the others are request-seconds of others."""

    own_s: float
    decode_s: float
    behind_s: float
    evicted_s: float

    @property
    def others_s(self) -> float:
        """The loss of all others while the prompt is computed."""
        return self.decode_s + self.behind_s


def delays_at(site: Site, chunk_tokens: int) -> Delays:
    """The delays of computing the prompt at `site`; NaN where its prefill time is unknown."""
    iterations = max(1, ceil(site.uncached_tokens / chunk_tokens)) if chunk_tokens > 0 else 1
    share = min(1.0, site.remaining_tokens / iterations)
    decodes = site.running + site.waiting
    return Delays(
        own_s=site.queue_s + site.prefill_s + iterations * site.iteration_s,
        decode_s=decodes * site.prefill_s * share,
        behind_s=site.arrival_rps * site.prefill_s * (site.queue_s + site.prefill_s / 2.0),
        evicted_s=site.reuse * site.prefill_s * (1 + decodes),
    )


def classify(uncached_tokens: int, settings: OffloadSettings) -> RouteClass:
    """WARM, MEDIUM, or HEAVY_COLO for any heavy prompt, wherever it will be computed."""
    if uncached_tokens <= settings.warm_tokens:
        return RouteClass.WARM
    return RouteClass.MEDIUM if uncached_tokens < settings.heavy_tokens else RouteClass.HEAVY_COLO


def decide(question: OffloadQuestion, settings: OffloadSettings) -> OffloadDecision:
    """Where a heavy prompt is computed, by a mode that may offload. Missing data means D."""
    p = question.p
    reason = OffloadReason.NO_OTHER_REPLICA if p is None else RULES[settings.mode](question, p)
    if p is None or reason not in OFFLOADING:
        return OffloadDecision(RouteClass.HEAVY_COLO, reason)
    expected_s = delays_at(p, question.chunk_tokens).own_s
    deadline_s = question.now_s + settings.deadline_factor * expected_s + settings.deadline_slack_s
    return OffloadDecision(RouteClass.HEAVY_P2P, reason, None if isnan(expected_s) else deadline_s)


def _by_heuristic(question: OffloadQuestion, p: Site) -> OffloadReason:
    d = question.d
    if d.decode_tokens == 0:
        return OffloadReason.D_IDLE
    if p.outstanding_tokens >= d.outstanding_tokens:
        return OffloadReason.P_BUSIER
    if p.outstanding_tokens > OVERLOAD * question.mean_outstanding_tokens:
        return OffloadReason.P_OVERLOADED
    return OffloadReason.P_IDLE_D_BUSY


def _by_estimate(question: OffloadQuestion, p: Site) -> OffloadReason:
    d = question.d
    if isnan(d.prefill_s) or isnan(p.prefill_s):
        return OffloadReason.NO_ESTIMATE
    if d.idle:
        return OffloadReason.D_IDLE
    cost_s, benefit_s = sides(question, p)
    if benefit_s > cost_s:
        decode_s = delays_at(d, question.chunk_tokens).decode_s
        mostly_queue = benefit_s - decode_s > decode_s
        return OffloadReason.D_OVERLOADED if mostly_queue else OffloadReason.P_IDLE_D_BUSY
    if cost_s - benefit_s < question.transfer_s:
        return OffloadReason.TRANSFER_TOO_DEAR
    cost_s, benefit_s = sides(question, replace(p, uncached_tokens=d.uncached_tokens, prefill_s=d.prefill_s))
    if benefit_s > cost_s:
        return OffloadReason.CACHE_LOST
    return OffloadReason.P_OVERLOADED if p.queue_s > d.queue_s else OffloadReason.NO_GAIN


def sides(question: OffloadQuestion, p: Site) -> tuple[float, float]:
    """Cost and benefit of offloading to `p`, in request-seconds."""
    at_d, at_p = delays_at(question.d, question.chunk_tokens), delays_at(p, question.chunk_tokens)
    later_s = at_p.own_s + question.transfer_s - at_d.own_s
    return max(later_s, 0.0) + at_p.others_s + at_p.evicted_s, max(-later_s, 0.0) + at_d.others_s


RULES: Mapping[str, Callable[[OffloadQuestion, Site], OffloadReason]] = {
    "always": lambda question, p: OffloadReason.ALWAYS,
    "heuristic": _by_heuristic,
    "cost": _by_estimate,
}
"""By mode the reason for or against offloading to P."""

NOT_OFFLOADED = {each: OffloadDecision(each, OffloadReason.NEVER) for each in RouteClass}

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
            return NOT_OFFLOADED[route_class], None
        self._prompt_tokens += chosen.context.record.request.input_tokens
        self._cached_tokens += int(chosen.cached_tokens)
        if route_class is not RouteClass.HEAVY_COLO:
            return OffloadDecision(route_class, OffloadReason.BELOW_THRESHOLD), None
        return self._heavy(chosen, chosen.context.about(chosen.context.role))

    @property
    def _reuse(self) -> float:
        """Cached prompt tokens per token that was not cached: what P's cache is worth."""
        missed = self._prompt_tokens - self._cached_tokens
        return self._cached_tokens / missed if missed else 0.0

    def _heavy(
        self, chosen: ChosenReplica, everyone: SchedulingContext
    ) -> tuple[OffloadDecision, ChosenReplica | None]:
        d = int((everyone.slots == chosen.replica.slot).argmax())
        outstanding = everyone.column(FleetRow.PREFILL_TOKENS) + everyone.column(FleetRow.KV_TOKENS)
        work_s, done_s = everyone.forecast[ForecastRow.WORK_S], outstanding
        if np.isfinite(work_s).any():
            others_s = (everyone.column(FleetRow.RUNNING) + everyone.column(FleetRow.COMING)) * work_s
            done_s = everyone.forecast[ForecastRow.QUEUE_S] + work_s + others_s
        p = best_prefill(done_s, d)
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
        return decision, (other if decision.route_class is RouteClass.HEAVY_P2P else None)

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
    deadline_s = placement.deadline_s if placement.deadline_s < inf else None
    return OffloadDecision(placement.route_class, OffloadReason(placement.reason), deadline_s)


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
