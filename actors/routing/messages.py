"""The messages between gateways and the Router actor.

    gateway ── its name, Batch: all events since the last ──▶ Router
    gateway ◀── BatchAnswer: outcomes at once ─────────────── Router
    gateway ◀── Messages: later outcomes ──────────────────── Router

All times, those of placements included, are seconds on the gateway's monotonic clock, `sent_s` of a batch
among them. The router shifts them to its own and back: after its death it may run on another node. A batch
with `hello` begins a session and holds the gateway's whole state: replicas (Changed), then requests on
replicas (Placed), then requests that want a placement (Submit). Requests that it does not name have ended.
Batches of earlier sessions are refused. The names of events are label values of the metric `event_errors`; so
are Drain, Drop and Expire, which are the router's own.
"""

from collections.abc import Mapping
from typing import NamedTuple

from headway.routing.types import OutputProgress, Placement, ReplicaUpdate, RouteRequest, Shed

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
