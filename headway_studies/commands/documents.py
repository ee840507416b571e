"""The documents of queue-sim, gpu-plan and recommend, as `headway report` checks them before it draws one.

Only what a page shows is named; other keys are let through. The verbs draw what they have just made, so the
pages read the JSON-able data, not these classes. Figures are finite and not negative; zero is a figure.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, model_validator

from headway.simulation.report import Count, Number, ReportSlo

Document = Mapping[str, Any]
Amount = Annotated[Number, Field(ge=0)]
Share = Annotated[Number, Field(ge=0, le=1)]
Counts = Mapping[str, Count]


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedFigure:
    """Mean and half width of the 95 % interval over the seeds."""

    mean: Amount | None
    half_width: Amount | None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePattern:
    """Requests of one kind."""

    name: str
    arrival_rps: Amount
    slo_s: Amount


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueConsumers:
    """Consumers that are alike."""

    kind: str
    count: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSetup:
    """What was simulated."""

    name: str
    load: Amount
    patterns: Sequence[QueuePattern]
    consumers: Sequence[QueueConsumers]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueAmount:
    """The size of a run: one of the two."""

    count: Count | None = None
    seconds: Amount | None = None

    @model_validator(mode="after")
    def _one_is_given(self) -> "QueueAmount":
        if self.count is None and self.seconds is None:
            raise ValueError("has neither count nor seconds")
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class PatternOutcome:
    """What one policy did for one pattern."""

    mean_wait_s: SeedFigure
    slo_violations: SeedFigure


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRow:
    """What one policy did."""

    routing: str
    queue: str
    mean_wait_s: SeedFigure
    p50_wait_s: SeedFigure
    p95_wait_s: SeedFigure
    p99_wait_s: SeedFigure
    slo_violations: SeedFigure
    utilisation: SeedFigure
    patterns: Mapping[str, PatternOutcome]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePlace:
    """One place in an order of policies."""

    name: str
    relation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueOrders:
    """The measured orders."""

    mean_wait_s: Mapping[str, Sequence[QueuePlace]]
    slo_violations: Mapping[str, Sequence[QueuePlace]]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueClaims:
    """The orders that AIBrix's document gives."""

    mean_wait_s: str
    slo_violations: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSimDocument:
    """`headway queue-sim`."""

    setup: QueueSetup
    seeds: Count
    amount: QueueAmount
    service: str
    passing: str
    policies: Annotated[Sequence[QueueRow], Field(min_length=1)]
    orders: QueueOrders
    documented: QueueClaims | None
    notes: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class StudiedTrace:
    """The trace of a study."""

    name: str
    requests: Count
    duration_s: Amount
    rate_scale: Amount


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSlo:
    """The SLO of a GPU plan."""

    ttft_s: Amount
    itl_s: Amount
    loss_budget: Share


@dataclass(frozen=True, slots=True, kw_only=True)
class NeedShare:
    """Requests that are alike, and what each type alone would need for them."""

    requests: Count
    replicas_alone: Mapping[str, Amount]
    late: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What one pool needs."""

    gpus_per_replica: Counts
    shares: Sequence[NeedShare]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRow:
    """One way to serve the trace."""

    replicas: Mapping[str, Counts]
    gpus: Counts
    cost_per_hour: Amount


@dataclass(frozen=True, slots=True, kw_only=True)
class AlternativeRow:
    """Another way, or why there is none."""

    name: str
    replicas: Mapping[str, Counts] | None
    gpus: Counts | None
    cost_per_hour: Amount | None
    problem: str | None

    @model_validator(mode="after")
    def _whole(self) -> "AlternativeRow":
        absent = [part is None for part in (self.replicas, self.gpus, self.cost_per_hour)]
        if any(absent) and not (all(absent) and self.problem is not None):
            raise ValueError("has only a part of replicas, gpus and cost_per_hour, or no problem")
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanInterval(PlanRow):
    """The plan of one interval."""

    start_s: Amount
    requests: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuPlanDocument:
    """`headway gpu-plan`."""

    trace: StudiedTrace
    slo: PlanSlo
    hopeless: Count
    needs: Mapping[str, Need]
    plan: PlanRow
    alternatives: Sequence[AlternativeRow]
    notes: Sequence[str]
    intervals: Sequence[PlanInterval] = ()

    @model_validator(mode="after")
    def _same_pools(self) -> "GpuPlanDocument":
        fleets = [row.replicas for row in (self.plan, *self.intervals)]
        fleets += [row.replicas for row in self.alternatives if row.replicas is not None]
        if any(not set(self.needs) <= set(fleet) for fleet in fleets):
            raise ValueError("replicas of a pool in needs are missing")
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateOutcome:
    """What one fleet took and kept."""

    replicas: Counts
    attainment: Share
    cost: Amount


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateRow:
    """One candidate; `fixed` is its least fixed fleet, `headway` what the policy did."""

    profile: str
    cost_at_least: Amount
    policy_cost_at_least: Amount
    fixed: CandidateOutcome | None
    headway: CandidateOutcome | None
    problem: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownCandidate:
    """A row of the table, by its place among the candidates."""

    candidate: Count
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommended:
    """The choice; its simulation is read as every simulation's result is."""

    sentences: Mapping[str, str]
    simulation: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecommendDocument:
    """`headway recommend`."""

    trace: StudiedTrace
    slo: ReportSlo
    unit: str
    candidates: Sequence[CandidateRow]
    shown: Sequence[ShownCandidate]
    recommended: Recommended | None
    nothing: str | None
    notes: Sequence[str]

    @model_validator(mode="after")
    def _complete(self) -> "RecommendDocument":
        if any(one.candidate >= len(self.candidates) for one in self.shown):
            raise ValueError("shown names a candidate that is not there")
        if self.recommended is None and self.nothing is None:
            raise ValueError("has neither recommended nor nothing")
        return self


def checked(kind: type, document: Document) -> Document:
    """The document as it came; pydantic's ValidationError names what is missing or wrong."""
    TypeAdapter(kind).validate_python(document)
    return document
