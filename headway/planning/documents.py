"""Types of the status document and of the advice, as the planner answers with them and clients read them.

They are read as decision records are (`headway.planning.records`): names in `_at` are Unix seconds, `_s` are
seconds, null is not known.
"""

from collections.abc import Mapping
from typing import Any, Literal

from headway.config import Role
from headway.planning.records import (
    AdvicePoint,
    ConnectorAnswer,
    Document,
    ForecastFigures,
    LoadFigures,
    MeasuredFigures,
    MissingFigures,
    ReplicaCounts,
    SloFigures,
    SlowFigures,
)

PlannerPhase = Literal["waiting", "running", "holding", "stopped"]


class Spread(Document):
    """A figure and the range in which 90 % of its outcomes lie; null where not known."""

    value: float | None = None
    low: float | None = None
    high: float | None = None


class AdvisedFleet(Document):
    """What one fleet took and kept: attainment as a share, `cost` where a price is known."""

    gpu_hours: float | None = None
    attainment: Spread = Spread()
    cost: float | None = None


class AdviceWindow(Document):
    """A window of a dry run: the real fleet (`stood`), the planned one, and the difference.

    `covered_s` of the span are known. `measured` is false where the attainment of the real fleet is replayed;
    `replay_error` is the measured attainment less the replayed one where neither has a queue.
    """

    start_at: float
    end_at: float
    covered_s: float
    requests: float
    stood: AdvisedFleet
    planned: AdvisedFleet
    saved_gpu_hours: Spread
    saved_share: Spread
    saved_cost: Spread | None = None
    measured: bool = True
    replay_error: float | None = None


class ActedFigures(Document):
    """What acting has saved: `stood` is the fleet `against`, replayed, and `planned` the real one."""

    against: Mapping[Role, int] = {}
    hour: AdviceWindow | None = None
    day: AdviceWindow | None = None
    start: AdviceWindow | None = None


class ActedDocument(ActedFigures):
    """The same with the window asked for and its points."""

    window: AdviceWindow | None = None
    points: tuple[AdvicePoint, ...] = ()


class AdviceFigures(Document):
    """The worth of a plan that is not acted on; `acting` once it is: then only `acted` is added to.

    `pools` are those of the plan now. `start_up_s` is how long a start is taken to last, a guess until one
    was seen or stated.
    """

    acting: bool = False
    price_per_gpu_hour: float | None = None
    currency: str = ""
    start_up_s: Mapping[Role, float] = {}
    start_up_known: bool = False
    pools: Mapping[Role, ReplicaCounts] = {}
    hour: AdviceWindow | None = None
    day: AdviceWindow | None = None
    start: AdviceWindow | None = None
    acted: ActedFigures | None = None


class AdviceDocument(AdviceFigures):
    """The answer of `GET /v1/control/advice`: `window` is the one asked for, `points` are of it."""

    model: str = ""
    slo: SloFigures = SloFigures()
    policy: str = ""
    window: AdviceWindow | None = None
    points: tuple[AdvicePoint, ...] = ()
    acted: ActedDocument | None = None


class LastDecision(Document):
    """The newest decision in the status document; `status` is that of the connector.

    `expected_replicas` is the expected work in replicas, `needed` the replicas without limits; both are empty
    where the policy does not give them. `limits` are those that cut its targets;
    `beyond_reach` is the share of the last requests that no fleet would serve in time.
    `already`: it changed nothing, and its replicas were ready when it was made.
    """

    id: int
    created_at: float
    targets: Mapping[Role, int]
    summary: str = ""
    reached_at: float | None = None
    already: bool = False
    notes: tuple[str, ...] = ()
    missing: Mapping[Role, MissingFigures] = {}
    slow: Mapping[Role, SlowFigures] = {}
    forecast: ForecastFigures | None = None
    expected_replicas: Mapping[Role, float] = {}
    needed: Mapping[Role, int] = {}
    limits: tuple[str, ...] = ()
    beyond_reach: float | None = None
    status: str | None = None
    forecast_error: float | None = None
    """`forecast_error` of the decisions up to this one."""


class EngineFigures(Document):
    """The engines; `time_scale` is the speed of simulated ones relative to their profile."""

    kind: str | None = None
    simulated: bool = False
    time_scale: float | None = None


