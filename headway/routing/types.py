"""The values that routing reads and returns, and the errors that it raises.

    RouteRequest → Router → Placement | Shed (now, or with a later event)
    ReplicaUpdate (KnownBlocks), OutputProgress → Router

Times are seconds on the driver's clock, which the router never reads; lengths are tokens. The values are
frozen, small and picklable, since they travel between gateways and the Router actor.

    RoutingError(ValueError)     settings that cannot be routed by, one line: the place, and what is known
    ├── SloRequired              prediction-based routing was asked for without an SLO; the client's error
    └── PluginFault              a plugin of an installed package does not do what its protocol says
    RequestFault(Exception)      the router's own fault, at the turn of a request that its caller did not name
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from math import inf
from typing import NamedTuple

from headway.config import Role


class RoutingError(ValueError):
    """Settings or values that cannot be routed by; one line."""


class SloRequired(RoutingError):
    """A request asks for prediction-based routing and names no SLO; the Gateway API refuses it, too."""


class PluginFault(RoutingError):
    """The plugin that settings call `plugin` is no plugin, or answered what cannot be used."""

    def __init__(self, plugin: str, fault: str) -> None:
        super().__init__(plugin, fault)
        self.plugin, self.fault = plugin, fault

    def __str__(self) -> str:
        return f"routing: plugin {self.plugin}: {self.fault}"


class RequestFault(Exception):
    """The request `request_id`, held or late, could not be placed; the cause says why.

    The event itself is done. The request is still there: a held one is tried at each event, and those behind
    it are not, until it is `failed`.
    """

    def __init__(self, request_id: str) -> None:
        super().__init__(f"request {request_id} could not be placed")
        self.request_id = request_id


ReplicaId = str
"""A name that no other replica of the deployment ever has."""


Labels = tuple[str, ...]
Figures = Mapping[Labels, float]
"""A metric of the router: values by their labels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestSlo:
    """The SLO of one request: arrival → first token, and TPOT; infinite where there is none."""

    ttft_s: float = inf
    tpot_s: float = inf

    @property
    def given(self) -> bool:
        """True if there is a TTFT or a TPOT SLO."""
        return self.ttft_s < inf or self.tpot_s < inf

    def __reduce__(self) -> tuple[object, ...]:
        """Few are ever different: requests that come in a message share theirs."""
        return _shared_slo, (self.ttft_s, self.tpot_s)


@lru_cache(maxsize=1024)
def _shared_slo(ttft_s: float, tpot_s: float) -> RequestSlo:
    return RequestSlo(ttft_s=ttft_s, tpot_s=tpot_s)


NO_SLO = RequestSlo()


class RouteClass(StrEnum):
    """Agentic-kvc's classes by uncached prompt tokens, and where a heavy prompt was computed."""

    WARM = "WARM"
    MEDIUM = "MEDIUM"
    HEAVY_P2P = "HEAVY_P2P"
    HEAVY_COLO = "HEAVY_COLO"


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteRequest:
    """One request as routers see it.

    `max_tokens` bounds the output. `critical` requests are served late rather than shed, while they may wait.
    `prediction_based` asks for the SLO-aware profile whatever the default is (the Gateway API's header), and
    needs an SLO (SloRequired). One that `spills` is turned away at once where it finds no place, as there is
    another deployment that takes it. `session` names a conversation. `blocks` are the keys of the prompt's
    prefix blocks in order, each standing for `block_tokens` tokens and for everything before it.
    `arrival_s` is what TTFT counts from. `tenant` is whose request it is (`routing.tenants`), `adapter` the
    LoRA adapter that it asks for; "" for none.
    """

    request_id: str
    arrival_s: float
    input_tokens: int
    max_tokens: int
    model: str = ""
    slo: RequestSlo = NO_SLO
    critical: bool = False
    prediction_based: bool = False
    spills: bool = False
    session: str | None = None
    blocks: Sequence[int] = ()
    block_tokens: int = 512
    tenant: str = ""
    adapter: str = ""

    def __post_init__(self) -> None:
        if self.prediction_based and not self.slo.given:
            raise SloRequired("prediction-based scheduling needs a TTFT or a TPOT SLO")


