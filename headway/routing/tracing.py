"""Traces of requests with an offload decision (document 004), kept when they end: completed or failed.

A trace is of the attempt that was the last: a prompt that was taken back from P has the stamps of its way at
D. Where prompt and output are of one replica, its driver may tell of the first token alone; then the prompt
is done at that time.
"""

from collections import deque
from collections.abc import Sequence

from headway.config.routing import OffloadSettings
from headway.routing.offload.trace import OffloadTrace
from headway.routing.offload.types import OffloadDecision
from headway.routing.record import Record

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