class PlannerFigures(Document):
    """The planner's loop. `missed_ticks` were skipped, as a tick or a restart took more than an interval.

    `undecided_since`: since when it has waited for its first decision, or for one after it had to wait again;
    null once it is made. `begun_at`: since when this process has planned. `predictor`: the predictors that
    the policy uses, separated by commas, null for none. `ready_within_s`: how long an engine may take to
    start. `deciding_s` is the time of all `decided` ticks, `tick_s` that of the last; `decisions` count by
    role and reason (`REASONS`), since the planner's process began.
    """

    state: PlannerPhase
    reason: str = ""
    dry_run: bool = False
    policy: str | None = None
    predictor: str | None = None
    interval_s: float | None = None
    undecided_since: float | None = None
    begun_at: float | None = None
    ready_within_s: float | None = None
    max_gpu_budget: int | None = None
    ticks: int | None = None
    late_ticks: int = 0
    missed_ticks: int = 0
    failed_ticks: int = 0
    last_tick_at: float | None = None
    next_tick_at: float | None = None
    tick_s: float | None = None
    decided: int = 0
    deciding_s: float = 0.0
    decisions: Mapping[Role, Mapping[str, int]] = {}


class PoolStatus(LoadFigures, ReplicaCounts):
    """One pool: counts, load of the last interval, and its own limits. `asleep` replicas are in none of the
    other counts. `schedule` says what a window of its schedule sets in their place now, or will when replicas
    ordered now serve.
    """

    asleep: int = 0

    min_replicas: int | None = None
    max_replicas: int | None = None
    gpus_per_replica: int | None = None
    schedule: str = ""


class AttainmentFigures(Document):
    """Shares of requests that met their SLO.

    `missed_since` is the start of the latest run of intervals below target, in seconds since 1970; null while
    the last one is on target. `windows`: how many were `judged` and `missed` in the last 5 minutes (`5m`) and
    the last hour (`1h`), of `all` and by class. With `ttft_only` a request counts by its TTFT alone, as the
    metrics know no more. `unended_since` is since when requests are under way and none has ended, null while
    some do; `usual_s` is the mean duration of the last requests that did.
    """

    last_interval: float | None = None
    ttft_only: bool = False
    total: float | None = None
    missed_since: float | None = None
    windows: Mapping[str, Mapping[str, Mapping[str, float]]] = {}
    unended_since: float | None = None
    usual_s: float | None = None


class VerdictFigures(Document):
    """The health of the deployment (`headway.planning.health`)."""

    state: str
    text: str
    well: bool = True


class Fact(Document):
    """A sentence about the deployment (`headway.planning.status_text`); `ok` unless somebody should look."""

    name: str
    text: str
    ok: bool = True


class ComponentHealth(Document):
    """Whether a component answered last time, and one line about it."""

    ok: bool
    detail: str = ""


class HostFault(Document):
    """A host that is or was recently unhealthy.

    `unreachable`: the control plane gets no answer, Ray still counts on it; `lost`: Ray has given it up;
    `back`: it answers again since `back_s`. `ran` names the replicas and actors that ran on it.
    """

    address: str
    node: str
    state: Literal["unreachable", "lost", "back"]
    since_s: float
    back_s: float | None = None
    ran: tuple[str, ...] = ()


class SilentFigures(Document):
    """A part that hangs: an engine without progress on `requests`, or what does not answer (null)."""

    part: str
    since_s: float
    requests: int | None = None


class RefinedFigures(Document):
    """How far traffic has changed the profile.

    `factors` are measured over profiled latencies by phase; they hold since `since`, in seconds since 1970.
    """

    version: int
    cells: int
    factors: Mapping[str, float] = {}
    since: Mapping[str, float] = {}
    limits: Mapping[str, float] = {}
    """What engines show: `kv_tokens`, and `batch`, the most requests in one."""


class DifferingFigures(Document):
    """A replica that takes `slowness` times as long as its peers, since `since_s`, seconds since 1970."""

    replica: str
    slowness: float
    since_s: float


class AlternativeFigures(Document):
    """Another fleet on the same traffic: GPUs in the mean, the share of requests lost, and by pool its
    replicas (of a fixed fleet) or its utilisation (of a threshold).
    """

    gpus: float
    lost: float
    pools: Mapping[Role, float] = {}


class AlternativesFigures(Document):
    """`hindsight.reasons.alternatives`: the best simpler fleets for the last `intervals` intervals."""

    intervals: int
    requests: int
    fixed: AlternativeFigures
    threshold: AlternativeFigures


class CostFigures(Document):
    """The price of a GPU-hour, null where none is known, and its currency."""

    price_per_gpu_hour: float | None = None
    currency: str = ""


