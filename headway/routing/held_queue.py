"""The router's queue: requests wait until a replica has room, the most urgent first (AIBrix's pull routing).

s = start_by_s is the latest start that still keeps a request's SLO, x = expires_s the end of its patience.

    latest start   d = min(s, x)         a request that is shed at x can be helped only before x
    slack          d − now               < 0: lost, nothing keeps its SLO any more; 0 can still be saved
    risk           P(W > slack)          W: how long until a replica has room for it

Whatever the distribution of W, as long as it is the same for all, the greatest risk is the least slack, and
all slacks shrink alike: the order between two requests never changes, and keys can stay in heaps. Equals go
by arrival; the lost come after all others, by enqueueing, so that none of them is overtaken for ever.

Requests of one pattern, SLO and criticality share a queue: when the head of a queue finds no room, those
behind it need not ask. n requests in p queues: push and remove cost O(log n) amortised (`lazy_heap`); asking
for the next k heads costs O(k log p), and each request moves to the lost once.

Patience, and the latest start where predictions do not judge, are in docs/routing.md. There an idle replica's
TTFT would be too hopeful: requests wait because none is idle, and in overload all start at the last moment.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import inf, isfinite
from typing import Literal, NamedTuple

from headway.config.routing import QueueSettings
from headway.routing.capacity import RequestPattern
from headway.routing.context import Refusal, RoutingState, SchedulingContext
from headway.routing.lazy_heap import LazyHeap
from headway.routing.records import Record
from headway.routing.types import RequestSlo, RouteRequest, RoutingError, ShedReason


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingRequest:
    """A request that waits. `expires_s` ends its patience; `start_by_s` is infinite without an SLO."""

    request: RouteRequest
    pattern: RequestPattern
    enqueued_s: float
    start_by_s: float = inf
    expires_s: float = inf

    @property
    def latest_start_s(self) -> float:
        """The latest start that is still worth something."""
        return min(self.start_by_s, self.expires_s)


class _Alike(NamedTuple):
    """The key of a queue."""

    pattern: RequestPattern
    slo: RequestSlo
    critical: bool


_Queue = LazyHeap[WaitingRequest]


class _Band:
    """Queues of equal rights, each by ascending key, and the heads of those not passed over yet."""

    __slots__ = ("_heads", "_passed", "_queues")

    def __init__(self) -> None:
        self._queues: dict[_Alike, _Queue] = {}
        self._heads: LazyHeap[_Queue] = LazyHeap()
        self._passed: list[_Queue] = []

    def add(self, alike: _Alike, key: float, sequence: int, entry: WaitingRequest) -> None:
        queue = self._queues.setdefault(alike, LazyHeap())
        before = queue.first()
        queue.push(key, sequence, entry)
        if before is None or (key, sequence) < before:
            if before is not None:
                self._heads.discard(before[1])
            self._heads.push(key, sequence, queue)

    def remove(self, alike: _Alike, sequence: int) -> None:
        queue = self._queues[alike]
        head = queue.first()
        queue.discard(sequence)
        if head is not None and head[1] == sequence:
            self._heads.discard(sequence)
            self._list(queue)
        if not queue:
            del self._queues[alike]

    def first(self) -> tuple[float, WaitingRequest] | None:
        """The least key and its request."""
        head = self._heads.first()
        return None if head is None else (head[0], self._heads.item(head[1]).item(head[1]))

    def pass_over(self) -> None:
        """Look no further into the queue of `first` until `restore`, unless its head changes."""
        head = self._heads.first()
        assert head is not None
        self._passed.append(self._heads.item(head[1]))
        self._heads.discard(head[1])

    def restore(self) -> None:
        """Look at all queues again."""
        passed, self._passed = self._passed, []
        for queue in passed:
            self._list(queue)

    def _list(self, queue: _Queue) -> None:
        head = queue.first()
        if head is not None and head[1] not in self._heads:
            self._heads.push(*head, queue)


class UrgencyQueue:
    """All that wait. Times passed in never go back; `due` is called before `ordered` at a time."""

    def __init__(self, order: Literal["slo", "fifo"] = "slo") -> None:
        self._order = order
        self._sequence = 0
        self._entries: dict[str, tuple[WaitingRequest, _Alike, int]] = {}
        self._hopeful, self._lost = _Band(), _Band()
        self._bands: dict[str, _Band] = {}
        self._expiry: LazyHeap[WaitingRequest] = LazyHeap()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._entries

    @property
    def next_due_s(self) -> float:
        """When `due` has something next; infinite if never."""
        first = self._expiry.first()
        return inf if first is None else first[0]

    def push(self, entry: WaitingRequest) -> None:
        """Let a request wait. Raises RoutingError if it does already."""
        request = entry.request
        if request.request_id in self._entries:
            raise RoutingError(f"request {request.request_id!r} waits already")
        alike = _Alike(entry.pattern, request.slo, request.critical)
        sequence = self._sequence = self._sequence + 1
        self._entries[request.request_id] = (entry, alike, sequence)
        self._bands[request.request_id] = self._hopeful
        key = entry.latest_start_s if self._order == "slo" else entry.enqueued_s
        self._hopeful.add(alike, key, sequence, entry)
        self._expiry.push(entry.expires_s, sequence, entry)

    def remove(self, request_id: str) -> WaitingRequest | None:
        """Let it wait no longer; None if it does not wait."""
        found = self._entries.pop(request_id, None)
        if found is None:
            return None
        entry, alike, sequence = found
        self._bands.pop(request_id).remove(alike, sequence)
        self._expiry.discard(sequence)
        return entry

    def ordered(self, now_s: float) -> Iterator[WaitingRequest]:
        """The heads of the queues, the most urgent first, each queue's lost ones after all that can be saved.

        When the caller removes what was yielded, the next of its queue takes its turn in the same iteration;
        otherwise that queue is passed over. One iteration at a time: a new one ends the former.
        """
        for band in (self._hopeful, self._lost):
            band.restore()
        if self._order == "slo":
            self._give_up(now_s)
        for band in (self._hopeful, self._lost):
            while (head := band.first()) is not None:
                band.pass_over()
                yield head[1]

    def due(self, now_s: float) -> list[WaitingRequest]:
        """Those whose patience has ended, longest ago first; they wait no longer."""
        ended = []
        while self.next_due_s <= now_s and (first := self._expiry.first()) is not None:
            entry = self._expiry.item(first[1])
            self.remove(entry.request.request_id)
            ended.append(entry)
        return ended

    def _give_up(self, now_s: float) -> None:
        """Move those that can be saved no longer to the lost."""
        while (head := self._hopeful.first()) is not None and head[0] < now_s:
            request_id = head[1].request.request_id
            entry, alike, sequence = self._entries[request_id]
            self._hopeful.remove(alike, sequence)
            self._lost.add(alike, entry.enqueued_s, sequence, entry)
            self._bands[request_id] = self._lost


class HeldQueue:
    """The held requests, by id."""

    def __init__(self, settings: QueueSettings) -> None:
        self._settings = settings
        self._waiting = UrgencyQueue(settings.order)
        self._reasons: dict[str, Refusal] = {}
        self._unstaffed: dict[str, Record] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def full(self) -> bool:
        """True if no more may wait."""
        return len(self._waiting) >= self._settings.max_requests

    @property
    def next_due_s(self) -> float:
        """The time when a request's patience ends next; infinite if never."""
        return self._waiting.next_due_s

    @property
    def unstaffed(self) -> Mapping[str, Record]:
        """Those that came when a role had no ready replica and were not judged since, in order of coming."""
        return self._unstaffed

    def add(self, now_s: float, record: Record, refusal: Refusal | None, state: RoutingState) -> None:
        """Hold a request; `refusal` is None where a role has no ready replica."""
        if refusal is None:
            self._unstaffed[record.request.request_id] = record
        self._push(SchedulingContext(state, now_s, record, state.roles[-1]), refusal, now_s)

    def staffed(self, now_s: float, record: Record, state: RoutingState) -> None:
        """Judge one of `unstaffed`: all roles have replicas now. Its patience counts from when it came."""
        del self._unstaffed[record.request.request_id]
        context = SchedulingContext(state, now_s, record, state.roles[-1])
        refusal = _without_room(context)
        entry = self._waiting.remove(record.request.request_id)
        assert entry is not None
        self._push(context, refusal, entry.enqueued_s)

    def remove(self, request_id: str) -> None:
        """Hold it no longer; nothing happens if it is not held."""
        self._waiting.remove(request_id)
        self._reasons.pop(request_id, None)
        self._unstaffed.pop(request_id, None)

    def ordered(self, now_s: float) -> Iterator[str]:
        """The requests to try, the most urgent first; after `due`."""
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

    def _push(self, context: SchedulingContext, refusal: Refusal | None, enqueued_s: float) -> None:
        request, expires_s = context.record.request, enqueued_s + self._settings.max_wait_s
        if refusal is not None:
            self._reasons[request.request_id] = refusal
            expires_s = min(expires_s, refusal.hopeful_until_s)
        self._waiting.push(
            WaitingRequest(
                request=request,
                pattern=context.pattern,
                enqueued_s=enqueued_s,
                start_by_s=_start_by_s(context, refusal),
                expires_s=expires_s,
            )
        )


def _without_room(context: SchedulingContext) -> Refusal:
    """The refusal of a request that no profile was asked about; by predictions if its profile uses them."""
    record, until_s = context.record, inf
    if record.judged and not record.request.critical and isfinite(context.alone_s[0]):
        until_s = context.hopeful_until_s
    return Refusal(
        reason=ShedReason.NO_HEADROOM,
        explain=lambda: "no replica was ready when it came",
        hopeful_until_s=until_s,
    )


def _start_by_s(context: SchedulingContext, refusal: Refusal | None) -> float:
    """The latest start that keeps the SLO; without a prediction as if service took no time."""
    record = context.record
    if refusal is not None and (refusal.hopeful_until_s < inf or record.slo.ttft_s == inf):
        return refusal.hopeful_until_s
    deadline_s = record.request.arrival_s + record.slo.ttft_s
    if refusal is None:
        return deadline_s
    joined_s = record.joined_s = context.joined_s
    return deadline_s - (context.state.latency.joined_safety.factor * joined_s if isfinite(joined_s) else 0.0)
