"""Types of the decision record and the status document, as the planner writes them and clients read them.

A number that is not known is null. `created_at` and all other names in `_at` are Unix seconds, `_s` are
seconds. The JSON has exactly the keys that were set: what an older version wrote lacks some, which then have
their defaults here, and what a newer one added is kept as it came.

    record = DecisionRecord.model_validate(document)         pydantic.ValidationError, a ValueError
    record.document()                                        the same document again

`reasons` stay as the policy gave them, so that they can be written again byte for byte;
`DecisionReasons.model_validate(reasons)` reads what all policies have in common, of a simulated interval too.
"""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from headway.config import Role

PLANNED, DRY_RUN, UNREACHABLE, REFUSED = "planned", "dry_run", "unreachable", "refused"

PlannerPhase = Literal["waiting", "running", "holding", "stopped"]


class _Document(BaseModel):
    model_config = ConfigDict(frozen=True, extra="allow")

    def document(self) -> dict[str, Any]:
        """Plain JSON data with the keys that were set."""
        return self.model_dump(mode="json", exclude_unset=True)


class IntervalSpan(_Document):
    """The interval that a decision looked back on."""

    start_s: float
    end_s: float


class DataHealth(_Document):
    """How good the measured data is: `ok`, `starting`, `partial`, `stale` or `down`, and why."""

    status: str | None = None
    detail: str = ""


class LatencyFigures(_Document):
    """Mean and quantiles of one latency in seconds, and how many were measured."""

    mean: float | None = None
    p50: float | None = None
    p95: float | None = None
    p99: float | None = None
    count: float | None = None


class LoadFigures(_Document):
    """Mean load of a pool: requests running and waiting, KV usage in [0, 1]."""

    running: float | None = None
    waiting: float | None = None
    kv_usage: float | None = None


class TrafficCounts(_Document):
    """How many single requests the policy was shown."""

    arrivals: int
    completions: int


class LengthCounts(_Document):
    """A histogram of token counts: `counts[i]` up to `bounds[i]`, the last above all bounds."""

    bounds: tuple[float, ...]
    counts: tuple[float, ...]
    mean: float


class CountedFigures(_Document):
    """What the requests of a policy were made of where the source has no single ones: arrivals by scrape."""

    start_s: float
    steps: tuple[tuple[float, float], ...]
    input_tokens: LengthCounts
    output_tokens: LengthCounts | None = None
    completed: float = 0.0


class MeasuredFigures(_Document):
    """One interval as measured."""

    start_s: float | None = None
    end_s: float | None = None
    health: DataHealth = DataHealth()
    requests: float | None = None
    completed: float | None = None
    isl_tokens: float | None = None
    osl_tokens: float | None = None
    request_duration_s: float | None = None
    attainment: float | None = None
    queue_s: float | None = None
    cached_tokens: float | None = None
    ttft_s: LatencyFigures = LatencyFigures()
    itl_s: LatencyFigures = LatencyFigures()
    load: Mapping[Role, LoadFigures] = {}
    traffic: TrafficCounts | None = None
    counted: CountedFigures | None = None


class ForecastFigures(_Document):
    """The load expected of the next interval, and the predictor behind each figure."""

    requests: float | None = None
    isl_tokens: float | None = None
    osl_tokens: float | None = None
    source: Mapping[str, str] = {}


class CorrectionFigures(_Document):
    """A correction factor and what it rests on."""

    value: float
    basis: str


class RequirementFigures(_Document):
    """Replicas before rounding; null when no number would do."""

    replicas: float | None = None
    load_tokens_per_s: float
    throughput_per_gpu: float


class LeadFigures(_Document):
    """Seconds until a replica that is ordered now serves."""

    lead_s: float


class MissingFigures(_Document):
    """Replicas of a pool that do not come, since when (seconds of the decision's clock), what is lost so."""

    replicas: int
    revoked: int = 0
    since_s: float
    ready: int | None = None
    lost_share: float | None = None


class ReasonSettings(_Document):
    """Settings that a decision was made with."""

    loss_budget: float | None = None


class DecisionReasons(_Document):
    """The reasons that policies have in common; each policy has more, and leaves some out."""

    policy: str = ""
    summary: str = ""
    forecast: ForecastFigures | None = None
    corrections: Mapping[Role, CorrectionFigures] = {}
    requirement: Mapping[Role, RequirementFigures] = {}
    needs: Mapping[Role, LeadFigures] = {}
    missing: Mapping[Role, MissingFigures] = {}
    settings: ReasonSettings = ReasonSettings()
    limits: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


