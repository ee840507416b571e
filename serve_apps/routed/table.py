"""The requests of one gateway, and what the router has yet to hear of them. No tasks and no calls in here.

A request that wants a place (`submit`, `again`) gets it from the router (`hello`, `batch` -> `answered`,
`deliver`), or by `fallback` when that takes too long or nobody answers (`lost`).

A placement of our own is entered at its replicas at once: of many requests that are placed in the same moment
each sees where the others went, which would be known otherwise only once they are sent.

A placement that comes for a request which is placed already takes the place of the first one if its attempt
is higher and no token has come; else it is old news: the events that follow set the router right.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
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
    Surveyed,
)
from headway.planning import Role
from headway.routing.types import Placement, Progress, RouteRequest, Shed
from serve_apps.gateway.backend import BackendError, NotReady, Overloaded
from serve_apps.membership import Membership
from serve_apps.routed.metrics import Counts
from serve_apps.routed.replicas import Census
from serve_apps.routed.requests import State, Ticket

Fallback = Callable[[RouteRequest], Placement | None]
"""Places a request without the router; None when no replica runs."""


SLACK_S = 5.0
"""Seconds beyond the longest wait after which the router has forgotten a request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long a request waits, in seconds."""

    call_timeout_s: float = 0.25
    """For an answer."""
    max_wait_s: float = 60.0
    """In the router's queue."""
    gone_s: float = 10.0
    """In the queue of a router that has gone."""


