"""A choice becomes a placement: what is written down of it, and what is taken back when it ends.

The fleet's table holds its load, the prefix index and the sessions what it leaves behind, the deadlines when
an offloaded prompt is late, and the counters that it happened. What is put on a replica is taken off again,
exactly:

    place, resume   its prompt waits at the prefill replica; it is coming to the decode replica
    prefilled       it leaves the prefill replica's queue and runs at the decode replica
    progressed      the KV that it holds by now, and what is still expected, replace what was thought
    released        whatever it still held is given back

Counts and tokens are whole or half numbers, so sums return to 0 without error; seconds and loads are set to 0
when the last request leaves. Prefill duty is a moving average of work placed, w seconds a time, over half
of a decode's usual stay τ, which is what those running have before them:

    duty(t) = duty(t') e^{−2 (t − t') / τ},   and duty + 2 w / τ when work w is placed
"""

from collections import Counter
from collections.abc import Mapping, Set
from math import inf

from headway.config import Role
from headway.routing.decide.context import RoutingState
from headway.routing.decide.scheduler import RouteChoice, Scheduler
from headway.routing.fleet.records import LazyHeap, Record, Replica, RequestPhase
from headway.routing.fleet.table import (
    DUTY_MEMORY,
    ENDED,
    PLACED,
    PREFILLED,
    WITHDRAWN,
    Entry,
    FleetRow,
    Step,
    change,
)
from headway.routing.offload import OffloadReason
from headway.routing.predict.forecast import is_idle
from headway.routing.types import Figures, Labels, Placement, Running

KV_TOKENS, COMING_TOKENS = int(FleetRow.KV_TOKENS), int(FleetRow.COMING_TOKENS)
RESERVED_TOKENS, OUTPUT_TOKENS = int(FleetRow.RESERVED_TOKENS), int(FleetRow.OUTPUT_TOKENS)

OVERDUE_PART = 10
"""One that is overdue may cost all that are at its replica, so that takes one for so many times as many
others."""

NAMES = ("placements", "sheds", "fallbacks", "unknown_events", "ended")


class Counters:
    """The router's counters, by name and labels.

    placements      (profile, route class, reason)
    sheds           (reason,)
    fallbacks       (reason,)    no_prediction: routing.fallback placed; plugin_fault: least load did
    unknown_events  (event,)     about requests or replicas that the router does not know
    ended           (outcome,)   completed, failed, retried
    """

    def __init__(self) -> None:
        self._counts: dict[str, Counter[Labels]] = {name: Counter() for name in NAMES}

    def count(self, name: str, *labels: str) -> None:
        """One more of one of them."""
        self._counts[name][labels] += 1

    def snapshot(self) -> Mapping[str, Figures]:
        """All counters as they are now."""
        return {name: dict(counts) for name, counts in self._counts.items()}


