"""Requests that the router holds: when they expire, and who is next.

Patience. A request is held for `max_wait_s` at most. One that the SLO-aware profile refused is held only as
long as its SLO can still be kept: until its latest start, arrival + TTFT SLO − TTFT on an idle replica. Its
time over, it is shed with NO_HEADROOM; a request that had time left in its SLO, or has none, with
WAITED_TOO_LONG. One that came when a role had no ready replica is judged once there are some: `staffed`.

Urgency. The order among those held is `waiting`'s, by the latest start. Where predictions do not judge, that
is arrival + TTFT SLO − f T: T is the TTFT on a replica without a queue that is as busy as the least busy one
when the request came (`Latency.joined_s`), f the running quantile of measured / T of those that were held. An
idle replica's TTFT would be too hopeful: they wait because none is idle, and in overload all start at the
last moment.
"""

from collections.abc import Iterator, Mapping
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
        self._unstaffed: dict[str, Record] = {}

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

    @property
    def unstaffed(self) -> Mapping[str, Record]:
        """Those that came when a role had no ready replica and were not judged since, in order of coming."""
        return self._unstaffed

    def add(self, now_s: float, record: Record, refusal: Refusal | None, know: Knowledge) -> None:
        """Hold a request; `refusal` is None where a role has no ready replica."""
        if refusal is None:
            self._unstaffed[record.request.request_id] = record
        self._push(Question(know, now_s, record, know.roles[-1]), refusal, now_s)

    def staffed(self, now_s: float, record: Record, know: Knowledge) -> None:
        """Judge one of `unstaffed`: all roles have replicas now. Its patience counts from when it came."""
        del self._unstaffed[record.request.request_id]
        question = Question(know, now_s, record, know.roles[-1])
        refusal = _without_room(question)
        entry = self._waiting.remove(record.request.request_id)
        assert entry is not None
        self._push(question, refusal, entry.enqueued_s)

    def remove(self, request_id: str) -> None:
        """Hold it no longer; nothing happens if it is not held."""
        self._waiting.remove(request_id)
        self._reasons.pop(request_id, None)
        self._unstaffed.pop(request_id, None)

    def ordered(self, now_s: float) -> Iterator[str]:
        """Who to try, the most urgent first; after `due`."""
        for entry in self._waiting.ordered(now_s):
            yield entry.request.request_id

    def due(self, now_s: float) -> Iterator[tuple[str, ShedReason, str]]:
        """Those whose time is over, why they are shed, and in words; they are held no longer."""
        for entry in self._waiting.due(now_s):
            refusal = self._reasons.get(entry.request.request_id)
            self.remove(entry.request.request_id)
            waited = f"waited {now_s - entry.enqueued_s:.3f} s"
            if refusal is not None and refusal.hopeful_until_s <= entry.expires_s < inf:
                yield entry.request.request_id, refusal.reason, f"{waited}; {refusal.explain()}"
            else:
                yield entry.request.request_id, ShedReason.WAITED_TOO_LONG, waited

    def _push(self, question: Question, refusal: Refusal | None, enqueued_s: float) -> None:
        request, expires_s = question.record.request, enqueued_s + self._settings.max_wait_s
        if refusal is not None:
            self._reasons[request.request_id] = refusal
            expires_s = min(expires_s, refusal.hopeful_until_s)
        self._waiting.push(
            Waiting(
                request=request,
                pattern=question.pattern,
                enqueued_s=enqueued_s,
                start_by_s=_start_by_s(question, refusal),
                expires_s=expires_s,
            )
        )


def _without_room(question: Question) -> Refusal:
    """How a request is held that no profile was asked about: those judged by predictions as they would be."""
    record, until_s = question.record, inf
    if record.judged and not record.request.critical and isfinite(question.alone_s[0]):
        until_s = question.hopeful_until_s
    return Refusal(
        reason=ShedReason.NO_HEADROOM,
        explain=lambda: "no replica was ready when it came",
        hopeful_until_s=until_s,
    )


def _start_by_s(question: Question, refusal: Refusal | None) -> float:
    """The latest start that keeps the SLO; without a prediction as if service took no time."""
    record = question.record
    if refusal is not None and (refusal.hopeful_until_s < inf or record.slo.ttft_s == inf):
        return refusal.hopeful_until_s
    deadline_s = record.request.arrival_s + record.slo.ttft_s
    if refusal is None:
        return deadline_s
    joined_s = record.joined_s = question.joined_s
    return deadline_s - (question.know.latency.joined_safety.factor * joined_s if isfinite(joined_s) else 0.0)
