"""The sessions of gateways with one router: their batches become its events, its outcomes their messages.

    exchange   a gateway's batch: events to the router; back, all that follows for this gateway. Requests that
               wait in the router are tried once for all events of a batch, before its newcomers
    expire     outcomes that are due in the router
    gateways   names, the owner of each request, and the messages that follow later for each gateway

An event that cannot be handled is counted and logged (`Faults`) and changes nothing for the others. A request
that could not be placed, by its own event or while another's was handled, is forgotten, and its gateway is
asked to place it.

After a restart the router has no sessions: each gateway says hello with all requests that it has.

Pure but for that log: the time is an argument, and never goes backwards for the router, whatever clocks
gateways have.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from math import inf
from typing import ParamSpec

from actors.routing.messages import (
    Advanced,
    Again,
    Batch,
    BatchAnswer,
    Changed,
    Completed,
    Event,
    Failed,
    Figures,
    FirstToken,
    Gateways,
    OnReplica,
    Placed,
    Prefilled,
    Submit,
    later,
    place_of,
)
from headway.routing import RequestFault
from headway.routing.router import Router
from headway.routing.types import NOTHING, RouteRequest, RoutingOutcome, Running

FIGURES_S = 1.0
"""Seconds between two accounts of the router's figures to a gateway."""

P = ParamSpec("P")

logger = logging.getLogger(__name__)


