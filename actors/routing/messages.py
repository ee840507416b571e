"""What gateways and the Router actor tell each other.

    gateway ── Batch: all events since the last ──▶ Router
    gateway ◀── Answer: what followed at once ─────
    gateway ◀── Letters: what followed later ────── (a long poll)

All times, those of placements included, are seconds on the gateway's monotonic clock, `sent_s` of a batch
among them. The router shifts them to its own and back: after its death it may run on another node. A batch
with `hello` begins a session and holds the gateway's whole state: replicas (Changed), then requests on
replicas (Placed), then requests that want a placement (Submit). What the gateway had before and does not
mention has ended. Batches of earlier sessions are not heard any more.
"""

from collections.abc import Mapping
from typing import NamedTuple

from headway.routing.types import Placement, Progress, ReplicaUpdate, RouteRequest, Shed

Figures = Mapping[str, Mapping[tuple[str, ...], float]]
"""The router's metrics: name -> label values -> value."""


class OnReplica(NamedTuple):
    """A request that a replica has: where it was put, whether its prompt is computed, its output so far."""

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
    """How far running requests are."""

    at_s: float
    progress: tuple[Progress, ...]


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
    """The gateway has placed it by itself, or had it placed before the router began anew."""

    at_s: float
    running: OnReplica


class Surveyed(NamedTuple):
    """What replicas say that they have, whoever sent it there."""

    at_s: float
    running: tuple[OnReplica, ...]


Event = Submit | Again | Prefilled | FirstToken | Advanced | Completed | Failed | Changed | Placed | Surveyed


class Batch(NamedTuple):
    """All events since the last batch, in order."""

    session: int
    sent_s: float
    events: tuple[Event, ...]
    hello: bool = False


class Letters(NamedTuple):
    """What became of requests of one gateway. `known` false: the router has no such gateway.

    `failed` are requests that the router could not handle and has forgotten: the gateway places them.
    """

    placements: tuple[Placement, ...] = ()
    sheds: tuple[Shed, ...] = ()
    failed: tuple[str, ...] = ()
    known: bool = True


class Answer(NamedTuple):
    """What followed from a batch. `known` false: the router has no such session, it wants a hello.

    `queued` requests of all gateways wait in the router. `figures` come about once a second. `survey`: the
    router began anew and asks for what the replicas have.
    """

    known: bool
    letters: Letters = Letters()
    queued: int = 0
    figures: Figures | None = None
    survey: bool = False
