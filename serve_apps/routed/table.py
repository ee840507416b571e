"""The requests of one gateway, and the events that the router has yet to hear of. No tasks, no calls.

A request that wants a place (`submit`, `again`) gets it from the router (`hello`, `batch` -> `answered`,
`deliver`), or by `fallback` when that takes too long or no router answers (`lost`). Where `fallback` finds no
room, it waits for some here, in the order in which they came, as long as the router would hold it; a router
that is back takes over all that wait.

A placement of our own is entered at its replicas at once: of many requests that are placed in the same moment
each sees where the others went, which would be known otherwise only once they are sent.

A placement that comes for a request which is placed already takes the place of the first one if its attempt
is higher and no token has come; else it is old news: the events that follow set the router right.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import inf

from actors.routing.messages import (
    Advanced,
    Again,
    Batch,
    BatchAnswer,
    Changed,
    Completed,
    Event,
    Failed,
    FirstToken,
    Messages,
    OnReplica,
    Placed,
    Prefilled,
    Submit,
)
from headway.planning import Role
from headway.routing.types import KnownBlocks, OutputProgress, Placement, RouteRequest, Shed, ShedReason
from serve_apps.gateway.backend import BackendError, Overloaded
from serve_apps.membership import Membership
from serve_apps.routed.metrics import RoutingCounts
from serve_apps.routed.replicas import ReplicaDiff
from serve_apps.routed.requests import RequestState, RoutedRequest

Fallback = Callable[[RouteRequest], Placement]
"""Places a request without the router. NotReady where no replica runs, Overloaded where all are saturated."""

SLACK_S = 5.0
"""Seconds beyond the longest wait after which the router has forgotten a request."""

RETRY_S, AT_ONCE = 0.05, 64
"""Seconds after which those that wait here are tried again, and how many of them at once: the event loop has
others to serve."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitLimits:
    """The longest that a request waits, in seconds."""

    call_timeout_s: float = 0.25
    """For an answer."""
    max_wait_s: float = 60.0
    """In the router's queue."""
    gone_s: float = 10.0
    """In the queue of a router that has gone."""
    most_waiting: int = 10_000
    """So many requests may wait here for room."""


