"""Several gateways at one router: whose request is whose, and what each has yet to be told.

    exchange   a gateway's batch: events to the router; back, all that follows for this gateway
    expire     what is due in the router
    take       what followed later for a gateway: its letters, once

An event that cannot be handled is counted and logged (`faults`) and changes nothing for the others; a request
that it would have placed is forgotten, and its gateway told to place it.

What follows for another gateway's request goes to that one's letters. A gateway that says nothing for
`SILENT_S` is gone, and its requests with it. After a restart the router knows nobody: the first to say hello
is asked to survey the replicas, and requests found there that no gateway has named yet are kept as nobody's,
for `ORPHAN_S`, since they load the replicas all the same.

Pure but for that log: the time is an argument, and never goes backwards for the router, whatever clocks
gateways have.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

from actors.routing.faults import Faults
from actors.routing.messages import (
    Advanced,
    Again,
    Answer,
    Batch,
    Changed,
    Completed,
    Event,
    Failed,
    Figures,
    FirstToken,
    Letters,
    OnReplica,
    Placed,
    Prefilled,
    Submit,
    Surveyed,
)
from headway.routing.router import Router
from headway.routing.types import NOTHING, Outcome, Placement, RouteRequest, Running, Shed

SILENT_S = 30.0
ORPHAN_S = 30.0
FIGURES_S = 1.0
NOBODY = ""


@dataclass(slots=True)
class _Gateway:
    session: int
    heard_s: float
    shift_s: float
    """The router's clock less the gateway's."""
    figures_s: float = float("-inf")
    placements: list[Placement] = field(default_factory=list)
    sheds: list[Shed] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Owned:
    """Who has a request, and where the router put it; None while it is held."""

    gateway: str
    since_s: float
    placement: Placement | None = None


class Desk:
    """The gateways of one router."""

    def __init__(self, router: Router) -> None:
        self.router = router
        self._gateways: dict[str, _Gateway] = {}
        self._owned: dict[str, _Owned] = {}
        self._now_s = float("-inf")
        self._surveyed = False
        self._faults = Faults()
        self._handlers: Mapping[type, Callable[[str, float, Any], None]] = {
            Submit: self._submit,
            Again: self._again,
            Prefilled: self._prefilled,
            FirstToken: self._first_token,
            Advanced: self._advanced,
            Completed: self._completed,
            Failed: self._failed,
            Changed: self._changed,
            Placed: self._placed,
            Surveyed: self._found,
        }

    @property
    def gateways(self) -> int:
        """How many are heard of."""
        return len(self._gateways)

    def metrics(self) -> Figures:
        """The router's, and `event_errors` by event: what could not be handled."""
        errors: dict[tuple[str, ...], float] = {
            (kind,): float(count) for kind, count in self._faults.counts.items()
        }
        return {**self.router.metrics(), "event_errors": errors}

    def exchange(self, now_s: float, name: str, batch: Batch) -> Answer:
        """Take a batch that has just come."""
        gateway, shift_s = self._gateways.get(name), now_s - batch.sent_s
        if batch.hello and (gateway is None or batch.session > gateway.session):
            gateway = self._gateways[name] = _Gateway(batch.session, now_s, shift_s)
            self._greet(name, shift_s, now_s, batch.events)
        elif gateway is None or gateway.session != batch.session:
            return Answer(known=False)
        else:
            gateway.shift_s = shift_s
            self._handle(name, shift_s, now_s, batch.events)
        gateway.heard_s = now_s
        return Answer(
            known=True,
            letters=self.take(now_s, name),
            queued=self.router.queued,
            figures=self._figures(now_s, gateway),
            survey=batch.hello and self._survey_due(),
        )

    def take(self, now_s: float, name: str) -> Letters:
        """The letters of a gateway, which are hers then; it has been heard of."""
        gateway = self._gateways.get(name)
        if gateway is None:
            return Letters(known=False)
        gateway.heard_s = now_s
        letters = Letters(tuple(gateway.placements), tuple(gateway.sheds), tuple(gateway.failed))
        gateway.placements, gateway.sheds, gateway.failed = [], [], []
        return letters

    def has_letters(self) -> list[str]:
        """The gateways that have yet to be told something."""
        return [name for name, one in self._gateways.items() if one.placements or one.sheds or one.failed]

    def expire(self, now_s: float) -> bool:
        """Let the router do what is due, and whether it could; forget who has gone."""
        done = self._faults.attempt("Expire", self._expire, now_s)
        for name in [name for name, one in self._gateways.items() if one.heard_s < now_s - SILENT_S]:
            del self._gateways[name]
            self._drop(now_s, [key for key, owned in self._owned.items() if owned.gateway == name])
        self._drop(
            now_s,
            [
                key
                for key, owned in self._owned.items()
                if owned.gateway == NOBODY and owned.since_s < now_s - ORPHAN_S
            ],
        )
        return done

    def _expire(self, now_s: float) -> None:
        self._deliver(self.router.expire(self._at(now_s, now_s)))

    def _greet(self, name: str, shift_s: float, now_s: float, events: Sequence[Event]) -> None:
        """A gateway begins anew: what it does not name has ended."""
        wanting = [event for event in events if isinstance(event, Submit)]
        self._handle(name, shift_s, now_s, [event for event in events if not isinstance(event, Submit)])
        named = {event.running.request.request_id for event in events if isinstance(event, Placed)}
        mine = [key for key, owned in self._owned.items() if owned.gateway == name and key not in named]
        self._drop(now_s, mine)
        self._drop(now_s, [event.request.request_id for event in wanting])
        self.take(now_s, name)
        self._handle(name, shift_s, now_s, wanting)

    def _handle(self, name: str, shift_s: float, now_s: float, events: Iterable[Event]) -> None:
        for event in events:
            shifted = event._replace(at_s=self._at(event.at_s + shift_s, now_s))
            handler = self._handlers[type(event)]
            if not self._faults.attempt(type(event).__name__, handler, name, shift_s, shifted):
                self._give_up(name, shifted)

    def _give_up(self, name: str, event: Event) -> None:
        """Forget the request that an event would have placed or ended: what is there may be half done."""
        match event:
            case Submit(request=request) | Again(request=request):
                self._drop(event.at_s, [request.request_id])
                self._gateways[name].failed.append(request.request_id)
            case Placed(running=running):
                self._drop(event.at_s, [running.request.request_id])
            case Completed(request_id=request_id):
                self._faults.attempt("Drop", self._forget, event.at_s, request_id)

    def _at(self, at_s: float, now_s: float) -> float:
        """The router's time of an event: not in the future, not before the last."""
        self._now_s = max(self._now_s, min(at_s, now_s))
        return self._now_s

    def _submit(self, name: str, shift_s: float, event: Submit) -> None:
        request = _shifted(event.request, shift_s)
        self._owned[request.request_id] = _Owned(name, event.at_s)
        self._deliver(self.router.submit(event.at_s, request))

    def _prefilled(self, _: str, __: float, event: Prefilled) -> None:
        self._deliver(self.router.prefilled(event.at_s, event.request_id))

    def _first_token(self, _: str, __: float, event: FirstToken) -> None:
        self._deliver(self.router.first_token(event.at_s, event.request_id))

    def _advanced(self, _: str, __: float, event: Advanced) -> None:
        self._deliver(self.router.progress(event.at_s, event.progress))

    def _completed(self, _: str, __: float, event: Completed) -> None:
        self._owned.pop(event.request_id, None)
        self._deliver(self.router.complete(event.at_s, event.request_id, event.output_tokens))

    def _failed(self, _: str, __: float, event: Failed) -> None:
        self._owned.pop(event.request_id, None)
        self._deliver(self.router.failed(event.at_s, event.request_id, retry=False))

    def _again(self, name: str, shift_s: float, event: Again) -> None:
        owned = self._owned.get(event.request.request_id)
        if owned is None:
            # The router never had it: its replicas were not known when it was to be restored.
            self._submit(name, shift_s, Submit(event.at_s, event.request))
            return
        owned.gateway, owned.placement = name, None
        self._deliver(self.router.failed(event.at_s, event.request.request_id, retry=True))

    def _changed(self, _: str, __: float, event: Changed) -> None:
        self._deliver(self.router.replica_changed(event.at_s, event.update))

    def _placed(self, name: str, shift_s: float, event: Placed) -> None:
        request_id, placement = event.running.request.request_id, event.running.placement
        owned = self._owned.get(request_id)
        if owned is not None and owned.placement is not None and _same(owned.placement, placement):
            owned.gateway = name
            return
        if owned is not None:
            self._drop(event.at_s, [request_id])
        self._enter(name, shift_s, event.at_s, event.running)

    def _found(self, _: str, shift_s: float, event: Surveyed) -> None:
        for running in event.running:
            if running.request.request_id not in self._owned:
                self._enter(NOBODY, shift_s, event.at_s, running)

    def _enter(self, name: str, shift_s: float, now_s: float, running: OnReplica) -> None:
        running = OnReplica(
            _shifted(running.request, shift_s),
            _later(running.placement, shift_s),
            running.computed,
            running.output_tokens,
        )
        request_id = running.request.request_id
        self._owned[request_id] = _Owned(name, now_s, running.placement)
        outcome = self.router.restore(now_s, (_restored(running),))
        if request_id not in self.router:
            del self._owned[request_id]
        self._deliver(outcome)

    def _drop(self, now_s: float, request_ids: Iterable[str]) -> None:
        for request_id in request_ids:
            if self._owned.pop(request_id, None) is not None:
                self._faults.attempt("Drop", self._forget, now_s, request_id)

    def _forget(self, now_s: float, request_id: str) -> None:
        self._deliver(self.router.failed(self._at(now_s, now_s), request_id, retry=False))

    def _deliver(self, outcome: Outcome) -> None:
        if outcome is NOTHING:
            return
        for placement in outcome.placements:
            owned = self._owned.get(placement.request_id)
            if owned is not None:
                owned.placement = placement
            if owned is not None and (gateway := self._gateways.get(owned.gateway)) is not None:
                gateway.placements.append(_later(placement, -gateway.shift_s))
        for shed in outcome.sheds:
            owned = self._owned.pop(shed.request_id, None)
            if owned is not None and owned.gateway in self._gateways:
                self._gateways[owned.gateway].sheds.append(shed)

    def _figures(self, now_s: float, gateway: _Gateway) -> Figures | None:
        if now_s < gateway.figures_s + FIGURES_S:
            return None
        gateway.figures_s = now_s
        return self.metrics()

    def _survey_due(self) -> bool:
        due, self._surveyed = not self._surveyed, True
        return due


def _restored(running: OnReplica) -> Running:
    return Running(
        request=running.request,
        placement=running.placement,
        prefilled=running.computed,
        output_tokens=running.output_tokens,
    )


def _shifted(request: RouteRequest, shift_s: float) -> RouteRequest:
    """The request on the router's clock."""
    return replace(request, arrival_s=request.arrival_s + shift_s)


def _later(placement: Placement, shift_s: float) -> Placement:
    """The placement on another clock."""
    if placement.deadline_s == inf:
        return placement
    return placement._replace(deadline_s=placement.deadline_s + shift_s)


def _same(one: Placement, other: Placement) -> bool:
    return (one.attempt, one.prefill_replica, one.decode_replica) == (
        other.attempt,
        other.prefill_replica,
        other.decode_replica,
    )
