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
from headway.routing.decide.context import Refusal, RoutingState
from headway.routing.decide.offload import after_deadline
from headway.routing.decide.scheduler import Among, FreedSlots, RouteChoice, Scheduler
from headway.routing.dispatch.claims import GuardBalance, KeptRoom, Tightness
from headway.routing.dispatch.held_queue import Fate, HeldQueue, fate_of
from headway.routing.dispatch.placing import Counters, Placing
from headway.routing.fleet.records import NO_CHARGE, Charge, LazyHeap, Record, Replica, RequestPhase
from headway.routing.offload import OffloadDecision
from headway.routing.queue.fair_shares import cost_of
from headway.routing.queue.heads import ANY_ROLE, HeadRow, Marks
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
"""Seconds after which the most urgent lines, so many, ask all replicas: time alone makes room, too."""


class FreedReplicas:
    """The replicas that may have room since held requests were last tried."""

    def __init__(self) -> None:
        self._replicas: set[Replica] = set()
        self._looked_s = -inf

    @property
    def next_look_s(self) -> float:
        """When all are looked at again."""
        return self._looked_s + LOOK_AGAIN_S

    def add(self, *replicas: Replica | None) -> None:
        """These may have room."""
        self._replicas.update(each for each in replicas if each is not None)

    def looked(self, now_s: float) -> None:
        """All that wait have just asked all."""
        self._looked_s = now_s

    def look_again(self) -> None:
        """Any may have room."""
        self._looked_s = -inf

    def take(self, now_s: float, roles: Sequence[Role]) -> FreedSlots:
        """Their slots; they are forgotten then."""
        freed, self._replicas = self._replicas, set()
        if now_s >= self._looked_s + LOOK_AGAIN_S:
            self._looked_s = now_s
            return FreedSlots(everywhere=True)
        of_roles: dict[Role, list[int]] = {role: [] for role in roles}
        for each in freed:
            if each.ready and each.alive and each.role in of_roles:
                of_roles[each.role].append(each.slot)
        return FreedSlots(
            of_roles=tuple(np.array(sorted(slots), dtype=np.int64) for slots in of_roles.values())
        )


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
        self._queue, self._deadlines = HeldQueue(settings.queue, self._shares), LazyHeap[Record]()
        self.freed = FreedReplicas()
        self._tightness, self._kept, self._guards = Tightness(), KeptRoom(self._shares), GuardBalance()
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
        # Where nothing runs no event will come, and time alone makes room.
        stuck = len(self._records) == self.held > 0 and self._state.fleet.has(self._state.roles)
        again_s = self.freed.next_look_s if stuck else inf
        if self._queue.unstaffed and self._state.fleet.has(self._state.roles):
            return 0.0
        return min(self._queue.next_due_s, again_s, inf if first is None else first[0])

    def settle(self, now_s: float, record: Record) -> None:
        """Place, hold or shed a request that is nowhere."""
        answer: Placement | Refusal | None = None
        doubtful = self._state.latency.evidence.freshness.doubtful
        if self._queue and not doubtful and self._state.fleet.has(self._state.roles):
            answer = self._queue.refused_alike(now_s, record, self._state)
        # Where others wait, few of those that come find room.
        answer = answer or self._try(now_s, record, likely=not self._queue)
        if isinstance(answer, Placement):
            return
        if answer is not None and self._is_shed(now_s, record, answer):
            return
        if self._queue.full and not self._made_room(record):
            self._shed(record, ShedReason.QUEUE_FULL, f"{self.held} requests wait")
        else:
            if not self._queue:
                self.freed.looked(now_s)
            self._queue.add(now_s, record, answer, self._state)

    def drain(self, now_s: float) -> RoutingOutcome:
        """Shed those held whose time is over, and place those that can be, the most urgent first."""
        self.due = self.gathering
        if not self._queue or self.gathering:
            return self.outcome()
        if self._queue.unstaffed and self._state.fleet.has(self._state.roles):
            for request_id, record in list(islice(self._queue.unstaffed.items(), STAFFED_AT_ONCE)):
                with _turn_of(request_id):
                    self._queue.staffed(now_s, record, self._state)
            self.freed.look_again()
        full = False
        for request_id, reason, detail in self._queue.due(now_s):
            record = self._records[request_id]
            if record.request.critical and self._state.fleet.has(self._state.roles):
                full = not self._forced(now_s, record, full=full)
            else:
                self._shed(record, reason, detail)
        if self._queue and self._state.fleet.has(self._state.roles):
            self._hand_out(now_s)
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
        self.take_back(record)
        self._place(now_s, record, self._scheduler.chosen(now_s, record, decode, decode, decision))

    def leave(self, record: Record) -> None:
        """Take a request from wherever it is."""
        if record.phase is RequestPhase.QUEUED:
            self._queue.remove(record.request.request_id)
        else:
            # A prompt that is computed has freed its own replica already.
            computed = record.phase is RequestPhase.DECODE
            self.freed.add(None if computed else record.prefill, record.decode)
            self.placing.released(record)

    def take_back(self, record: Record) -> None:
        """Its attempt has come to nothing, for which its tenant is not charged."""
        if record.phase is not RequestPhase.QUEUED:
            self._returned(record, record.charge.cost)
            record.charge = NO_CHARGE
        self.leave(record)

    def gone(self, replica: Replica) -> None:
        """The replica is there no more."""
        self._guards.forget(replica)

    def kept(self, record: Record) -> None:
        """It is about to end, within its SLO."""
        if record.guard_s < inf:
            self._guards.kept(record.decode, record)

    def ended(self, record: Record, output_tokens: int) -> None:
        """It has ended with so many output tokens; its tenant was charged for what was expected."""
        if record.placement is not None:
            charge = record.charge
            self._returned(record, charge.times * cost_of(0.0, charge.output_tokens - output_tokens))

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

    def _hand_out(self, now_s: float) -> None:
        """Place held requests at replicas that may have room for them, in the order of the queue."""
        self._queue.give_up(now_s)
        freed = self._scheduler.open_slots(now_s, self.freed.take(now_s, self._state.roles))
        lines: Marks = self._queue.heads[HeadRow.LIVE] > 0.0
        judged, tries = False, LOOK_AGAIN_TRIES if freed is not None and freed.everywhere else MOST_TRIES
        while freed is not None and tries:
            if not judged:
                # A head that does not fit now does not fit once another is placed.
                lines, judged = self._fitting(now_s, freed, lines), True
            if (found := self._queue.first(lines)) is None:
                break
            column, request_id = found
            record = self._records[request_id]
            try:
                with _turn_of(request_id):
                    answer = self._try(now_s, record, self._among(column, freed))
            except BaseException:
                self.freed.look_again()
                raise
            if isinstance(answer, Placement):
                self._queue.remove(request_id)
                freed, judged = self._scheduler.open_slots(now_s, freed), False
            elif answer is None:
                break
            elif self._is_shed(now_s, record, answer):
                judged = False
            else:
                self._queue.refused(column, answer)
                lines[column] = judged = False
                tries -= 1
        if freed is not None and freed.everywhere:
            self._look_for_forced(now_s)

    def _look_for_forced(self, now_s: float) -> None:
        """Let those that have waited as long as they may ask all replicas, after whom none is left to try.

        At freed replicas they find room only where they harm nobody, and the more urgent come first.
        """
        heads = self._queue.heads
        while (found := self._queue.first((heads[HeadRow.LIVE] * heads[HeadRow.FORCED]) > 0.0)) is not None:
            with _turn_of(found[1]):
                if not isinstance(self._try(now_s, self._records[found[1]]), Placement):
                    return
                self._queue.remove(found[1])

    def _among(self, column: int, freed: FreedSlots) -> Among | None:
        """The candidates for a head: freed ones of the role that had no room for it, all of the other."""
        if freed.everywhere:
            return None
        role = int(self._queue.heads[HeadRow.ROLE, column])
        if role == ANY_ROLE:
            role = next(place for place, slots in enumerate(freed.of_roles) if len(slots))
        return [slots if place == role and len(slots) else None for place, slots in enumerate(freed.of_roles)]

    def _fitting(self, now_s: float, freed: FreedSlots, open_lines: Marks) -> Marks:
        """The open lines whose heads are worth asking about, bool[lines]."""
        if freed.everywhere:
            return open_lines.copy()
        heads, profiles = self._queue.heads, self._queue.profiles
        fitting: Marks = np.zeros_like(open_lines)
        for profile, number in profiles.items():
            of_profile = open_lines & (heads[HeadRow.PROFILE] == number) if len(profiles) > 1 else open_lines
            fitting |= self._scheduler.fitting(now_s, heads, profile, freed, of_profile)
        return fitting

    def _is_shed(self, now_s: float, record: Record, refusal: Refusal) -> bool:
        """True if a refused request is shed at once, for which this does it."""
        if fate_of(now_s, record, refusal, hold=self._settings.slo.hold) is not Fate.SHED:
            return False
        self._queue.remove(record.request.request_id)
        self._shed(record, refusal.reason, refusal.explain(), refusal.retry_after_s)
        return True

    def _forced(self, now_s: float, record: Record, *, full: bool) -> bool:
        """A critical request has waited as long as it may: it is placed (True), or waits for a place.

        Where one like it has just found none it is not asked: thousands may be due at once.
        """
        record.forced = True
        with _turn_of(record.request.request_id):
            # It waits already while it is tried: an error then leaves it where it is.
            self._queue.hold_on(now_s, record, self._state)
            if full or not isinstance(self._try(now_s, record), Placement):
                return False
            self._queue.remove(record.request.request_id)
        return True

    def _turned_away(self, replica: Replica, record: Record) -> None:
        """A request is shed that only the SLOs of those at this replica kept out."""
        spent = self._guards.turned_away(replica, record)
        for each in spent:
            self.placing.binds_no_more(each)
        if spent:
            self.freed.add(replica)

    def _made_room(self, record: Record) -> bool:
        """In a full queue, shed one of the tenant that holds most for its weight, if that is another's.

        Where all of those are critical, which are never shed, the queue is fuller than it should be by one.
        """
        victim = self._records[self._queue.last_of_most()]
        if victim.request.tenant == record.request.tenant:
            return record.request.critical
        if victim.request.critical:
            return True
        self._queue.remove(victim.request.request_id)
        self._shed(victim, ShedReason.QUEUE_FULL, f"{self.held} requests wait, most of them this tenant's")
        return True

    def _try(
        self, now_s: float, record: Record, among: Among | None = None, *, likely: bool = True
    ) -> Placement | Refusal | None:
        """Place a request; or why not, None where a role has no ready replica."""
        if not self._state.fleet.has(self._state.roles):
            return None
        record.yields = record.forced and self._queue.some_can_be_saved
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
        times = self._tightness.of(now_s, record, self._state) if self._shares.several else 1.0
        cost = times * cost_of(uncached, record.expected_output)
        record.charge = Charge(cost, record.expected_output, times)
        self._shares.served(tenant, cost)
        self._queue.served(tenant)
        placement = self.placing.place(now_s, record, choice)
        self._placements.append(placement)
        return placement

    def _shed(self, record: Record, reason: ShedReason, detail: str, retry_after_s: float = 1.0) -> None:
        request_id = record.request.request_id
        del self._records[request_id]
        if record.blocked_by is not None and reason is ShedReason.NO_HEADROOM:
            self._turned_away(record.blocked_by, record)
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