class RequestTable:
    """Requests and events. `wake(urgent)` is called when there is something to send."""

    def __init__(
        self,
        pools: Mapping[Role, Membership],
        fallback: Fallback,
        limits: WaitLimits,
        clock: Callable[[], float],
        wake: Callable[[bool], None],
    ) -> None:
        self.counts = RoutingCounts()
        self.down = False
        """True once the router did not answer, until it does."""
        self._gone = False
        self._pools = pools
        self.diff = ReplicaDiff(pools, self._in_use)
        self._fallback, self._limits, self._clock, self._wake = fallback, limits, clock, wake
        self._requests: dict[str, RoutedRequest] = {}
        self._events: list[Event] = []
        self._asking: list[RoutedRequest] = []
        self._asked: list[RoutedRequest] = []
        self._waiting: dict[str, tuple[RoutedRequest, str]] = {}
        """For room, without the router: by id, in order, each with the reason why it is placed here."""
        self._retry: asyncio.TimerHandle | None = None
        self._session = 0

    def submit(self, request: RouteRequest) -> RoutedRequest:
        """A request wants a place."""
        routed = self._requests[request.request_id] = RoutedRequest(request, self)
        self._ask(routed, Submit(self._clock(), request))
        return routed

    def again(self, routed: RoutedRequest) -> None:
        """It wants another place."""
        routed.state = RequestState.ASKED
        self._ask(routed, Again(self._clock(), routed.request))

    def prefilled(self, routed: RoutedRequest) -> None:
        """Its prompt is computed."""
        self._push(Prefilled(self._clock(), routed.request.request_id), urgent=_has_deadline(routed))

    def first_token(self, routed: RoutedRequest) -> None:
        """Its first token has come; the router measures how long KV travelled, which does not keep."""
        self._push(FirstToken(self._clock(), routed.request.request_id), urgent=_has_deadline(routed))

    def ended(self, routed: RoutedRequest, *, complete: bool) -> None:
        """It has ended."""
        request_id, now_s = routed.request.request_id, self._clock()
        self._close(routed)
        if complete:
            self._push(Completed(now_s, request_id, routed.output_tokens))
            return
        if routed.output_tokens > routed.reported_tokens:
            # It is charged for what it had since the last report, too.
            self._push(Advanced(now_s, (OutputProgress(request_id, routed.output_tokens),)))
        self._push(Failed(now_s, request_id))

    def known(self, replica: str, blocks: KnownBlocks) -> None:
        """What a replica says of its prefix cache; of one that the router has not heard of it is dropped."""
        reported = self.diff.reported(replica)
        if reported is not None:
            self._push(Changed(self._clock(), replace(reported, load=None, blocks_at=None, blocks=blocks)))

    def reused(self, routed: RoutedRequest, cached_tokens: int) -> None:
        """Its engine says what it had of the prompt: compare it with what was thought when it was placed."""
        if routed.placement is not None and routed.placement.cached_by:
            self.counts.reused(routed.placement, routed.request.input_tokens, cached_tokens)

    def hello(self) -> Batch:
        """All that there is, for a router that begins a session."""
        now_s = self._clock()
        self._session += 1
        self._events.clear()
        self._asking = []
        self._asked = [
            routed for routed in self._requests.values() if routed.state is not RequestState.PLACED
        ]
        events: list[Event] = [
            *(Changed(now_s, update) for update in self.diff.all(now_s)),
            *(Placed(now_s, running) for running in self._running()),
            *(Submit(now_s, routed.request) for routed in self._asked),
        ]
        return Batch(self._session, now_s, tuple(events), hello=True)

    def batch(self, *, report: bool, sign: bool = False) -> Batch | None:
        """The events since the last batch, and the progress of requests if `report`; None: no news.

        With `sign` there is a batch all the same.
        """
        now_s = self._clock()
        events, self._events = self._events, []
        self._asked, self._asking = self._asking, []
        begun_s = events[0].at_s if events else now_s
        news = [Changed(begun_s, update) for update in self.diff.news(now_s)]
        if report and (progress := self._progress()):
            events.append(Advanced(now_s, progress))
        return Batch(self._session, now_s, (*news, *events)) if sign or news or events else None

    @property
    def idle(self) -> bool:
        """True if a report would hold nothing."""
        return not self._requests and not self._events and not self.diff.stale

    def answered(self, answer: BatchAnswer) -> None:
        """A batch has arrived: requests that got no place are held."""
        self.down = self._gone = False
        self.counts.queued = answer.queued
        if answer.figures is not None:
            self.counts.figures = answer.figures
        self.deliver(answer.messages)
        for routed in self._asked:
            if routed.state in {RequestState.ASKED, RequestState.HELD}:
                self._waiting.pop(routed.request.request_id, None)
                self._hold(routed, self._limits.max_wait_s + SLACK_S)

    def deliver(self, messages: Messages) -> None:
        """Placements, sheds and failures have come for requests."""
        for placement in messages.placements:
            self._place(placement)
        for shed in messages.sheds:
            self._shed(shed)
        for request_id in messages.failed:
            routed = self._requests.get(request_id)
            if routed is not None and routed.state in {RequestState.ASKED, RequestState.HELD}:
                self._fall_back(routed, "error")

    def lost(self) -> None:
        """The router does not answer: requests that wait for its answer are placed here, held ones wait."""
        self.down = True
        # The next session begins with all that there is, so events of this one would be old news.
        self._events.clear()
        for routed in [*self._requests.values()]:
            if routed.state is RequestState.ASKED:
                self._fall_back(routed, "unreachable")
            elif routed.request.request_id in self._waiting:
                continue
            elif routed.state is RequestState.HELD and not self._gone:
                self._hold(routed, self._limits.gone_s)
        self._gone = True

    def _ask(self, routed: RoutedRequest, event: Event) -> None:
        if self.down:
            self._fall_back(routed, "unreachable")
            return
        routed.timer = asyncio.get_running_loop().call_later(self._limits.call_timeout_s, self._late, routed)
        self._asking.append(routed)
        self._push(event, urgent=True)

    def _late(self, routed: RoutedRequest) -> None:
        """A question has had no answer, or a request was held for too long."""
        routed.timer = None
        if routed.state is RequestState.ASKED:
            self.down = True
            self._fall_back(routed, "timeout")
        elif routed.request.request_id in self._waiting:
            _, reason = self._waiting.pop(routed.request.request_id)
            if (error := self._no_room(routed, reason)) is not None:
                self._turn_away(routed, error)
        elif routed.state is RequestState.HELD and self.down:
            self._fall_back(routed, "unreachable")
        elif routed.state is RequestState.HELD:
            self._refuse(routed, Overloaded("the request waited for a replica as long as a request may"))

    def _fall_back(self, routed: RoutedRequest, reason: str) -> None:
        """Place it here, or let it wait for room; only what is critical goes before those that wait."""
        error: BackendError | None = Overloaded(f"{ShedReason.SATURATED}: {len(self._waiting)} requests wait")
        if not self._waiting or routed.request.critical:
            error = self._no_room(routed, reason)
        if error is None:
            return
        longest_s = routed.request.arrival_s + self._limits.max_wait_s - self._clock()
        if longest_s <= 0.0 or len(self._waiting) >= self._limits.most_waiting:
            self._turn_away(routed, error)
            return
        self._waiting[routed.request.request_id] = routed, reason
        self._hold(routed, longest_s)
        self._retry_later()

    def _retry_later(self) -> None:
        if self._waiting and self._retry is None:
            self._retry = asyncio.get_running_loop().call_later(RETRY_S, self._retry_waiting)

    def _retry_waiting(self) -> None:
        """Place those that wait here, in order, until one finds no room."""
        self._retry = None
        for routed, reason in list(self._waiting.values())[:AT_ONCE]:
            if self._no_room(routed, reason) is not None:
                break
        self._retry_later()

    def _no_room(self, routed: RoutedRequest, reason: str) -> BackendError | None:
        """None once it has been placed here; else why it cannot be now."""
        try:
            placement = self._fallback(routed.request)
        except BackendError as error:
            return error
        self.counts.fallbacks[reason] += 1
        self.counts.placed(placement)
        self._release(routed)
        queued_s = max(0.0, self._clock() - routed.request.arrival_s)
        self._take(routed, placement._replace(attempt=routed.attempt + 1, queued_s=queued_s))
        for pool, replica in self._places(routed):
            pool.sent(replica, routed.request.request_id, routed.request.input_tokens)
        self._push(Placed(self._clock(), _on_replica(routed)))
        return None

    def _turn_away(self, routed: RoutedRequest, error: BackendError) -> None:
        if isinstance(error, Overloaded):
            self.counts.sheds[str(ShedReason.SATURATED)] += 1
        self._refuse(routed, error)

    def _hold(self, routed: RoutedRequest, longest_s: float) -> None:
        routed.stop_timer()
        routed.state = RequestState.HELD
        routed.timer = asyncio.get_running_loop().call_later(longest_s, self._late, routed)

    def _place(self, placement: Placement) -> None:
        routed = self._requests.get(placement.request_id)
        if routed is None or routed.streaming:
            return
        if routed.state is RequestState.PLACED and placement.attempt <= routed.attempt:
            return
        self.counts.placed(placement)
        self._release(routed)
        self._take(routed, placement)

    def _take(self, routed: RoutedRequest, placement: Placement) -> None:
        self._waiting.pop(routed.request.request_id, None)
        routed.take(placement)

    def _shed(self, shed: Shed) -> None:
        routed = self._requests.get(shed.request_id)
        if routed is None or routed.state is RequestState.PLACED:
            return
        self.counts.sheds[str(shed.reason)] += 1
        self._close(routed)
        text = f"{shed.reason}: {shed.detail}" if shed.detail else str(shed.reason)
        routed.refuse(Overloaded(text, shed.retry_after_s))

    def _refuse(self, routed: RoutedRequest, error: BackendError) -> None:
        self.ended(routed, complete=False)
        routed.refuse(error)

    def _close(self, routed: RoutedRequest) -> None:
        routed.state = RequestState.ENDED
        routed.stop_timer()
        self._release(routed)
        self._waiting.pop(routed.request.request_id, None)
        self._requests.pop(routed.request.request_id, None)

    def _release(self, routed: RoutedRequest) -> None:
        """Take back what was entered for it at replicas."""
        for pool, replica in self._places(routed):
            pool.done(replica, routed.request.request_id)

    def _places(self, routed: RoutedRequest) -> Iterator[tuple[Membership, str]]:
        if routed.placement is not None:
            replicas = {routed.placement.prefill_replica, routed.placement.decode_replica}
            yield from ((pool, replica) for pool in self._pools.values() for replica in replicas)

    def _push(self, event: Event, *, urgent: bool = False) -> None:
        self._events.append(event)
        # While requests are held, whatever frees room is awaited.
        self._wake(urgent or self.counts.queued > 0)

    def _running(self) -> Iterator[OnReplica]:
        for routed in self._requests.values():
            if routed.state is RequestState.PLACED:
                yield _on_replica(routed)

    def _progress(self) -> tuple[OutputProgress, ...]:
        moved = [
            routed for routed in self._requests.values() if routed.output_tokens > routed.reported_tokens
        ]
        for routed in moved:
            routed.reported_tokens = routed.output_tokens
        return tuple(OutputProgress(routed.request.request_id, routed.output_tokens) for routed in moved)

    def _in_use(self, replica: str) -> bool:
        return any(
            replica in {routed.placement.prefill_replica, routed.placement.decode_replica}
            for routed in self._requests.values()
            if routed.placement is not None
        )


def _has_deadline(routed: RoutedRequest) -> bool:
    """True if its prompt is offloaded, and the router waits to hear of it."""
    return routed.placement is not None and routed.placement.deadline_s < inf


def _on_replica(routed: RoutedRequest) -> OnReplica:
    assert routed.placement is not None, "it has been placed"
    return OnReplica(routed.request, routed.placement, routed.computed, routed.output_tokens)