class ReplicaCounts(_Document):
    """The four counts of a pool, null before they are known."""

    desired: int | None = None
    starting: int | None = None
    ready: int | None = None
    draining: int | None = None


class ConnectorAnswer(_Document):
    """The connector's answer to the targets, and its time.

    `status` begins as `planned`, which stays when the planner dies before it has applied the targets; then
    `unchanged`, `sent` or `pending` (the connector's answer), `unreachable`, `refused`, or `dry_run`.
    """

    kind: str | None = None
    status: str | None = None
    detail: Mapping[str, Any] | str = {}
    at: float | None = None


class ReplicaTimes(_Document):
    """A replica that a decision started. `running_at` stays null for one that was gone before it ran."""

    role: Role
    replica: str
    starting_at: float | None = None
    running_at: float | None = None


class DecisionRecord(_Document):
    """Everything that a decision was made from, what it was, and what became of it.

    The log gives the `id`. `tick` and `due_at` are its place on the planner's grid; `notes` say what was
    missing. `reached_at` is when every pool had its target ready, null until then.
    """

    id: int = -1
    tick: int = 0
    due_at: float = 0.0
    created_at: float
    interval: IntervalSpan
    measured: MeasuredFigures = MeasuredFigures()
    forecast: ForecastFigures | None = None
    pools: Mapping[Role, ReplicaCounts] = {}
    previous_targets: Mapping[Role, int] = {}
    targets: Mapping[Role, int]
    reasons: Mapping[str, Any] = {}
    summary: str = ""
    notes: tuple[str, ...] = ()
    connector: ConnectorAnswer = ConnectorAnswer()
    dry_run: bool = False
    replicas: tuple[ReplicaTimes, ...] = ()
    reached_at: float | None = None


class LastDecision(_Document):
    """The newest decision in the status document; `status` is that of the connector."""

    id: int
    created_at: float
    targets: Mapping[Role, int]
    summary: str = ""
    reached_at: float | None = None
    notes: tuple[str, ...] = ()
    missing: Mapping[Role, MissingFigures] = {}
    status: str | None = None


class EngineFigures(_Document):
    """The engines; `time_scale` is the speed of simulated ones relative to their profile."""

    kind: str | None = None
    simulated: bool = False
    time_scale: float | None = None


class SloFigures(_Document):
    """Targets in force, in milliseconds, and the share of requests that shall meet them."""

    ttft_ms: float | None = None
    itl_ms: float | None = None
    attainment: float | None = None


class PlannerFigures(_Document):
    """The planner's loop. `missed_ticks` were skipped, as a tick or a restart took more than an interval."""

    state: PlannerPhase
    reason: str = ""
    dry_run: bool = False
    policy: str | None = None
    predictor: str | None = None
    interval_s: float | None = None
    max_gpu_budget: int | None = None
    ticks: int | None = None
    late_ticks: int = 0
    missed_ticks: int = 0
    failed_ticks: int = 0
    last_tick_at: float | None = None
    next_tick_at: float | None = None


class PoolStatus(LoadFigures, ReplicaCounts):
    """One pool: counts, load of the last interval, and limits."""

    min_replicas: int | None = None
    max_replicas: int | None = None
    gpus_per_replica: int | None = None


class AttainmentFigures(_Document):
    """Shares of requests that met their SLO."""

    last_interval: float | None = None
    total: float | None = None


class ComponentHealth(_Document):
    """The outcome of the last question to a component, and one line about it."""

    ok: bool
    detail: str = ""


class RefinedFigures(_Document):
    """How far traffic has changed the profile.

    `factors` are measured over profiled latencies by phase; they hold since `since`, in seconds since 1970.
    """

    version: int
    cells: int
    factors: Mapping[str, float] = {}
    since: Mapping[str, float] = {}


class StatusDocument(_Document):
    """The answer of `GET /v1/control/status`."""

    model: str
    engine: EngineFigures = EngineFigures()
    slo: SloFigures = SloFigures()
    planner: PlannerFigures
    pools: Mapping[Role, PoolStatus] = {}
    attainment: AttainmentFigures = AttainmentFigures()
    measured: MeasuredFigures | None = None
    last_decision: LastDecision | None = None
    components: Mapping[str, ComponentHealth] = {}
    connector: ConnectorAnswer = ConnectorAnswer()
    changes: Mapping[str, Any] = {}
    refined: RefinedFigures | None = None
    calibration: Mapping[str, Mapping[str, float | None]] = {}
    corrections: Mapping[str, float] = {}
    """Factors of the router's predictions, by name; as of the last tick."""
