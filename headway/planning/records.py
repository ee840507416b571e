"""Types of the decision record, as the planner writes it and clients read it.

A number that is not known is null. `created_at` and all other names in `_at` are Unix seconds, `_s` are
seconds. The JSON has exactly the keys that were set: what an older version wrote lacks some, which then have
their defaults here, and what a newer one added is kept as it came.

    record = DecisionRecord.model_validate(document)         pydantic.ValidationError, a ValueError
    record.document()                                        the same document again

`reasons` stay as the policy gave them, so that they can be written again byte for byte;
`DecisionReasons.model_validate(reasons)` reads what all policies have in common, of a simulated interval too.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict

from headway.config import Role

PLANNED, DRY_RUN, UNREACHABLE, REFUSED = "planned", "dry_run", "unreachable", "refused"
UNCHANGED, PENDING, YIELDED = "unchanged", "pending", "yielded"
ANSWERS = (UNCHANGED, "sent", PENDING, YIELDED, PLANNED, DRY_RUN, UNREACHABLE, REFUSED)
"""Values of `ConnectorAnswer.status`."""


class Document(BaseModel):
    """Fields that were set, and those that a newer version added."""

    model_config = ConfigDict(frozen=True, extra="allow")

    def document(self) -> dict[str, Any]:
        """Plain JSON data with the keys that were set."""
        return self.model_dump(mode="json", exclude_unset=True)


class IntervalSpan(Document):
    """The interval that a decision looked back on."""

    start_s: float
    end_s: float


class DataHealth(Document):
    """How good the measured data is: `ok`, `starting`, `partial`, `stale` or `down`, and why."""

    status: str | None = None
    detail: str = ""

    @property
    def plannable(self) -> bool:
        """True if a decision can be made from the data, or nothing is said of it."""
        return self.status in ("ok", "partial", None)


class LatencyFigures(Document):
    """Mean and quantiles of one latency in seconds, and how many were measured."""

    mean: float | None = None
    p50: float | None = None
    p95: float | None = None
    p99: float | None = None
    count: float | None = None


class LoadFigures(Document):
    """Load of a pool, averaged over time: requests running and waiting on all its replicas together, and the
    mean of their KV usage in [0, 1].
    """

    running: float | None = None
    waiting: float | None = None
    kv_usage: float | None = None


class TrafficCounts(Document):
    """How many single requests the policy was shown."""

    arrivals: int
    completions: int


class LengthCounts(Document):
    """A histogram of token counts: `counts[i]` up to `bounds[i]`, the last above all bounds."""

    bounds: tuple[float, ...]
    counts: tuple[float, ...]
    mean: float


class CountedFigures(Document):
    """What the requests of a policy were made of where the source has no single ones: arrivals by scrape."""

    start_s: float
    steps: tuple[tuple[float, float], ...]
    input_tokens: LengthCounts
    output_tokens: LengthCounts | None = None
    completed: float = 0.0


class ClassFigures(Document):
    """The requests of one SLO class in an interval: how many arrived, how many ended and are `judged`, of
    these the share that met the SLO, and the latencies of those answered; `itl_s` is of each request's mean.
    """

    requests: float | None = None
    judged: float | None = None
    attainment: float | None = None
    ttft_s: LatencyFigures = LatencyFigures()
    itl_s: LatencyFigures = LatencyFigures()


class MeasuredFigures(Document):
    """One interval as measured."""

    start_s: float | None = None
    end_s: float | None = None
    health: DataHealth = DataHealth()
    requests: float | None = None
    least_requests: float | None = None
    repeats: float | None = None
    completed: float | None = None
    unended: float | None = None
    isl_tokens: float | None = None
    osl_tokens: float | None = None
    request_duration_s: float | None = None
    attainment: float | None = None
    judged: float | None = None
    ttft_only: bool = False
    queue_s: float | None = None
    cached_tokens: float | None = None
    ttft_s: LatencyFigures = LatencyFigures()
    itl_s: LatencyFigures = LatencyFigures()
    load: Mapping[Role, LoadFigures] = {}
    traffic: TrafficCounts | None = None
    counted: CountedFigures | None = None
    classes: Mapping[str, ClassFigures] = {}


class ForecastFigures(Document):
    """The load expected of the next interval, the range in which its requests lie in 90 % of all cases, as
    the predictor has it, and the predictor behind each figure.
    """

    requests: float | None = None
    requests_low: float | None = None
    requests_high: float | None = None
    isl_tokens: float | None = None
    osl_tokens: float | None = None
    source: Mapping[str, str] = {}


class CorrectionFigures(Document):
    """A correction factor and what it rests on."""

    value: float
    basis: str


class RequirementFigures(Document):
    """Replicas before rounding; null when no number would do."""

    replicas: float | None = None
    load_tokens_per_s: float
    throughput_per_gpu: float


class OptionFigures(Document):
    """A forecast with a safety factor: work expected in replicas, and requests lost with it in the past, of
    each class as a share.
    """

    forecast: str = ""
    expected: float = 0.0
    factor: float = 1.0
    lost: float = 0.0
    classes: tuple[float, ...] = ()


class NeedFigures(Document):
    """A pool's need by the policy `headway`: seconds until a replica ordered now serves, the option chosen,
    and the requests and intervals that it was tested on, `recalled` of these from a warm-up trace.
    """

    lead_s: float
    option: OptionFigures | None = None
    requests: float | None = None
    intervals: int = 0
    recalled: int = 0


class EngineDifferences(Document):
    """Measured over profiled latencies, by phase; limits that engines show; how a profile was guessed."""

    factors: Mapping[str, float] = {}
    limits: Mapping[str, float] = {}
    guess: str = ""


class MissingFigures(Document):
    """Replicas of a pool that do not come, since when (seconds of the decision's clock), what is lost so."""

    replicas: int
    revoked: int = 0
    since_s: float
    ready: int | None = None
    lost_share: float | None = None


class SlowFigures(Document):
    """The slow ones of a pool's ready replicas: their slowness and worth, and how many are held for them."""

    ready: int
    slowness: tuple[float, ...] = ()
    worth: tuple[float, ...] = ()
    lacking: int = 0


class ReasonSettings(Document):
    """Settings that a decision was made with. `class_budgets` begin with that of requests without a class."""

    loss_budget: float | None = None
    class_budgets: Mapping[str, float] = {}


class DecisionReasons(Document):
    """The reasons that policies have in common; each policy has more, and leaves some out."""

    policy: str = ""
    summary: str = ""
    forecast: ForecastFigures | None = None
    corrections: Mapping[Role, CorrectionFigures] = {}
    requirement: Mapping[Role, RequirementFigures] = {}
    needs: Mapping[Role, NeedFigures] = {}
    missing: Mapping[Role, MissingFigures] = {}
    engines: EngineDifferences = EngineDifferences()
    settings: ReasonSettings = ReasonSettings()
    limits: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


class ReplicaCounts(Document):
    """The four counts of a pool, null before they are known."""

    desired: int | None = None
    starting: int | None = None
    ready: int | None = None
    draining: int | None = None


COUNTS = tuple(ReplicaCounts.model_fields)


class ForeignEdit(Document):
    """A pool's count that others set; `left_until` is null where the next decision overrules it."""

    role: Role
    found: int
    ours: int
    seen_at: float
    by: str | None = None
    changed_at: float | None = None
    left_until: float | None = None


class ConnectorAnswer(Document):
    """The connector's answer to the targets, and its time.

    `status` begins as `planned`, which stays when the planner dies before it has applied the targets; then
    `unchanged`, `sent`, `pending` or `yielded` (the connector's answer), `unreachable`, `refused`, or
    `dry_run`. In the status document also the edits of others that are not over (`ForeignEdit`), and in
    `rivals` other controllers of the same counts, and counts that metrics contradict, a line each.
    """

    kind: str | None = None
    status: str | None = None
    detail: Mapping[str, Any] | str = {}
    at: float | None = None
    foreign_edits: tuple[ForeignEdit, ...] = ()
    rivals: tuple[str, ...] = ()
    failures: int = 0
    """In the status document: calls of the other side that failed, since the planner's process began."""


class ReplicaTimes(Document):
    """A replica that a decision started. `running_at` stays null for one that was gone before it ran."""

    role: Role
    replica: str
    starting_at: float | None = None
    running_at: float | None = None


class ClassTargets(Document):
    """Targets of a class; what is null is as the deployment's."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    attainment: float | None = None


class SloFigures(Document):
    """Targets in force, in milliseconds, and the share of requests that shall meet them."""

    ttft_ms: float | None = None
    itl_ms: float | None = None
    attainment: float | None = None
    classes: Mapping[str, ClassTargets] = {}

    def of_class(self, name: str) -> "SloFigures":
        """The targets of a class, those of the deployment where it has none of its own."""
        own = self.classes.get(name, ClassTargets())
        return SloFigures(
            ttft_ms=self.ttft_ms if own.ttft_ms is None else own.ttft_ms,
            itl_ms=self.itl_ms if own.tpot_ms is None else own.tpot_ms,
            attainment=self.attainment if own.attainment is None else own.attainment,
        )


class AdvicePoint(Document):
    """One interval of a dry run, or several: mean GPUs of both fleets, ready replicas, attainment."""

    start_at: float
    end_at: float
    requests: float
    stood_gpus: float | None = None
    planned_gpus: float | None = None
    stood_attainment: float | None = None
    planned_attainment: float | None = None
    stood_replicas: Mapping[Role, float] = {}
    planned_replicas: Mapping[Role, float] = {}


class DecisionRecord(Document):
    """Everything that a decision was made from, what it was, and what became of it.

    The log gives the `id`. `tick` and `due_at` are its place on the planner's grid; `notes` say what was
    missing. `reached_at` is when every pool had its target ready, null until then. `advice` of a dry run has
    the interval as the plan's fleet would have lived it; the decision is made from that fleet.
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
    advice: AdvicePoint | None = None