class Book:
    """Tickets and events. `wake(urgent)` is called when there is something to send."""

    def __init__(
        self,
        pools: Mapping[Role, Membership],
        fallback: Fallback,
        patience: Patience,
        clock: Callable[[], float],
        wake: Callable[[bool], None],
    ) -> None:
        self.counts = Counts()
        self.down = False
        """Whether the router is known not to answer."""
        self._gone = False
        self._pools = pools
        self.census = Census(pools, self._in_use)
        self._fallback, self._patience, self._clock, self._wake = fallback, patience, clock, wake
        self._tickets: dict[str, Ticket] = {}
        self._events: list[Event] = []
        self._asking: list[Ticket] = []
        self._asked: list[Ticket] = []
        self._session = 0

    def submit(self, request: RouteRequest) -> Ticket:
        """A request wants a place."""
        ticket = self._tickets[request.request_id] = Ticket(request, self)
        self._ask(ticket, Submit(self._clock(), request))
        return ticket

    def again(self, ticket: Ticket) -> None:
        """It wants another place."""
        ticket.state = State.ASKED
        self._ask(ticket, Again(self._clock(), ticket.request))

    def prefilled(self, ticket: Ticket) -> None:
        """Its prompt is computed."""
        self._push(Prefilled(self._clock(), ticket.request.request_id), urgent=_has_deadline(ticket))

    def first_token(self, ticket: Ticket) -> None:
        """Its first token has come; the router measures how long KV travelled, which does not keep."""
        self._push(FirstToken(self._clock(), ticket.request.request_id), urgent=_has_deadline(ticket))

    def complete(self, request_id: str) -> None:
        """It has all the tokens that are wanted of it; others than ours are not meant."""
        if (ticket := self._tickets.get(request_id)) is not None:
            ticket.complete()

    def ended(self, ticket: Ticket, *, complete: bool) -> None:
        """It has ended."""
        request_id, now_s = ticket.request.request_id, self._clock()
        self._close(ticket)
        if complete:
            self._push(Completed(now_s, request_id, ticket.output_tokens))
        else:
            self._push(Failed(now_s, request_id))

    def found(self, running: Sequence[OnReplica]) -> None:
        """What the replicas say that they have; arrivals are as of now, on whichever clock they were."""
        now_s = self._clock()
        rows = tuple(row._replace(request=replace(row.request, arrival_s=now_s)) for row in running)
        self._push(Surveyed(now_s, rows))

    def hello(self) -> Batch:
        """All that there is, for a router that knows nothing of it."""
        now_s = self._clock()
        self._session += 1
        self._events.clear()
        self._asking = []
        self._asked = [ticket for ticket in self._tickets.values() if ticket.state is not State.PLACED]
        events: list[Event] = [
            *(Changed(now_s, update) for update in self.census.all(now_s)),
            *(Placed(now_s, running) for running in self._running()),
            *(Submit(now_s, ticket.request) for ticket in self._asked),
        ]
        return Batch(self._session, now_s, tuple(events), hello=True)

    def batch(self, *, report: bool) -> Batch | None:
        """What has happened since the last batch, with how far requests are (`report`); None: nothing."""
        now_s = self._clock()
        events, self._events = self._events, []
        self._asked, self._asking = self._asking, []
        begun_s = events[0].at_s if events else now_s
        news = [Changed(begun_s, update) for update in self.census.news(now_s)]
        if report and (progress := self._progress()):
            events.append(Advanced(now_s, progress))
        return Batch(self._session, now_s, (*news, *events)) if news or events else None

    @property
    def idle(self) -> bool:
        """Whether a report would hold nothing."""
        return not self._tickets and not self._events and not self.census.stale

    def answered(self, answer: BatchAnswer) -> None:
        """A batch has arrived: who got no place is held."""
        self.down = self._gone = False
        self.counts.queued = answer.queued
        if answer.figures is not None:
            self.counts.figures = answer.figures
        self.deliver(answer.messages)
        for ticket in self._asked:
            if ticket.state in {State.ASKED, State.HELD}:
                self._hold(ticket, self._patience.max_wait_s + SLACK_S)

    def deliver(self, messages: Messages) -> None:
        """What became of requests."""
        for placement in messages.placements:
            self._place(placement)
        for shed in messages.sheds:
            self._shed(shed)
        for request_id in messages.failed:
            ticket = self._tickets.get(request_id)
            if ticket is not None and ticket.state in {State.ASKED, State.HELD}:
                self._fall_back(ticket, "error")

    def lost(self) -> None:
        """The router does not answer: who waits for its answer is placed here; who is held waits for it."""
        self.down = True
        self._events.clear()
        for ticket in [*self._tickets.values()]:
            if ticket.state is State.ASKED:
                self._fall_back(ticket, "unreachable")
            elif ticket.state is State.HELD and not self._gone:
                self._hold(ticket, self._patience.gone_s)
        self._gone = True

    def _ask(self, ticket: Ticket, event: Event) -> None:
        if self.down:
            self._fall_back(ticket, "unreachable")
            return
        ticket.timer = asyncio.get_running_loop().call_later(
            self._patience.call_timeout_s, self._late, ticket
        )
        self._asking.append(ticket)
        self._push(event, urgent=True)

    def _late(self, ticket: Ticket) -> None:
        """A question has had no answer, or a request was held for too long."""
        ticket.timer = None
        if ticket.state is State.ASKED:
            self.down = True
            self._fall_back(ticket, "timeout")
        elif ticket.state is State.HELD and self.down:
            self._fall_back(ticket, "unreachable")
        elif ticket.state is State.HELD:
            self._refuse(ticket, Overloaded("the request waited for a replica as long as a request may"))

    def _fall_back(self, ticket: Ticket, reason: str) -> None:
        placement = self._fallback(ticket.request)
        if placement is None:
            self._refuse(ticket, NotReady("no replica is running"))
            return
        self.counts.fallbacks[reason] += 1
        self.counts.placed(placement)
        self._release(ticket)
        queued_s = max(0.0, self._clock() - ticket.request.arrival_s)
        ticket.take(placement._replace(attempt=ticket.attempt + 1, queued_s=queued_s))
        for pool, replica in self._places(ticket):
            pool.sent(replica, ticket.request.request_id)
        self._push(Placed(self._clock(), _on_replica(ticket)))

    def _hold(self, ticket: Ticket, longest_s: float) -> None:
        ticket.stop_timer()
        ticket.state = State.HELD
        ticket.timer = asyncio.get_running_loop().call_later(longest_s, self._late, ticket)

    def _place(self, placement: Placement) -> None:
        ticket = self._tickets.get(placement.request_id)
        if ticket is None or ticket.streaming:
            return
        if ticket.state is State.PLACED and placement.attempt <= ticket.attempt:
            return
        self.counts.placed(placement)
        self._release(ticket)
        ticket.take(placement)

    def _shed(self, shed: Shed) -> None:
        ticket = self._tickets.get(shed.request_id)
        if ticket is None or ticket.state is State.PLACED:
            return
        self.counts.sheds[str(shed.reason)] += 1
        self._close(ticket)
        text = f"{shed.reason}: {shed.detail}" if shed.detail else str(shed.reason)
        ticket.refuse(Overloaded(text, shed.retry_after_s))

    def _refuse(self, ticket: Ticket, error: BackendError) -> None:
        self.ended(ticket, complete=False)
        ticket.refuse(error)

    def _close(self, ticket: Ticket) -> None:
        ticket.state = State.ENDED
        ticket.stop_timer()
        self._release(ticket)
        self._tickets.pop(ticket.request.request_id, None)

    def _release(self, ticket: Ticket) -> None:
        """Whatever was entered for it is not there, or no longer."""
        for pool, replica in self._places(ticket):
            pool.done(replica, ticket.request.request_id)

    def _places(self, ticket: Ticket) -> Iterator[tuple[Membership, str]]:
        if ticket.placement is not None:
            replicas = {ticket.placement.prefill_replica, ticket.placement.decode_replica}
            yield from ((pool, replica) for pool in self._pools.values() for replica in replicas)

    def _push(self, event: Event, *, urgent: bool = False) -> None:
        self._events.append(event)
        # While requests are held, whatever frees room is awaited.
        self._wake(urgent or self.counts.queued > 0)

    def _running(self) -> Iterator[OnReplica]:
        for ticket in self._tickets.values():
            if ticket.state is State.PLACED:
                yield _on_replica(ticket)

    def _progress(self) -> tuple[Progress, ...]:
        moved = [ticket for ticket in self._tickets.values() if ticket.output_tokens > ticket.told_tokens]
        for ticket in moved:
            ticket.told_tokens = ticket.output_tokens
        return tuple(Progress(ticket.request.request_id, ticket.output_tokens) for ticket in moved)

    def _in_use(self, replica: str) -> bool:
        return any(
            replica in {ticket.placement.prefill_replica, ticket.placement.decode_replica}
            for ticket in self._tickets.values()
            if ticket.placement is not None
        )


def _has_deadline(ticket: Ticket) -> bool:
    """Whether its prompt is offloaded, and the router waits to hear of it."""
    return ticket.placement is not None and ticket.placement.deadline_s < inf


def _on_replica(ticket: Ticket) -> OnReplica:
    assert ticket.placement is not None, "it has been placed"
    return OnReplica(ticket.request, ticket.placement, ticket.computed, ticket.output_tokens)
