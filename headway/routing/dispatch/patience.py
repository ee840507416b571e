"""How long a request that found no room waits, for which replica, and when it is late.

Patience, and the latest start where predictions do not judge, are in docs/routing.md. There an idle replica's
TTFT would be too hopeful: requests wait because none is idle, and in overload all start at the last moment.
"""

from math import inf, isfinite

import numpy as np

from headway.routing.decide.candidates import sample_of
from headway.routing.decide.context import Refusal, SchedulingContext
from headway.routing.fleet.records import Record
from headway.routing.predict.forecast import ForecastRow
from headway.routing.queue.heads import ANY_ROLE, RequestClass
from headway.routing.queue.held_lines import NO_HOME, HeldRequest
from headway.routing.types import ShedReason

WORTH_A_HOME = 0.25
"""The share of a prompt cached at a replica from which the request waits in a line for that replica."""


def sheds(now_s: float, record: Record, refusal: Refusal) -> bool:
    """True if a refused request is shed at once: waiting does not help it."""
    return _bound(record) and refusal.hopeful_until_s < now_s


def _bound(record: Record) -> bool:
    """True for a request that is of no use late: it waits until even an idle replica would be too late
    (`Refusal.hopeful_until_s`). Others wait as long as a request may.

    Where no predictions judge, one that names no SLO is held to what its profile says of it.
    """
    of_class = RequestClass.of(record.request)
    return of_class is RequestClass.NAMES_SLO or (of_class is RequestClass.NAMES_NONE and not record.judged)


def held_request(
    context: SchedulingContext, refusal: Refusal | None, held_s: float, max_wait_s: float
) -> HeldRequest:
    """A request that waits from `held_s` on; `refusal` is None where a role has no ready replica."""
    record, expires_s = context.record, held_s + max_wait_s
    record.home = record.home or home_of(context)
    held = HeldRequest(record=record, held_s=held_s, start_by_s=_start_by_s(context, refusal))
    if refusal is None:
        held.expires_s, held.role, held.unstaffed = expires_s, ANY_ROLE, True
        return held
    if _bound(record):
        expires_s = min(expires_s, refusal.hopeful_until_s)
    held.expires_s, held.role = expires_s, refusal.role
    if refusal.reason is ShedReason.SATURATED or refusal.hopeful_until_s <= expires_s < inf:
        held.reason, held.explain = refusal.reason, refusal.explain
    return held


def home_of(context: SchedulingContext) -> tuple[int, float]:
    """The slot that has most of the prompt, and how many tokens of it."""
    request, state = context.record.request, context.state
    if not request.blocks:
        return NO_HOME
    first = context.about(state.roles[0])
    if not len(first.slots):
        return NO_HOME
    cached = first.cached_tokens
    place = int(np.argmax(cached))
    if cached[place] < WORTH_A_HOME * request.input_tokens:
        return NO_HOME
    return int(first.slots[place]), float(cached[place])


def without_room(context: SchedulingContext, why: str) -> Refusal:
    """The refusal of a request that no profile was asked about; by predictions if its profile uses them."""
    record, until_s = context.record, inf
    if record.judged and isfinite(context.alone_s[0]):
        until_s = context.hopeful_until_s
    return Refusal(reason=ShedReason.NO_HEADROOM, explain=lambda: why, hopeful_until_s=until_s, role=ANY_ROLE)


def _start_by_s(context: SchedulingContext, refusal: Refusal | None) -> float:
    """The latest start that keeps the SLO; without a prediction as if service took no time."""
    record = context.record
    deadline_s = record.request.arrival_s + record.slo.ttft_s
    if refusal is None:
        return deadline_s
    if record.judged and isfinite(context.alone_s[0]):
        return context.hopeful_until_s
    if deadline_s == inf:
        return refusal.hopeful_until_s
    joined_s = _joined_s(context)
    return deadline_s - (context.state.latency.ttft_factor * joined_s if isfinite(joined_s) else 0.0)


def _joined_s(context: SchedulingContext) -> float:
    """The least TTFT where no prompt queues but all run that run now; infinite without a prediction.

    A request that gets a place that became free shares its iterations with the batch, after the one under
    way. Of a large fleet a sample is looked at.
    """
    ttft_s = 0.0
    for role in context.state.roles:
        rows = sample_of(context.about(role)).prior
        joined_s = rows[ForecastRow.TTFT_S] - rows[ForecastRow.QUEUE_S] + rows[ForecastRow.ITERATION_S]
        known_s = joined_s[np.isfinite(joined_s)]
        ttft_s += float(known_s.min()) if len(known_s) else inf
    return ttft_s + context.between_s()