class ShareFigures(Document):
    """A deployment's share of a budget of so many `gpus`: what it holds, and of its last decision what it
    `wanted`, what it was granted, and the words of that. Null and empty where it has none, or none yet.
    """

    gpus: int | None = None
    wanted: int | None = None
    holds: int = 0
    granted: int | None = None
    words: str = ""


class StandingFigures(Document):
    """`share` of the settings, as it is now."""

    priority: int = 0
    weight: float = 1.0
    floor_gpus: int = 0
    ceiling_gpus: int | None = None
    lend: float = 1.0


class FleetEntry(Document):
    """One application: the state of its planner, what it `holds` of GPUs, and if it `shares` the budget, that
    of all or of its `gpu_type`, its part as in `ShareFigures`.
    """

    name: str
    model: str
    state: str
    dry_run: bool = False
    shares: bool = False
    gpu_type: str = ""
    wanted: int | None = None
    holds: int = 0
    granted: int | None = None
    words: str = ""
    standing: StandingFigures = StandingFigures()


class FleetDocument(Document):
    """All applications of a cluster by name, and the budget that they share, null where there is none. Where
    it is one for each GPU type, `gpus` is their sum. `room` says in words what is free on nodes, where that
    bounds what is granted.
    """

    gpus: int | None = None
    by_type: Mapping[str, int] = {}
    room: str = ""
    deployments: tuple[FleetEntry, ...] = ()


class DeploymentInShort(Document):
    """A deployment in a line: the state of its `planner`, null while it does not answer, requests of the last
    interval and the share of them within their SLO, of which `promised` is the target.
    """

    deployment: str
    model: str
    verdict: VerdictFigures | None = None
    planner: str | None = None
    pools: Mapping[Role, PoolStatus] = {}
    requests_per_s: float | None = None
    attainment: float | None = None
    promised: float | None = None
    in_flight: int = 0
    budget: FleetEntry | None = None


class FleetInShort(Document):
    """The answer of `GET /v1/fleet`; `gpus`, `by_type` and `room` as in `FleetDocument`."""

    gpus: int | None = None
    by_type: Mapping[str, int] = {}
    room: str = ""
    deployments: tuple[DeploymentInShort, ...] = ()


class RestartFigures(Document):
    """How often a component restarted or lost a replica, and when last."""

    count: int
    at: float


class ChangeFigures(Document):
    """The author of a change at run time, empty if unknown, and its time."""

    by: str = ""
    at: float | None = None


class StatusDocument(Document):
    """The answer of `GET /v1/control/status`."""

    model: str
    verdict: VerdictFigures | None = None
    warnings: tuple[str, ...] = ()
    facts: tuple[Fact, ...] = ()
    engine: EngineFigures = EngineFigures()
    slo: SloFigures = SloFigures()
    planner: PlannerFigures
    pools: Mapping[Role, PoolStatus] = {}
    fleet: ShareFigures | None = None
    """Its share of `fleet.gpus`; null without one."""
    attainment: AttainmentFigures = AttainmentFigures()
    measured: MeasuredFigures | None = None
    last_decision: LastDecision | None = None
    components: Mapping[str, ComponentHealth] = {}
    hosts: tuple[HostFault, ...] = ()
    """The oldest fault first."""
    silent: tuple[SilentFigures, ...] = ()
    """The oldest silence first."""
    restarts: Mapping[str, RestartFigures] = {}
    """Actors by name, replicas by their deployment, as long as Ray's GCS remembers."""
    gcs_away_since_s: float | None = None
    """Since when Ray's GCS does not answer the planner."""
    set_aside: Mapping[str, float] = {}
    """Stored documents that could not be read, and when that was found, in seconds since 1970."""
    connector: ConnectorAnswer = ConnectorAnswer()
    changes: Mapping[str, Any] = {}
    changed: Mapping[str, ChangeFigures] = {}
    """Who made the changes, by the same keys."""
    seen_at: Mapping[str, float] = {}
    """When each input of a decision was last known: metrics, replicas, profile, forecast."""
    refined: RefinedFigures | None = None
    guess: str = ""
    """What the profile was guessed from and how unsure it is; empty for one that was given."""
    differing: Mapping[Role, tuple[DifferingFigures, ...]] = {}
    calibration: Mapping[str, Mapping[str, float | None]] = {}
    advice: AdviceFigures | None = None
    alternatives: AlternativesFigures | None = None
    cost: CostFigures = CostFigures()
    corrections: Mapping[str, float] = {}
    """Factors of the router's predictions, by name; as of the last tick."""
