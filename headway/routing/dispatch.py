"""The next step of each request: place it now, hold it, or shed it; and outcomes not handed out yet.

    settle     a request that is nowhere is placed, held or shed
    drain      those held are shed where their time is over, and placed where they can be, by urgency
    colocate   an offloaded prompt goes to D after all; `expire` does so with those that are late

Outcomes are kept until they are handed out: where an event raises, what was placed and shed before comes with
the next. RequestFault names a held or late request at whose turn it happened.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from math import inf

from headway.config.routing import RoutingSettings
from headway.routing.context import Refusal, RoutingState
from headway.routing.held_queue import HeldQueue
from headway.routing.lazy_heap import LazyHeap
from headway.routing.offload import OffloadDecision
from headway.routing.offload_decision import after_deadline
from headway.routing.placing import Counters, Placing
from headway.routing.records import Record, Replica, RequestPhase
from headway.routing.scheduler import RouteChoice, Scheduler
from headway.routing.types import (
    NOTHING,
    Placement,
    PluginFault,
    RequestFault,
    RoutingOutcome,
    Shed,
    ShedReason,
)

TRIES = 2
"""Held requests that find no room after one event, at most, before the rest is left for the next."""


class Dispatcher:
    """Dispatches for one router, whose `records` are; those of requests that are shed are taken out."""

    def __init__(
        self,
        settings: RoutingSettings,
        state: RoutingState,
        scheduler: Scheduler,
        counters: Counters,
        records: dict[str, Record],
    ) -> None:
        self._settings, self._state, self._scheduler = settings, state, scheduler
        self._counters, self._records = counters, records
        self._queue, self._deadlines = HeldQueue(settings.queue), LazyHeap[Record]()
        self.placing = Placing(state, scheduler, counters, self._deadlines)
        self._placements: list[Placement] = []
        self._sheds: list[Shed] = []
        self.gathering = False
        """While True, `drain` only notes that it is due."""
        self.due = False

    @property
    def held(self) -> int:
        """The number of requests that wait."""
        return len(self._queue)

    @property
    def next_due_s(self) -> float:
        """The time when `expire` is due next; infinite if never."""
        first = self._deadlines.first()
        return min(self._queue.next_due_s, inf if first is None else first[0])

    def settle(self, now_s: float, record: Record) -> None:
        """Place, hold or shed a request that is nowhere."""
        answer = self._try(now_s, record)
        if isinstance(answer, Placement):
            return
        judged = answer is not None and answer.reason is ShedReason.NO_HEADROOM and record.judged
        may_wait = self._settings.slo.hold or not judged
        if answer is not None and (answer.hopeful_until_s < now_s or not may_wait):
            self._shed(record, answer.reason, answer.explain(), answer.retry_after_s)
        elif self._queue.full:
            self._shed(record, ShedReason.QUEUE_FULL, f"{self.held} requests wait")
        else:
            self._queue.add(now_s, record, answer, self._state)

    def drain(self, now_s: float) -> RoutingOutcome:
        """Shed those held whose time is over, and place those that can be, the most urgent first."""
        self.due = self.gathering
        if not self._queue or self.gathering:
            return self.outcome()
        if self._queue.unstaffed and self._state.fleet.has(self._state.roles):
            for request_id, record in list(self._queue.unstaffed.items()):
                with _turn_of(request_id):
                    self._queue.staffed(now_s, record, self._state)
        for request_id, reason, detail in self._queue.due(now_s):
            self._shed(self._records[request_id], reason, detail)
        tries = TRIES
        for request_id in self._queue.ordered(now_s):
            with _turn_of(request_id):
                answer = self._try(now_s, self._records[request_id])
            if isinstance(answer, Placement):
                self._queue.remove(request_id)
            elif (tries := tries - 1) == 0 or answer is None:
                # One event frees little room; the rest is tried again at the next.
                break
        return self.outcome()

    def expire(self, now_s: float) -> RoutingOutcome:
        """The same, after D was given what P has not done in time."""
        while (first := self._deadlines.first()) is not None and first[0] <= now_s:
            record = self._deadlines.item(first[1])
            self._deadlines.discard(first[1])
            decode = record.decode
            if decode is not None and decode.alive and record.offload is not None:
                with _turn_of(record.request.request_id):
                    self.colocate(now_s, record, decode, after_deadline(record.offload))
        return self.drain(now_s)

    def colocate(self, now_s: float, record: Record, decode: Replica, decision: OffloadDecision) -> None:
        """Give an offloaded prompt to D after all."""
        self.leave(record)
        self._place(now_s, record, self._scheduler.chosen(now_s, record, decode, decode, decision))

    def leave(self, record: Record) -> None:
        """Take a request from wherever it is."""
        if record.phase is RequestPhase.QUEUED:
            self._queue.remove(record.request.request_id)
        else:
            self.placing.released(record)

    def outcome(self) -> RoutingOutcome:
        """All that was placed and shed since the last call."""
        if not (self._placements or self._sheds):
            return NOTHING
        outcome = RoutingOutcome(tuple(self._placements), tuple(self._sheds))
        self._placements.clear()
        self._sheds.clear()
        return outcome

    def _try(self, now_s: float, record: Record) -> Placement | Refusal | None:
        """Place a request; or why not, None where a role has no ready replica."""
        if not self._state.fleet.has(self._state.roles):
            return None
        try:
            choice = self._scheduler.choose(now_s, record)
        except PluginFault as fault:
            choice = self._scheduler.rescued(now_s, record, fault)
            self._counters.count("fallbacks", "plugin_fault")
        else:
            if not isinstance(choice, Refusal) and choice.pipeline.name != record.profile:
                self._counters.count("fallbacks", "no_prediction")
        if isinstance(choice, Refusal):
            return choice
        return self._place(now_s, record, choice)

    def _place(self, now_s: float, record: Record, choice: RouteChoice) -> Placement:
        placement = self.placing.place(now_s, record, choice)
        self._placements.append(placement)
        return placement

    def _shed(self, record: Record, reason: ShedReason, detail: str, retry_after_s: float = 1.0) -> None:
        request_id = record.request.request_id
        del self._records[request_id]
        shed = Shed(request_id=request_id, reason=reason, detail=detail, retry_after_s=retry_after_s)
        self._counters.shed(shed)
        self._sheds.append(shed)


@contextmanager
def _turn_of(request_id: str) -> Iterator[None]:
    """An error that is raised here belongs to this request; a PluginFault, which says more, stays one."""
    try:
        yield
    except PluginFault:
        raise
    except Exception as error:
        raise RequestFault(request_id) from error
