"""The router's own queue: which requests are held, for how long, and why.

`held_lines` says which is next. Patience, and the latest start where predictions do not judge, are in
docs/routing.md. There an idle replica's TTFT would be too hopeful: requests wait because none is idle, and in
overload all start at the last moment.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from enum import Enum, auto
from math import inf, isfinite

import numpy as np

from headway.config.routing import QueueSettings
from headway.routing.decide.candidates import sample_of
from headway.routing.decide.context import Refusal, RoutingState, SchedulingContext
from headway.routing.fleet.records import Record
from headway.routing.fleet.table import FloatArray
from headway.routing.predict.forecast import ForecastRow
from headway.routing.queue.fair_shares import TenantShares
from headway.routing.queue.heads import ANY_ROLE, Marks, RequestClass
from headway.routing.queue.held_lines import (
    CRITICAL_PATIENCE,
    NO_HOME,
    UrgencyQueue,
    WaitingRequest,
    line_of,
    pattern_of,
)
from headway.routing.types import ShedReason

WORTH_A_HOME = 0.25
"""The share of a prompt cached at a replica from which the request waits in a line for that replica."""


class Fate(Enum):
    """What becomes of a request that no replica should take now."""

    SHED = auto()
    WAIT_WHILE_HOPEFUL = auto()
    """Until even an idle replica would be too late (`Refusal.hopeful_until_s`)."""
    WAIT = auto()
    """As long as a request may; critical ones wait on after that, for a place whatever it costs others."""


FATES: Mapping[RequestClass, tuple[Fate, Fate]] = {
    # Waiting may help               it does not
    RequestClass.NAMES_SLO: (Fate.WAIT_WHILE_HOPEFUL, Fate.SHED),
    RequestClass.NAMES_NONE: (Fate.WAIT, Fate.WAIT),
    RequestClass.CRITICAL: (Fate.WAIT, Fate.WAIT),
}
"""While it waits a request is placed as `judge.DEMANDS` says."""

BY_PREDICTION = {ShedReason.NO_HEADROOM, ShedReason.SATURATED}
"""Reasons for which waiting helps a request that is judged by predictions only with `routing.slo.hold`."""


def fate_of(now_s: float, record: Record, refusal: Refusal, *, hold: bool) -> Fate:
    """What becomes of a refused request."""
    wanted = hold or not record.judged or refusal.reason not in BY_PREDICTION
    helps = wanted and refusal.hopeful_until_s >= now_s
    return FATES[_class_of(record)][0 if helps else 1]


def _class_of(record: Record) -> RequestClass:
    """Where no predictions judge, a request that names no SLO is held to what its profile says of it."""
    of_class = RequestClass.of(record.request)
    unjudged = of_class is RequestClass.NAMES_NONE and not record.judged
    return RequestClass.NAMES_SLO if unjudged else of_class


class HeldQueue:
    """The held requests, by id."""

    def __init__(self, settings: QueueSettings, shares: TenantShares) -> None:
        self._settings, self._shares = settings, shares
        self._waiting = UrgencyQueue(shares)
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

    @property
    def some_can_be_saved(self) -> bool:
        """True if requests wait whose SLO can still be kept."""
        return self._waiting.savable > 0

    @property
    def heads(self) -> FloatArray:
        """The table of the lines' heads (`heads.HeadRow`)."""
        return self._waiting.heads

    @property
    def profiles(self) -> Mapping[str, int]:
        """The profiles of those that ever waited, and the number of each in the table."""
        return self._waiting.profiles

    def refused_alike(self, now_s: float, record: Record, state: RoutingState) -> Refusal | None:
        """A refusal for a newcomer that has to wait behind others, None if it may be tried.

        Those before it in its line found no room; or its tenant is ahead of others that wait.
        """
        context = SchedulingContext(state, now_s, record, state.roles[-1])
        record.home = _home(context)
        of_line = line_of(
            record.request,
            record.slo,
            pattern_of(record.request, record.expected_output),
            record.home[0],
            record.profile,
        )
        if not (self._shares.ahead(record.request.tenant) or self._waiting.waits_alike(of_line)):
            return None
        return _without_room(context, "others like it wait")

    def add(self, now_s: float, record: Record, refusal: Refusal | None, state: RoutingState) -> None:
        """Hold a request; `refusal` is None where a role has no ready replica."""
        if refusal is None:
            self._unstaffed[record.request.request_id] = record
        self._push(SchedulingContext(state, now_s, record, state.roles[-1]), refusal, now_s)

    def staffed(self, now_s: float, record: Record, state: RoutingState) -> None:
        """Judge one of `unstaffed`: all roles have replicas now. Its patience counts from when it came."""
        del self._unstaffed[record.request.request_id]
        context = SchedulingContext(state, now_s, record, state.roles[-1])
        refusal = _without_room(context, "no replica was ready when it came")
        entry = self._waiting.remove(record.request.request_id)
        assert entry is not None
        self._push(context, refusal, entry.enqueued_s)

    def hold_on(self, now_s: float, record: Record, state: RoutingState) -> None:
        """Hold one that has waited as long as it may until there is a place for such ones."""
        context = SchedulingContext(state, now_s, record, state.roles[-1])
        entry = self._entry(context, None, record.request.arrival_s)
        self._waiting.push(replace(entry, expires_s=inf, start_by_s=-inf, forced=True))

    def remove(self, request_id: str) -> None:
        """Hold it no longer; nothing happens if it is not held."""
        self._waiting.remove(request_id)
        self._reasons.pop(request_id, None)
        self._unstaffed.pop(request_id, None)

    def served(self, tenant: str) -> None:
        """The tenant was given something."""
        self._waiting.served(tenant)

    def last_of_most(self) -> str:
        """The request that makes way in a full queue: one of the tenant that holds most for its weight."""
        return self._waiting.last_of(self._shares.most_waiting())

    def give_up(self, now_s: float) -> None:
        """Let those that can be saved no longer stand behind the others."""
        self._waiting.give_up(now_s)

    def first(self, among: Marks) -> tuple[int, str] | None:
        """The line, of those that are marked, and the request that is next; after `due` and `give_up`."""
        found = self._waiting.first(among)
        return None if found is None else (found[0], found[1].request.request_id)

    def refused(self, column: int, refusal: Refusal) -> None:
        """The head of that line found no room."""
        self._waiting.refused_by(column, refusal.role)

    def due(self, now_s: float) -> Iterator[tuple[str, ShedReason, str]]:
        """Those whose time is over, why they are shed, and in words; they are held no longer."""
        for entry in self._waiting.due(now_s):
            refusal = self._reasons.get(entry.request.request_id)
            self.remove(entry.request.request_id)
            waited = f"waited {now_s - entry.enqueued_s:.3f} s"
            saturated = refusal is not None and refusal.reason is ShedReason.SATURATED
            if refusal is not None and (saturated or refusal.hopeful_until_s <= entry.expires_s < inf):
                yield entry.request.request_id, refusal.reason, f"{waited}; {refusal.explain()}"
            else:
                yield entry.request.request_id, ShedReason.WAITED_TOO_LONG, waited

    def _push(self, context: SchedulingContext, refusal: Refusal | None, enqueued_s: float) -> None:
        entry = self._entry(context, refusal, enqueued_s)
        if refusal is not None:
            self._reasons[entry.request.request_id] = refusal
        self._waiting.push(entry)

    def _entry(
        self, context: SchedulingContext, refusal: Refusal | None, enqueued_s: float
    ) -> WaitingRequest:
        record, expires_s = context.record, enqueued_s + self._settings.max_wait_s
        if refusal is not None and FATES[_class_of(record)][0] is Fate.WAIT_WHILE_HOPEFUL:
            expires_s = min(expires_s, refusal.hopeful_until_s)
        home, cached_tokens = record.home = record.home or _home(context)
        return WaitingRequest(
            request=record.request,
            pattern=pattern_of(record.request, record.expected_output),
            enqueued_s=enqueued_s,
            start_by_s=_start_by_s(context, refusal),
            expires_s=expires_s,
            output_tokens=float(record.expected_output),
            home=home,
            cached_tokens=cached_tokens,
            role=ANY_ROLE if refusal is None else refusal.role,
            slo=record.slo,
            profile=record.profile,
            late_from_s=_late_from_s(context) if record.judged and record.request.critical else inf,
        )