class Placing:
    """Writes for one router."""

    def __init__(
        self, state: RoutingState, scheduler: Scheduler, counters: Counters, deadlines: LazyHeap[Record]
    ) -> None:
        self._state, self._scheduler, self._counters = state, scheduler, counters
        self._fleet, self._deadlines = state.fleet, deadlines

    def place(self, now_s: float, record: Record, choice: RouteChoice) -> Placement:
        """Enter a choice, and tell of it."""
        self.enter(now_s, record, choice)
        decision, predicted = choice.offload, choice.ttft_s == choice.ttft_s
        profile = choice.pipeline.name
        record.attempt += 1
        queued_s = now_s - record.request.arrival_s
        deadline_s = inf if decision is None or decision.deadline_s is None else decision.deadline_s
        placement = Placement(
            request_id=record.request.request_id,
            prefill_replica=choice.prefill.name,
            decode_replica=choice.decode.name,
            profile=profile,
            # Where nothing was to be decided the profile's name stands for the reason.
            reason=decision.reason if decision and decision.reason is not OffloadReason.NEVER else profile,
            route_class=None if decision is None else decision.route_class,
            predicted_ttft_s=queued_s + choice.ttft_s if predicted else None,
            predicted_tpot_s=choice.tpot_s if predicted else None,
            cached_tokens=choice.cached_tokens,
            deadline_s=deadline_s,
            attempt=record.attempt,
            queued_s=queued_s,
            cached_by=self._state.prefixes.source(choice.prefill.slot),
        )
        if deadline_s < inf:
            self._deadlines.push(deadline_s, record.number, record)
        self._counters.count("placements", profile, placement.route_class or "", placement.reason)
        return placement

    def enter(self, now_s: float, record: Record, choice: RouteChoice) -> None:
        """Write a choice down."""
        request = record.request
        record.prefill, record.decode, record.offload = choice.prefill, choice.decode, choice.offload
        record.cached_tokens, record.prefilled_s, record.handover = choice.cached_tokens, -1.0, None
        entry = _entry_of(record, choice)
        record.entry = tuple(entry)
        # As plain tuples: those of figures alone are nothing to the garbage collector.
        record.tracked = tuple([(*each,) for each in choice.tracked])
        record.ttft_s, record.tpot_s = choice.ttft_s, choice.tpot_s
        record.guard_s = self._scheduler.guard_s(now_s, record, choice)
        prefill, decode = choice.prefill, choice.decode
        idle = all(it.alive and is_idle(self._fleet.table, it.slot) for it in {prefill, decode})
        record.found_idle = decode.entered if idle else -1
        decode.entered += 1
        self._step(record, PLACED, now_s)
        prefill.prompts_placed += 1
        self._state.reports.prompt_placed(entry.uncached)
        if prefill.alive:
            prefill.waiting[record.number] = record
            if not record.refused:
                self._fleet.table[FleetRow.PROMPT_AT_S, prefill.slot] = now_s
            self._state.prefixes.insert(prefill.slot, request.blocks)
        if decode.alive:
            decode.running.push(record.guard_s, record.number, record)
            self._bind(decode)
        if record.overdue:
            for each in {prefill, decode}:
                each.overdue_from = each.taken + OVERDUE_PART * (len(each.running) + len(each.waiting))
        record.phase, record.placed_s = RequestPhase.PREFILL, now_s
        self._state.sessions.placed(request.session, prefill, decode)
        self._state.adapters.placed(now_s, request.adapter, _slots(record), float(record.need_tokens))

    def resume(self, now_s: float, record: Record, choice: RouteChoice, running: Running) -> None:
        """Enter a request that is on its replicas already."""
        self.enter(now_s, record, choice)
        placement = running.placement
        record.attempt, record.placed_s = placement.attempt, running.request.arrival_s + placement.queued_s
        record.first_token_s, record.output_tokens = running.first_token_s, running.output_tokens
        if running.prefilled:
            self.prefilled(now_s, record)
            if running.output_tokens > 0:
                self.progressed(
                    record, running.output_tokens, max(record.expected_output, running.output_tokens)
                )
        elif placement.deadline_s < inf:
            self._deadlines.push(placement.deadline_s, record.number, record)

    def prefilled(self, now_s: float, record: Record) -> None:
        """Its prompt is computed: the prefill replica's estimate starts anew from what is left."""
        self._deadlines.discard(record.number)
        self._sent(record)
        prefill, _ = _replicas(record)
        if prefill.alive:
            self._state.prefixes.computed(prefill.slot, record.request.blocks)
        self._step(record, PREFILLED, now_s)
        record.phase = RequestPhase.DECODE

    def progressed(self, record: Record, output_tokens: int, expected_output: int) -> None:
        """So many of its tokens are there, and it is thought to have `expected_output` of them in the end.

        Its KV holds those that are there, and will on average hold half of what is to come.
        """
        entry, decode = Entry(*record.entry), record.decode
        assert decode is not None
        tokens, expected = float(record.request.input_tokens), float(expected_output)
        mean = tokens + 0.5 * (output_tokens + expected)
        if decode.alive:
            # Few cells of one column: to call compiled code would take longer.
            table, slot = self._fleet.table, decode.slot
            row = KV_TOKENS if record.phase is RequestPhase.DECODE else COMING_TOKENS
            table[row, slot] += mean - entry.mean
            if (more := expected - entry.output) != 0.0:
                table[RESERVED_TOKENS, slot] += more
                table[OUTPUT_TOKENS, slot] += more
        record.output_tokens, record.expected_output = output_tokens, expected_output
        record.entry = tuple(entry._replace(need=tokens + expected, mean=mean, output=expected))

    def released(self, now_s: float, record: Record) -> None:
        """Take the request off its replicas, whatever its phase."""
        self._deadlines.discard(record.number)
        prefill, decode = _replicas(record)
        if record.request.adapter:
            self._state.adapters.released(record.request.adapter, _slots(record))
        for replica in (prefill, decode):
            if replica.alive:
                self._state.prefixes.computed(replica.slot, record.request.blocks)
        decode.running.discard(record.number)
        decode.requests_left += 1
        self._bind(decode)
        self._step(record, ENDED if record.phase is RequestPhase.DECODE else WITHDRAWN, now_s)
        record.prefill = record.decode = None
        record.phase = RequestPhase.QUEUED

    def binds_no_more(self, record: Record) -> None:
        """Its SLO is lost: its TPOT is nothing that newcomers at its replica have to keep."""
        decode = record.decode
        record.guard_s = inf
        if decode is not None and decode.alive:
            decode.running.discard(record.number)
            decode.running.push(inf, record.number, record)
            self._bind(decode)

    def _bind(self, decode: Replica) -> None:
        """Newcomers there have to keep the tightest TPOT SLO of those that are there."""
        if decode.alive:
            self._fleet.table[FleetRow.TPOT_SLO_S, decode.slot] = decode.running.least

    def _step(self, record: Record, step: Step, now_s: float) -> None:
        prefill, decode = _replicas(record)
        slots, memory_s = (_slot(prefill), _slot(decode)), DUTY_MEMORY * self._state.latency.stay_s
        change(self._fleet.table, *slots, record.entry, step, now_s, memory_s)
        if step[0] < 0.0:
            prefill.waiting.pop(record.number, None)
            prefill.prompts_left += 1
            prefill.requests_left += prefill is not decode

    def _sent(self, record: Record) -> None:
        """The KV of an offloaded prompt is on its way to D, which caches it."""
        request, (prefill, decode) = record.request, _replicas(record)
        if prefill is not decode and decode.alive and decode.role is Role.MIXED:
            blocks = self._state.prefixes.run_at(decode.slot, request.blocks)
            cached = min(blocks * request.block_tokens, request.input_tokens)
            self._state.handovers.sent(record, request.input_tokens - cached)
            self._state.prefixes.insert(decode.slot, request.blocks)


def _entry_of(record: Record, choice: RouteChoice) -> Entry:
    """The figures of a request at its two replicas, for the fleet's table."""
    tokens, output = float(record.request.input_tokens), float(record.expected_output)
    split = choice.prefill is not choice.decode
    return Entry(
        uncached=tokens - record.cached_tokens,
        busy_s=choice.busy_s,
        work_s=choice.work_s,
        held=tokens if split and choice.prefill.role is Role.MIXED else 0.0,
        prefill_load=choice.prefill_load if split else 0.0,
        need=tokens + output,
        mean=tokens + 0.5 * output,
        output=output,
        load=choice.load,
    )


def _slots(record: Record) -> Set[int]:
    return {replica.slot for replica in _replicas(record) if replica.alive}


def _slot(replica: Replica) -> int:
    return replica.slot if replica.alive else -1


def _replicas(record: Record) -> tuple[Replica, Replica]:
    assert record.prefill is not None
    assert record.decode is not None
    return record.prefill, record.decode
