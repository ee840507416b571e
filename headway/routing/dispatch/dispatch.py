"""The next step of each request: place it now, hold it, or shed it; and outcomes not handed out yet.

    settle     a request that is nowhere is placed, held or shed
    drain      those held are shed where their time is over, and placed where they can be, by urgency
    colocate   an offloaded prompt goes to D after all; `expire` does so with those that are late

Outcomes are kept until they are handed out: where an event raises, what was placed and shed before comes with
the next. RequestFault names a held or late request at whose turn it happened.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from math import inf

import numpy as np

from headway.config import Role
from headway.config.routing import RoutingSettings
from headway.routing.decide.context import Refusal, RoutingState, SchedulingContext
from headway.routing.decide.scheduler import EVERYWHERE, Among, FreedSlots, RouteChoice, Scheduler
from headway.routing.dispatch.claims import KeptRoom, turned_away
from headway.routing.dispatch.patience import held_request, home_of, sheds, without_room
from headway.routing.dispatch.placing import Counters, Placing
from headway.routing.fleet.records import LazyHeap, Record, Replica, RequestPhase
from headway.routing.offload import AFTER_DEADLINE, OffloadDecision
from headway.routing.queue.fair_shares import cost_of
from headway.routing.queue.heads import ANY_ROLE, FREE, HeadRow, LineSearch, Marks
from headway.routing.queue.held_lines import HeldQueue, HeldRequest
from headway.routing.types import (
    NOTHING,
    Placement,
    PluginFault,
    RequestFault,
    RoutingOutcome,
    Shed,
    ShedReason,
)

MOST_TRIES = 64
"""Lines whose heads find no room after one event, at most, before the rest is left for the next."""

STAFFED_AT_ONCE = 200
"""Requests that waited for the first replica of a role, and are judged in one event; the rest at the next."""

LOOK_AGAIN_S, LOOK_AGAIN_TRIES = 0.5, 8
"""Seconds after which the most urgent lines, so many, ask all replicas: time alone makes room, too. And where
predictions are doubtful, which are not judged before."""


class FreedReplicas:
    """The replicas that may have room since held requests were last tried, which all were at `looked_s`."""

    def __init__(self) -> None:
        self._replicas: set[Replica] = set()
        self.looked_s = -inf

    def add(self, *replicas: Replica | None) -> None:
        """These may have room."""
        self._replicas.update(each for each in replicas if each is not None)

    def look_again(self) -> None:
        """Any may have room."""
        self.looked_s = -inf

    def take(self, now_s: float, roles: Sequence[Role]) -> FreedSlots:
        """Their slots; they are forgotten then."""
        freed, self._replicas = self._replicas, set()
        if now_s >= self.looked_s + LOOK_AGAIN_S:
            self.looked_s = now_s
            return EVERYWHERE
        slots = [sorted([it.slot for it in freed if it.ready and it.role is role]) for role in roles]
        return tuple(np.array(each, dtype=np.int64) for each in slots)


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
        self._shares = state.shares
        self._queue, self._deadlines = HeldQueue(self._shares), LazyHeap[Record]()
        self.freed = FreedReplicas()
        self._kept = KeptRoom(self._shares)
        self.placing = Placing(state, scheduler, counters, self._deadlines)
        self._found_room = True
        """True if the last newcomer that was tried did."""
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
        staffed = self._state.fleet.has(self._state.roles)
        if self._queue.unstaffed and staffed:
            return 0.0
        # Where nothing runs no event will come, and time alone makes room.
        stuck = len(self._records) == self.held > 0 and staffed
        again_s = self.freed.looked_s + LOOK_AGAIN_S if stuck else inf
        return min(self._queue.next_due_s, again_s, self._deadlines.least)

    def settle(self, now_s: float, record: Record) -> None:
        """Place, hold or shed a request that is nowhere."""
        answer: Placement | Refusal | None = None
        doubtful = self._state.latency.evidence.freshness.doubtful
        if self._queue and not doubtful and self._state.fleet.has(self._state.roles):
            answer = self._refused_alike(now_s, record)
        if answer is None:
            # Where others wait and one found no room, the next hardly will.
            answer = self._try(now_s, record, likely=self._found_room or not self._queue)
            self._found_room = isinstance(answer, Placement)
        if isinstance(answer, Placement):
            return
        if record.request.spills:
            self._shed(record, ShedReason.SPILLED, "it goes to another deployment")
            return
        if answer is not None and self._is_shed(now_s, record, answer):
            return
        if self.held >= self._settings.queue.max_requests and not self._made_room(record):
            self._shed(record, ShedReason.QUEUE_FULL, f"{self.held} requests wait")
        else:
            if not self._queue:
                self.freed.looked_s = now_s
            self._hold(now_s, record, answer, now_s)

    def drain(self, now_s: float) -> RoutingOutcome:
        """Shed those held whose time is over, and place those that can be, the most urgent first."""
        self.due = self.gathering
        if not self._queue or self.gathering:
            return self.outcome()
        if self._queue.unstaffed and self._state.fleet.has(self._state.roles):
            for held in list(islice(self._queue.unstaffed.values(), STAFFED_AT_ONCE)):
                with _turn_of(held.record):
                    self._staffed(now_s, held)
            self.freed.look_again()
        full = not self._state.fleet.has(self._state.roles)
        for held in self._queue.due(now_s):
            record = held.record
            if record.request.critical and not full:
                record.overdue = True
                with _turn_of(record):
                    # Thousands may be due at once: where one has found no place the others are not asked.
                    full = not isinstance(self._try(now_s, record), Placement)
            if record.phase is RequestPhase.QUEUED:
                waited = f"waited {now_s - held.held_s:.3f} s"
                self._shed(record, held.reason, f"{waited}; {held.explain()}" if held.explain else waited)
        if self._queue and self._state.fleet.has(self._state.roles):
            self._hand_out(now_s)
        return self.outcome()

    def expire(self, now_s: float) -> RoutingOutcome:
        """The same, after D was given what P has not done in time."""
        while self._deadlines.least <= now_s:
            record = self._deadlines.pop()
            decode = record.decode
            if decode is not None and decode.alive and record.offload is not None:
                with _turn_of(record):
                    self.colocate(now_s, record, decode, AFTER_DEADLINE)
        return self.drain(now_s)

    def colocate(self, now_s: float, record: Record, decode: Replica, decision: OffloadDecision) -> None:
        """Give an offloaded prompt to D after all."""
        self.take_back(now_s, record)
        self._place(now_s, record, self._scheduler.chosen(now_s, record, decode, decode, decision))

    def leave(self, now_s: float, record: Record) -> None:
        """Take a request from wherever it is."""
        if record.phase is RequestPhase.QUEUED:
            self._queue.remove(record.request.request_id)
        else:
            # A prompt that is computed has freed its own replica already.
            computed = record.phase is RequestPhase.DECODE
            self.freed.add(None if computed else record.prefill, record.decode)
            self.placing.released(now_s, record)

    def take_back(self, now_s: float, record: Record) -> None:
        """Its attempt has come to nothing, for which its tenant is not charged."""
        if record.phase is not RequestPhase.QUEUED:
            self._returned(record, record.charged)
            record.charged, record.charged_output = 0.0, 0
        self.leave(now_s, record)

    def ended(self, record: Record, output_tokens: int) -> None:
        """It has ended with so many output tokens; its tenant was charged for what was expected."""
        if record.attempt:
            self._returned(record, cost_of(0.0, record.charged_output - output_tokens))

    def _returned(self, record: Record, cost: float) -> None:
        """Its tenant was charged that much too much, by which its held requests rank."""
        self._shares.returned(record.request.tenant, cost)
        self._queue.served(record.request.tenant)

    def outcome(self) -> RoutingOutcome:
        """All that was placed and shed since the last call."""
        if not (self._placements or self._sheds):
            return NOTHING
        outcome = RoutingOutcome(tuple(self._placements), tuple(self._sheds))
        self._placements.clear()
        self._sheds.clear()
        return outcome

    def _context(self, now_s: float, record: Record) -> SchedulingContext:
        return SchedulingContext(self._state, now_s, record, self._state.roles[-1])

    def _hold(self, now_s: float, record: Record, refusal: Refusal | None, held_s: float) -> None:
        context = self._context(now_s, record)
        self._queue.push(held_request(context, refusal, held_s, self._settings.queue.max_wait_s))

    def _refused_alike(self, now_s: float, record: Record) -> Refusal | None:
        """A refusal for a newcomer that has to wait behind others, None if it may be tried.

        Those before it in its line found no room; or its tenant is ahead of others, and one that asks for no
        more than it waits. What asks for less than all that wait takes no room from them.
        """
        context = self._context(now_s, record)
        record.home = home_of(context)
        ahead = self._shares.ahead(record.request.tenant)
        if not (self._queue.waits_alike(record) or (ahead and self._queue.waits_for_less(record))):
            return None
        return without_room(context, "others like it wait")

    def _staffed(self, now_s: float, held: HeldRequest) -> None:
        """Judge one of `unstaffed`: all roles have replicas now. Its patience counts from when it came."""
        del self._queue.unstaffed[held.record.request.request_id]
        refusal = without_room(self._context(now_s, held.record), "no replica was ready when it came")
        self._queue.remove(held.record.request.request_id)
        self._hold(now_s, held.record, refusal, held.held_s)

    def _hand_out(self, now_s: float) -> None:
        """Place held requests at replicas that may have room for them, in the order of the queue."""
        self._queue.give_up(now_s)
        freed = self._scheduler.open_slots(now_s, self.freed.take(now_s, self._state.roles))
        if freed is None:
            return
        lines: Marks = self._queue.heads[HeadRow.ROLE] != FREE
        all_asked = self._state.latency.evidence.freshness.doubtful or not freed
        column, late_s, tries = -1, 0.0, LOOK_AGAIN_TRIES if all_asked else MOST_TRIES
        while freed is not None and tries:
            if column < 0:
                found = self._next_line(now_s, freed, lines)
                # A head that does not fit now does not fit once another is placed.
                lines, column, late_s = found.fits, found.column, found.late_s
                if column < 0:
                    break
            if (held := self._queue.later(column, late_s)) is None:
                lines[column], column = False, -1
                continue
            record = held.record
            try:
                with _turn_of(record):
                    answer = self._try(now_s, record, self._among(column, freed))
            except BaseException:
                self.freed.look_again()
                raise
            if isinstance(answer, Placement):
                self._queue.remove(record.request.request_id)
                freed, column = self._scheduler.open_slots(now_s, freed), -1
            elif answer is None:
                break
            elif self._is_shed(now_s, record, answer):
                column = -1
            else:
                self._queue.heads[HeadRow.ROLE, column] = answer.role
                # Once: those behind it that are due later may still be in time.
                late_s = answer.late_s if late_s == 0.0 else inf
                tries -= 1

    def _among(self, column: int, freed: FreedSlots) -> Among | None:
        """The candidates for a head: freed ones of the role that had no room for it, all of the other."""
        if not freed:
            return None
        role = int(self._queue.heads[HeadRow.ROLE, column])
        if role == ANY_ROLE:
            role = next(place for place, slots in enumerate(freed) if len(slots))
        return [slots if place == role and len(slots) else None for place, slots in enumerate(freed)]

    def _next_line(self, now_s: float, freed: FreedSlots, lines: Marks) -> LineSearch:
        """The next of these lines that is worth asking about."""
        queue = self._queue
        if not freed:
            column = queue.first(lines)
            return LineSearch(lines, lines, -1 if column is None else column, 0.0)
        search = LineSearch(lines, np.zeros(len(lines), dtype=np.bool_))
        for profile in queue.profiles.items():
            self._scheduler.look_through(now_s, queue.heads, profile, freed, search)
        return search

    def _is_shed(self, now_s: float, record: Record, refusal: Refusal) -> bool:
        """True if a refused request is shed at once, for which this does it."""
        if not sheds(now_s, record, refusal):
            return False
        self._queue.remove(record.request.request_id)
        self._shed(record, refusal.reason, refusal.explain(), refusal.retry_after_s)
        return True

    def _made_room(self, record: Record) -> bool:
        """In a full queue, shed one of the tenant that holds most for its weight, if that is another's or
        gives way to a critical one."""
        victim = self._queue.last_of_most()
        gives_way = record.request.critical and not victim.request.critical
        if victim.request.tenant == record.request.tenant and not gives_way:
            return False
        self._queue.remove(victim.request.request_id)
        self._shed(victim, ShedReason.QUEUE_FULL, f"{self.held} requests wait, most of them this tenant's")
        return True

    def _try(
        self, now_s: float, record: Record, among: Among | None = None, *, likely: bool = True
    ) -> Placement | Refusal | None:
        """Place a request; or why not, None where a role has no ready replica."""
        if not self._state.fleet.has(self._state.roles):
            return None
        try:
            barred = self._kept.barred(record.request.tenant)
            choice = self._scheduler.choose(now_s, record, among, barred, likely=likely)
        except PluginFault as fault:
            choice = self._scheduler.rescued(now_s, record, fault)
            self._counters.count("fallbacks", "plugin_fault")
        else:
            if not isinstance(choice, Refusal) and choice.pipeline.name != record.profile:
                self._counters.count("fallbacks", "no_prediction")
        if not isinstance(choice, Refusal):
            return self._place(now_s, record, choice)
        if among is None:
            self._kept.keep(record.request.tenant, choice.nearest, len(self._state.fleet))
        if choice.blocked_at >= 0:
            record.blocked_by = self._state.fleet.at(choice.blocked_at)
        return choice

    def _place(self, now_s: float, record: Record, choice: RouteChoice) -> Placement:
        tenant, uncached = record.request.tenant, record.request.input_tokens - choice.cached_tokens
        cost = cost_of(uncached, record.expected_output)
        record.charged, record.charged_output = cost, record.expected_output
        self._shares.served(tenant, cost)
        self._queue.served(tenant)
        placement = self.placing.place(now_s, record, choice)
        self._placements.append(placement)
        return placement

    def _shed(self, record: Record, reason: ShedReason, detail: str, retry_after_s: float = 1.0) -> None:
        request_id = record.request.request_id
        del self._records[request_id]
        if record.blocked_by is not None and reason is ShedReason.NO_HEADROOM:
            for spent in turned_away(record.blocked_by, record):
                self.placing.binds_no_more(spent)
                self.freed.add(record.blocked_by)
        shed = Shed(request_id=request_id, reason=reason, detail=detail, retry_after_s=retry_after_s)
        self._counters.count("sheds", reason)
        self._sheds.append(shed)


@contextmanager
def _turn_of(record: Record) -> Iterator[None]:
    """An error that is raised here belongs to this request; a PluginFault, which says more, stays one."""
    try:
        yield
    except PluginFault:
        raise
    except Exception as error:
        raise RequestFault(record.request.request_id) from error