class Faults:
    """Failures that must not take other events with them: counted by kind, logged the first time.

    `counts` has a kind only once it has failed.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._logged: set[tuple[str, type[Exception]]] = set()

    def attempt(
        self, kind: str, work: Callable[P, None], *args: P.args, **kwargs: P.kwargs
    ) -> Exception | None:
        """Do `work`; the error that it raised, None if it was done."""
        try:
            work(*args, **kwargs)
        except Exception as error:
            self.counts[kind] += 1
            if (kind, type(error)) not in self._logged:
                self._logged.add((kind, type(error)))
                logger.exception("%s: not all could be done; the next of its kind are only counted", kind)
            return error
        return None


class GatewaySessions:
    """All gateways of one router."""

    def __init__(self, router: Router) -> None:
        self.router, self.gateways = router, Gateways()
        self._now_s = -inf
        self._faults = Faults()

    def metrics(self) -> Figures:
        """The router's metrics, and `event_errors`: events that could not be handled, by name."""
        errors: dict[tuple[str, ...], float] = {
            (kind,): float(count) for kind, count in self._faults.counts.items()
        }
        return {**self.router.metrics(), "event_errors": errors}

    def exchange(self, now_s: float, name: str, batch: Batch) -> BatchAnswer:
        """Take a batch that has just come."""
        gateway, shift_s = self.gateways.get(name), now_s - batch.sent_s
        if batch.hello and (gateway is None or batch.session > gateway.session):
            gateway = self.gateways.greeted(name, batch.session, now_s, shift_s)
            self._greet(name, shift_s, now_s, batch.events)
        elif gateway is None or gateway.session != batch.session:
            return BatchAnswer(known=False)
        else:
            gateway.shift_s, gateway.heard_s = shift_s, now_s
            self._handle(name, shift_s, now_s, batch.events)
        messages, figures = self.gateways.take(name), None
        if now_s >= gateway.figures_s + FIGURES_S:
            gateway.figures_s, figures = now_s, self.metrics()
        return BatchAnswer(
            known=True,
            messages=messages,
            queued=self.router.queued,
            figures=figures,
            unread=tuple(self.router.take_unread()),
        )

    def expire(self, now_s: float) -> bool:
        """Let the router do what is due, and forget gateways that have gone; False if the router failed."""
        done = self._attempt("Expire", lambda: self._deliver(self.router.expire(self._at(now_s, now_s))))
        self._drop(now_s, self.gateways.forget_silent(now_s))
        return done

    def parted(self, now_s: float, name: str) -> None:
        """The connection of a gateway has ended: it is gone, or begins another session."""
        self._drop(now_s, self.gateways.forget(name))

    def _greet(self, name: str, shift_s: float, now_s: float, events: Sequence[Event]) -> None:
        """A gateway begins anew: requests that it does not name have ended."""
        wanting = [event for event in events if isinstance(event, Submit)]
        self._handle(name, shift_s, now_s, [event for event in events if not isinstance(event, Submit)])
        named = {event.running.request.request_id for event in events if isinstance(event, Placed)}
        self._drop(now_s, [mine for mine in self.gateways.requests(name) if mine not in named])
        self._drop(now_s, [event.request.request_id for event in wanting])
        self.gateways.take(name)  # outcomes for the earlier session are void
        self._handle(name, shift_s, now_s, wanting)

    def _handle(self, name: str, shift_s: float, now_s: float, events: Iterable[Event]) -> None:
        for part in _parts(events):
            with self.router.gathering():
                for event in part:
                    shifted = event._replace(at_s=self._at(event.at_s + shift_s, now_s))
                    if not self._attempt(type(event).__name__, self._apply, name, shift_s, shifted):
                        self._give_up(shifted)
            self._attempt("Drain", lambda: self._deliver(self.router.caught_up(self._now_s)))

    def _attempt(self, kind: str, work: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> bool:
        """Do `work`; True if it was done. Requests that could not be placed meanwhile are given back."""
        error = self._faults.attempt(kind, work, *args, **kwargs)
        if isinstance(error, RequestFault):
            self._give_back(error.request_id)
            return True
        return error is None

    def _give_up(self, event: Event) -> None:
        """Forget the request that an event would have placed or ended: it may be half done."""
        match event:
            case Submit(request=request) | Again(request=request):
                self._give_back(request.request_id)
            case Placed(running=running):
                self._drop(event.at_s, [running.request.request_id])
            case Completed(request_id=request_id):
                self._attempt("Drop", self._forget, event.at_s, request_id)

    def _give_back(self, request_id: str) -> None:
        """Forget a request and have its gateway place it; the same for any that fails in its stead."""
        failing: str | None = request_id
        while failing is not None:
            self.gateways.give_back(failing)
            error = self._faults.attempt("Drop", self._forget, self._now_s, failing)
            failing = error.request_id if isinstance(error, RequestFault) else None

    def _at(self, at_s: float, now_s: float) -> float:
        """The router's time of an event: not in the future, not before the last."""
        self._now_s = max(self._now_s, min(at_s, now_s))
        return self._now_s

    def _apply(self, name: str, shift_s: float, event: Event) -> None:
        """Hand one event to the router; the most frequent kinds come first."""
        router, at_s = self.router, event.at_s
        match event:
            case Advanced():
                self._deliver(router.progress(at_s, event.progress))
            case Submit():
                self._submit(name, shift_s, event)
            case Prefilled():
                self._deliver(router.prefilled(at_s, event.request_id))
            case FirstToken():
                self._deliver(router.first_token(at_s, event.request_id))
            case Completed():
                self.gateways.release(event.request_id)
                self._deliver(router.complete(at_s, event.request_id, event.output_tokens))
            case Failed():
                self.gateways.release(event.request_id)
                self._deliver(router.failed(at_s, event.request_id, retry=False))
            case Changed():
                self._deliver(router.replica_changed(at_s, event.update))
            case Placed():
                self._placed(name, shift_s, event)
            case Again():
                self._again(name, shift_s, event)

    def _submit(self, name: str, shift_s: float, event: Submit) -> None:
        request = _shifted(event.request, shift_s)
        self.gateways.own(request.request_id, name)
        self._deliver(self.router.submit(event.at_s, request))

    def _again(self, name: str, shift_s: float, event: Again) -> None:
        owned = self.gateways.owned(event.request.request_id)
        if owned is None:
            # The router never had it: its replicas were not known when it was to be restored.
            self._submit(name, shift_s, Submit(event.at_s, event.request))
            return
        self.gateways.own(event.request.request_id, name)
        self._deliver(self.router.failed(event.at_s, event.request.request_id, retry=True))

    def _placed(self, name: str, shift_s: float, event: Placed) -> None:
        request_id, placement = event.running.request.request_id, event.running.placement
        owned = self.gateways.owned(request_id)
        if owned is not None:
            if owned[1] == place_of(placement):
                self.gateways.own(request_id, name, placement)
                return
            self._drop(event.at_s, [request_id])
        self._enter(name, shift_s, event.at_s, event.running)

    def _enter(self, name: str, shift_s: float, now_s: float, running: OnReplica) -> None:
        restored = Running(
            request=_shifted(running.request, shift_s),
            placement=later(running.placement, shift_s),
            prefilled=running.computed,
            output_tokens=running.output_tokens,
        )
        request_id = restored.request.request_id
        self.gateways.own(request_id, name, restored.placement)
        outcome = self.router.restore(now_s, (restored,))
        if request_id not in self.router:
            self.gateways.release(request_id)
        self._deliver(outcome)

    def _drop(self, now_s: float, request_ids: Iterable[str]) -> None:
        for request_id in request_ids:
            if self.gateways.release(request_id):
                self._attempt("Drop", self._forget, now_s, request_id)

    def _forget(self, now_s: float, request_id: str) -> None:
        self._deliver(self.router.failed(self._at(now_s, now_s), request_id, retry=False))

    def _deliver(self, outcome: RoutingOutcome) -> None:
        if outcome is not NOTHING:
            self.gateways.deliver(outcome)


def _parts(events: Iterable[Event]) -> tuple[Sequence[Event], Sequence[Event]]:
    """What is said of requests that are here; those that want a place, and what is said of them.

    So room that a batch frees is offered first to those who wait for it, once for the whole batch.
    """
    rest: list[Event] = []
    wanting: list[Event] = []
    ids: set[str] = set()
    for event in events:
        match event:
            case Submit(request=request) | Again(request=request):
                ids.add(request.request_id)
                wanting.append(event)
            case Prefilled() | FirstToken() | Completed() | Failed() if event.request_id in ids:
                wanting.append(event)
            case Placed(running=running) if running.request.request_id in ids:
                wanting.append(event)
            case _:
                rest.append(event)
    return rest, wanting


def _shifted(request: RouteRequest, shift_s: float) -> RouteRequest:
    """The request on the router's clock."""
    return replace(request, arrival_s=request.arrival_s + shift_s)