class Placement(NamedTuple):
    """Where a request goes. A later placement of the same request takes the place of an earlier one.

    `prefill_replica` and `decode_replica` are the same where one replica does both. `reason` is
    an offload decision's reason, or the profile's name; `profile` names the scheduling profile that
    decided. Predictions are None where nothing was predicted. `cached_tokens` is what the prefill replica is
    thought to have of the prompt. `deadline_s` is when an offloaded prefill is given up; infinite otherwise.
    `cached_by` says from where: the engine's own `events`, an `estimate`, or "" where nobody predicts it.
    `attempt` counts placements of this request from 1. A named tuple, because one is made for every request:
    that takes a third of a frozen dataclass's time. Name the arguments all the same.
    """

    request_id: str
    prefill_replica: ReplicaId
    decode_replica: ReplicaId
    profile: str
    reason: str = ""
    route_class: RouteClass | None = None
    predicted_ttft_s: float | None = None
    predicted_tpot_s: float | None = None
    cached_tokens: int = 0
    deadline_s: float = inf
    attempt: int = 1
    queued_s: float = 0.0
    cached_by: str = ""

    @property
    def split(self) -> bool:
        """True if KV moves between two replicas."""
        return self.prefill_replica != self.decode_replica


class ShedReason(StrEnum):
    """The reason that a request is turned away."""

    NO_HEADROOM = "no_headroom"
    """No replica is predicted to keep the SLOs, and waiting will not help."""
    NO_CAPACITY = "no_capacity"
    """The request's pattern has no capacity on any replica that there is."""
    SATURATED = "saturated"
    """Every replica has as much queued as one may have, for as long as the request may wait."""
    QUEUE_FULL = "queue_full"
    WAITED_TOO_LONG = "waited_too_long"
    """It waited as long as a request may."""
    SPILLED = "spilled"
    """There is no place for it now, and another deployment takes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shed:
    """A request that is turned away; the gateway answers 429."""

    request_id: str
    reason: ShedReason
    detail: str = ""
    retry_after_s: float = 1.0


class RoutingOutcome(NamedTuple):
    """The placements and sheds that follow from an event, of any requests."""

    placements: tuple[Placement, ...] = ()
    sheds: tuple[Shed, ...] = ()


NOTHING = RoutingOutcome()


class ReplicaState(StrEnum):
    """The part that a replica takes in routing."""

    READY = "ready"
    DRAINING = "draining"
    """It finishes what it has and takes nothing new."""
    GONE = "gone"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaLoad:
    """An engine's own figures: requests in the batch and queued, KV usage in [0, 1].

    `busy_s` is how long it has computed since it began, None if it does not say; `preemptions` how many
    requests it has thrown out of the batch since then. `adapters` are the LoRA adapters that it has loaded,
    the least recently used first, and `adapter_room` how many a batch can use; None: it does not say.
    """

    running: int
    waiting: int
    kv_usage: float
    busy_s: float | None = None
    preemptions: int = 0
    adapters: tuple[str, ...] | None = None
    adapter_room: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownBlocks:
    """What an engine says of its prefix cache, in the keys of `RouteRequest.blocks`.

    `since` None: `held` is all that it holds at `sequence`. Else these are the keys that changed after
    `since`, as they are at `sequence`: from a state of any sequence between the two that leads to the same. A
    `sequence` is this replica's alone. `capacity_tokens` is the size of its KV cache, 0 if it does not say.
    """

    sequence: int
    since: int | None = None
    held: tuple[int, ...] = ()
    dropped: tuple[int, ...] = ()
    capacity_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaUpdate:
    """A replica came, changes, or went. `gpu_type` "" and `load` None: it has not said anything new.

    With a `load` goes `blocks_at`, the sequence of its known blocks then; None: it does not know its cache.
    """

    replica: ReplicaId
    role: Role
    state: ReplicaState = ReplicaState.READY
    gpu_type: str = ""
    load: ReplicaLoad | None = None
    blocks_at: int | None = None
    blocks: KnownBlocks | None = None


class OutputProgress(NamedTuple):
    """The number of output tokens of a request that have left."""

    request_id: str
    output_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A request that is on replicas already, as a restarted router learns of it.

    `prefilled`: its prompt is computed. `first_token_s` is −1 where it is not known or not there yet.
    `expected_output_tokens` is what the former router expected; None: it is predicted anew.
    """

    request: RouteRequest
    placement: Placement
    prefilled: bool = False
    output_tokens: int = 0
    first_token_s: float = -1.0
    expected_output_tokens: int | None = None