def _home(context: SchedulingContext) -> tuple[int, float]:
    """The slot that has most of the prompt, and how many tokens of it."""
    request, state = context.record.request, context.state
    if not request.blocks:
        return NO_HOME, 0.0
    first = context.about(state.roles[0])
    if not len(first.slots):
        return NO_HOME, 0.0
    cached = first.cached_tokens
    place = int(np.argmax(cached))
    if cached[place] < WORTH_A_HOME * request.input_tokens:
        return NO_HOME, 0.0
    return int(first.slots[place]), float(cached[place])


def _without_room(context: SchedulingContext, why: str) -> Refusal:
    """The refusal of a request that no profile was asked about; by predictions if its profile uses them."""
    record, until_s = context.record, inf
    if record.judged and isfinite(context.alone_s[0]):
        until_s = context.hopeful_until_s
    return Refusal(reason=ShedReason.NO_HEADROOM, explain=lambda: why, hopeful_until_s=until_s, role=ANY_ROLE)


def _start_by_s(context: SchedulingContext, refusal: Refusal | None) -> float:
    """The latest start that keeps the SLO; without a prediction as if service took no time."""
    record = context.record
    if refusal is not None and (
        (record.judged and refusal.hopeful_until_s < inf) or record.slo.ttft_s == inf
    ):
        return refusal.hopeful_until_s
    deadline_s = record.request.arrival_s + record.slo.ttft_s
    if refusal is None:
        return deadline_s
    joined_s = _joined_s(context)
    return deadline_s - (context.state.latency.ttft_factor * joined_s if isfinite(joined_s) else 0.0)


def _late_from_s(context: SchedulingContext) -> float:
    """The time when half of that is over in which an idle replica could keep its TTFT SLO."""
    request, patience_s = context.record.request, context.record.slo.ttft_s - context.alone_s[0]
    return request.arrival_s + CRITICAL_PATIENCE * patience_s


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
