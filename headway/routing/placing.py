"""A choice becomes a placement: what is written down of it, and what is taken back when it ends.

The books (`ledger`) hold its load, the prefix index and the sessions what it leaves behind, the deadlines
when an offloaded prompt is late, and the counters that it happened.
"""

from math import inf

from headway.config.roles import Role
from headway.routing.counters import Counters
from headway.routing.lazy_heap import LazyHeap
from headway.routing.ledger import Ledger, entry_of
from headway.routing.offload import OffloadReason
from headway.routing.question import Knowledge
from headway.routing.record import Record
from headway.routing.scheduler import Choice, Scheduler
from headway.routing.types import Placement, Running


class Placing:
    """Writes for one router."""

    def __init__(
        self, know: Knowledge, scheduler: Scheduler, counters: Counters, deadlines: LazyHeap[Record]
    ) -> None:
        self._know, self._scheduler, self._counters = know, scheduler, counters
        self._deadlines, self._ledger = deadlines, Ledger(know.fleet)

    def place(self, now_s: float, record: Record, choice: Choice) -> Placement:
        """Enter a choice, and tell of it."""
        self.enter(now_s, record, choice)
        decision, predicted = choice.offload, choice.ttft_s == choice.ttft_s
        record.attempt += 1
        queued_s = now_s - record.request.arrival_s
        deadline_s = inf if decision is None or decision.deadline_s is None else decision.deadline_s
        placement = Placement(
            request_id=record.request.request_id,
            prefill_replica=choice.prefill.name,
            decode_replica=choice.decode.name,
            profile=choice.pipeline.name,
            reason=_reason(choice),
            route_class=None if decision is None else decision.route_class,
            predicted_ttft_s=queued_s + choice.ttft_s if predicted else None,
            predicted_tpot_s=choice.tpot_s if predicted else None,
            cached_tokens=choice.cached_tokens,
            deadline_s=deadline_s,
            attempt=record.attempt,
            queued_s=queued_s,
        )
        record.placement = placement
        if deadline_s < inf:
            self._deadlines.push(deadline_s, record.number, record)
        self._counters.placed(placement)
        return placement

    def enter(self, now_s: float, record: Record, choice: Choice) -> None:
        """Write a choice in the books."""
        request = record.request
        record.prefill, record.decode, record.offload = choice.prefill, choice.decode, choice.offload
        record.cached_tokens, record.prefilled_s, record.handover = choice.cached_tokens, -1.0, None
        record.entry = entry_of(record, choice.busy_s, choice.work_s, choice.prefill_load, choice.load)
        record.ttft_s, record.tpot_s, record.tracked = choice.ttft_s, choice.tpot_s, choice.tracked
        record.ttft_slack_s, record.guard_s = self._scheduler.guards(now_s, record, choice)
        self._ledger.placed(record, now_s, self._know.latency.stay_s)
        if choice.prefill.alive:
            self._know.prefixes.insert(choice.prefill.slot, request.blocks)
        self._know.sessions.placed(request.session, choice.prefill, choice.decode)

    def resume(self, now_s: float, record: Record, choice: Choice, running: Running) -> None:
        """Enter a request that is on its replicas already."""
        self.enter(now_s, record, choice)
        placement = record.placement = running.placement
        record.attempt, record.placed_s = placement.attempt, running.request.arrival_s + placement.queued_s
        record.first_token_s, record.output_tokens = running.first_token_s, running.output_tokens
        if running.prefilled:
            self.prefilled(now_s, record)
        elif placement.deadline_s < inf:
            self._deadlines.push(placement.deadline_s, record.number, record)

    def prefilled(self, now_s: float, record: Record) -> None:
        """Its prompt is computed."""
        self._deadlines.discard(record.number)
        self._remember(record)
        self._ledger.prefilled(record, now_s)

    def released(self, record: Record) -> None:
        """It is on its replicas no longer."""
        self._deadlines.discard(record.number)
        self._ledger.released(record)

    def _remember(self, record: Record) -> None:
        """Count cache hits; the KV of an offloaded prompt is on its way to D, which caches it."""
        request, decode = record.request, record.decode
        self._counters.add("prompt_tokens", "all", request.input_tokens)
        self._counters.add("prompt_tokens", "local", record.cached_tokens)
        if record.split and decode is not None and decode.alive and decode.role is Role.MIXED:
            blocks = self._know.prefixes.run_at(decode.slot, request.blocks)
            cached = min(blocks * request.block_tokens, request.input_tokens)
            self._counters.add("prompt_tokens", "all", request.input_tokens)
            self._counters.add("prompt_tokens", "local", cached)
            self._counters.add("prompt_tokens", "external", request.input_tokens - cached)
            self._know.handovers.sent(record, request.input_tokens - cached)
            self._know.prefixes.insert(decode.slot, request.blocks)


def _reason(choice: Choice) -> str:
    """The offload decision's reason; the profile's name where nothing was to be decided."""
    decision = choice.offload
    if decision is None or decision.reason is OffloadReason.NEVER:
        return choice.pipeline.name
    return decision.reason
