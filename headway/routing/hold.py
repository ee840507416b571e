"""Requests that the router holds: when they expire, and who is next.

Patience. A request is held for `max_wait_s` at most. One that the SLO-aware profile refused is held only as
long as its SLO can still be kept: until its latest start, arrival + TTFT SLO − TTFT on an idle replica. Its
time over, it is shed with NO_HEADROOM; a request that had time left in its SLO, or has none, with
WAITED_TOO_LONG. The order among those held is `waiting`'s.
"""

from collections.abc import Iterator
from math import inf, isfinite

from headway.config.routing import QueueSettings
from headway.routing.question import Knowledge, Question, Refusal
from headway.routing.record import Record
from headway.routing.types import ShedReason
from headway.routing.waiting import Waiting, WaitingRequests


class Hold:
    """The held requests, by id."""

    def __init__(self, settings: QueueSettings) -> None:
        self._settings = settings
        self._waiting = WaitingRequests(settings.order)
        self._reasons: dict[str, Refusal] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def full(self) -> bool:
        """Whether no more may wait."""
        return len(self._waiting) >= self._settings.max_requests

    @property
    def next_due_s(self) -> float:
        """When somebody's time is over next; infinite if never."""
        return self._waiting.next_due_s

    def add(self, now_s: float, record: Record, refusal: Refusal | None, know: Knowledge) -> None:
        """Hold a request; `refusal` is None where a role has no ready replica."""
        question = Question(know, now_s, record, know.roles[-1])
        expires_s = now_s + self._settings.max_wait_s
        if refusal is not None:
            self._reasons[record.request.request_id] = refusal
            expires_s = min(expires_s, refusal.hopeful_until_s)
        self._waiting.push(
            Waiting(
                request=record.request,
                pattern=question.pattern,
                enqueued_s=now_s,
                start_by_s=_start_by_s(question),
                expires_s=expires_s,
            )
        )

    def remove(self, request_id: str) -> None:
        """Hold it no longer; nothing happens if it is not held."""
        self._waiting.remove(request_id)
        self._reasons.pop(request_id, None)

    def ordered(self, now_s: float) -> Iterator[str]:
        """Who to try, the most urgent first; after `due`."""
        for entry in self._waiting.ordered(now_s):
            yield entry.request.request_id

    def due(self, now_s: float) -> Iterator[tuple[str, ShedReason, str]]:
        """Those whose time is over, why they are shed, and in words; they are held no longer."""
        for entry in self._waiting.due(now_s):
            refusal = self._reasons.pop(entry.request.request_id, None)
            waited = f"waited {now_s - entry.enqueued_s:.3f} s"
            if refusal is not None and refusal.hopeful_until_s <= entry.expires_s < inf:
                yield entry.request.request_id, refusal.reason, f"{waited}; {refusal.explain()}"
            else:
                yield entry.request.request_id, ShedReason.WAITED_TOO_LONG, waited


def _start_by_s(question: Question) -> float:
    """The latest start that keeps the SLO; without a prediction as if service took no time."""
    slo, request = question.record.slo, question.record.request
    if slo.ttft_s == inf:
        return inf
    ttft_s, _ = question.alone_s
    return request.arrival_s + slo.ttft_s - (ttft_s if isfinite(ttft_s) else 0.0)
