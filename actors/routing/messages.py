"""The messages between gateways and the Router actor, and those that wait at it for each gateway.

    gateway ── its name, Batch: all events since the last ──▶ Router
    gateway ◀── BatchAnswer: outcomes at once ─────────────── Router
    gateway ◀── Messages: later outcomes ──────────────────── Router

All times, those of placements included, are seconds on the gateway's monotonic clock, `sent_s` of a batch
among them. The router shifts them to its own and back: after its death it may run on another node. A batch
with `hello` begins a session and holds the gateway's whole state: replicas (Changed), then requests on
replicas (Placed), then requests that want a placement (Submit). Requests that it does not name have ended.
Batches of earlier sessions are refused. The names of events are label values of the metric `event_errors`; so
are Drain, Drop and Expire, which are the router's own.

`Gateways` has the owner of each request. A gateway whose connection has ended, or that is silent for
`SILENT_S`, is gone, and its requests with it: replicas end what they run for a gateway that has died, and one
that lives says hello with all that it has.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from headway.routing.types import OutputProgress, Placement, ReplicaUpdate, RouteRequest, RoutingOutcome, Shed

Figures = Mapping[str, Mapping[tuple[str, ...], float]]
"""The router's metrics: name -> label values -> value."""


class OnReplica(NamedTuple):
    """A request on replicas: its placement, `computed` once its prompt is, and its output so far."""

    request: RouteRequest
    placement: Placement
    computed: bool
    output_tokens: int


class Submit(NamedTuple):
    """A request came."""

    at_s: float
    request: RouteRequest


class Prefilled(NamedTuple):
    """Its prompt is computed."""

    at_s: float
    request_id: str


class FirstToken(NamedTuple):
    """Its first token left."""

    at_s: float
    request_id: str


class Advanced(NamedTuple):
    """Output of running requests so far."""

    at_s: float
    progress: tuple[OutputProgress, ...]


class Completed(NamedTuple):
    """It has all its tokens."""

    at_s: float
    request_id: str
    output_tokens: int


class Failed(NamedTuple):
    """It ended without completing."""

    at_s: float
    request_id: str


class Again(NamedTuple):
    """Its attempt was lost before the first token; it wants another place."""

    at_s: float
    request: RouteRequest


class Changed(NamedTuple):
    """A replica came, changes, or went."""

    at_s: float
    update: ReplicaUpdate


class Placed(NamedTuple):
    """The gateway has placed the request by itself, or had it placed before the router began anew."""

    at_s: float
    running: OnReplica


Event = Submit | Again | Prefilled | FirstToken | Advanced | Completed | Failed | Changed | Placed


class Batch(NamedTuple):
    """All events since the last batch, in order."""

    session: int
    sent_s: float
    events: tuple[Event, ...]
    hello: bool = False


class Messages(NamedTuple):
    """Outcomes of requests of one gateway.

    `failed` are requests that the router could not handle and has forgotten: the gateway places them.
    """

    placements: tuple[Placement, ...] = ()
    sheds: tuple[Shed, ...] = ()
    failed: tuple[str, ...] = ()


class BatchAnswer(NamedTuple):
    """The answer to a batch. `known` false: the router has no such session, it wants a hello.

    `queued` requests of all gateways wait in the router. `figures` come about once a second. Of `unread`
    replicas it wants all cached blocks: what changed was of no use.
    """

    known: bool
    messages: Messages = Messages()
    queued: int = 0
    figures: Figures | None = None
    unread: tuple[str, ...] = ()


SILENT_S = 30.0


@dataclass(slots=True)
class Gateway:
    """A gateway that has said hello, and its messages. `shift_s` is the router's clock less the gateway's."""

    session: int
    heard_s: float
    shift_s: float
    figures_s: float = -inf
    placements: list[Placement] = field(default_factory=list)
    sheds: list[Shed] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)


Place = tuple[int, str, str]
"""An attempt, its prefill and its decode replica."""


def place_of(placement: Placement) -> Place:
    """What tells it from other placements of its request."""
    return placement.attempt, placement.prefill_replica, placement.decode_replica


class Gateways:
    """Gateways by name, and the owners of requests by id."""

    def __init__(self) -> None:
        self._gateways: dict[str, Gateway] = {}
        self._owned: dict[str, tuple[str, Place | None]] = {}
        """Plain tuples: the garbage collector does not look at them."""

    def __len__(self) -> int:
        return len(self._gateways)

    def get(self, name: str) -> Gateway | None:
        """The gateway of that name, None if it is not known."""
        return self._gateways.get(name)

    def greeted(self, name: str, session: int, now_s: float, shift_s: float) -> Gateway:
        """Begin a session of this gateway; earlier messages are void. It keeps its requests."""
        gateway = self._gateways[name] = Gateway(session, now_s, shift_s)
        return gateway

    def own(self, request_id: str, name: str, placement: Placement | None = None) -> None:
        """The request is this gateway's."""
        self._owned[request_id] = name, None if placement is None else place_of(placement)

    def owned(self, request_id: str) -> tuple[str, Place | None] | None:
        """The owner of a request and where the router put it, None while it is held; None for no owner."""
        return self._owned.get(request_id)

    def release(self, request_id: str) -> bool:
        """The request has ended; True if it was here."""
        return self._owned.pop(request_id, None) is not None

    def requests(self, name: str) -> list[str]:
        """The requests of a gateway."""
        return [request_id for request_id, (owner, _) in self._owned.items() if owner == name]

    def deliver(self, outcome: RoutingOutcome) -> None:
        """Note the placements, and write to the gateways that own the requests."""
        for placement in outcome.placements:
            if (owned := self._owned.get(placement.request_id)) is None:
                continue
            self.own(placement.request_id, owned[0], placement)
            if (gateway := self._gateways.get(owned[0])) is not None:
                gateway.placements.append(later(placement, -gateway.shift_s))
        for shed in outcome.sheds:
            if (gateway := self._released_by(shed.request_id)) is not None:
                gateway.sheds.append(shed)

    def give_back(self, request_id: str) -> None:
        """Have its gateway place the request."""
        if (gateway := self._released_by(request_id)) is not None:
            gateway.failed.append(request_id)

    def take(self, name: str) -> Messages:
        """Hand over the messages of a gateway."""
        gateway = self._gateways[name]
        messages = Messages(tuple(gateway.placements), tuple(gateway.sheds), tuple(gateway.failed))
        gateway.placements, gateway.sheds, gateway.failed = [], [], []
        return messages

    def forget(self, name: str) -> list[str]:
        """A gateway is gone; its requests, which are still here."""
        self._gateways.pop(name, None)
        return self.requests(name)

    def with_messages(self) -> list[str]:
        """Names of the gateways with messages."""
        return [name for name, one in self._gateways.items() if one.placements or one.sheds or one.failed]

    def forget_silent(self, now_s: float) -> list[str]:
        """Forget gateways that have gone; their requests."""
        for name in [name for name, one in self._gateways.items() if one.heard_s < now_s - SILENT_S]:
            del self._gateways[name]
        owned = self._owned.items()
        return [request_id for request_id, (owner, _) in owned if owner not in self._gateways]

    def _released_by(self, request_id: str) -> Gateway | None:
        owned = self._owned.pop(request_id, None)
        return None if owned is None else self._gateways.get(owned[0])


def later(placement: Placement, shift_s: float) -> Placement:
    """The placement on a clock that is ahead by `shift_s`."""
    if placement.deadline_s == inf:
        return placement
    return placement._replace(deadline_s=placement.deadline_s + shift_s)
