"""The interface between the planner and a connector, which carries its decisions out, and its declaration.

    ConnectorError(Exception)
    ├── Unreachable        the other side did not answer; the next tick asserts the target again
    └── Refused            the other side answered no: a wrong name, a missing right, a wrong structure

All calls are coroutines; each ends within the timeout that its connector was made with.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

from headway.config import HeadwayConfig
from headway.config.base import Settings
from headway.planning import Role

DEPLOYMENTS: Mapping[Role, str] = {Role.PREFILL: "Prefill", Role.DECODE: "Decode", Role.MIXED: "Mixed"}
"""The Ray Serve deployment of each role."""


class ConnectorError(Exception):
    """Base of a connector's errors; the text names the fault and the place."""


class Unreachable(ConnectorError):
    """The other side did not answer."""


class Refused(ConnectorError):
    """The other side answered no."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolCounts:
    """One pool as the connector sees it. `desired` is the target that the other side took last."""

    desired: int
    starting: int
    ready: int
    draining: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """The outcome of a call of `set_targets`.

    `unchanged`: the targets were already set; `sent`: the other side took them; `pending`: they wait behind
    an earlier decision without an answer; `yielded`: a pool was left as others set it
    (`actors.connectors.drift`). `detail` is JSON-able, such as the virtual decision's id.
    """

    status: Literal["unchanged", "sent", "pending", "yielded"]
    detail: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """`ok` if the deployment exists, is whole and serves the model; else `reason` says what is missing."""

    ok: bool
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """One replica, and Ray's `node`, "" for none. `started_s` is the Unix time at which it was asked for."""

    role: Role
    replica: str
    phase: Literal["starting", "ready", "draining"]
    started_s: float
    node: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolsSnapshot:
    """The pools at one moment, as counts and replica by replica; those `asleep` by pool, in neither.

    `crowded`: a replica has nothing to do, and an engine of another application waits for its GPU.
    """

    pools: Mapping[Role, PoolCounts]
    replicas: tuple[Replica, ...]
    asleep: Mapping[Role, int] = field(default_factory=dict)
    crowded: bool = False


class Connector(Protocol):
    """Carries targets out. `set_targets` never waits for replicas: `state` shows how far they are."""

    async def set_targets(self, targets: Mapping[Role, int], reasons: Mapping[str, Any]) -> Action:
        """Ask for these replica counts; roles that are left out keep theirs. Safe to repeat every tick."""

    async def state(self) -> Mapping[Role, PoolCounts]:
        """The pools now."""

    async def ready(self) -> Ready:
        """Ready once the pools exist, serve one model, and have their first replicas."""


@runtime_checkable
class TellsReplicas(Protocol):
    """A connector that can tell replicas apart; of others only counts are followed."""

    async def snapshot(self) -> PoolsSnapshot:
        """The pools now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Editor:
    """The name under which a count was written, and the Unix time, where the other side keeps them."""

    by: str
    at_s: float | None = None


@runtime_checkable
class TellsEditors(Protocol):
    """A connector whose other side keeps who wrote a count."""

    async def editors(self, since_s: float) -> Mapping[Role, Editor]:
        """Others than us that wrote a pool's count since that Unix time, as far as it shows."""


@runtime_checkable
class TellsRivals(Protocol):
    """A connector whose other side shows who else controls the same counts."""

    async def rivals(self, *, claim: bool) -> Sequence[str]:
        """Other controllers of our pools, a line each. `claim`: mark the pools as ours for a while."""


@runtime_checkable
class TellsContradictions(Protocol):
    """A connector that hears of counts from two sides."""

    @property
    def contradictions(self) -> Sequence[str]:
        """What they tell differently for long, as of the last `state`, a line for each pool."""


@runtime_checkable
class CarriedOutLater(Protocol):
    """A connector whose other side carries targets out some time after it took them."""

    @property
    def carried_out(self) -> Mapping[Role, int] | None:
        """The newest targets, as of the last `state`, if they were carried out; else None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorKind:
    """The declaration of a connector.

    `make(config, application)` does no I/O. `decision_ids`: an outside system carries the decisions out and
    answers them by id; the control plane then runs the coordinator of `actors.virtual_connector`, and serves
    `/v1/scaling`. `options` checks the section `connector.options`. `problems` says what else the settings
    lack, a line each, before anything starts.
    """

    make: Callable[[HeadwayConfig, str], Connector]
    decision_ids: bool = False
    options: type[Settings] = Settings
    problems: Callable[[HeadwayConfig], Sequence[str]] = lambda _: ()
