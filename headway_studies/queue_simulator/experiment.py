"""Runs and experiments: one run under one policy in figures, many runs compared.

Events. At the same instant an end comes before an arrival, so that the newcomer finds the room. Every request
is served: the run goes on after the last arrival. Utilisation is Σ load × time while requests arrive, over
consumers × that time. All figures are NaN for a run or a pattern without requests.

Many runs. Each policy meets the same arrivals of each seed (common random numbers). Arrivals and random-push
have generators of their own, so a policy's figures do not depend on the others.

A mean over seeds has its 95 % confidence interval, x̄ ± t(0.975, n − 1) · s / √n (Student's t). Policies are
sorted by mean, neighbours told apart by their paired difference over the seeds: `<` its interval excludes 0,
`=` it does not, or is exactly 0, `?` one seed. The intervals are per pair, not corrected for their number.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import isnan, nan, sqrt
from typing import Literal

import numpy as np
import numpy.typing as npt

from headway_studies.queue_simulator.dispatch import ConsumerFleet, make_dispatch
from headway_studies.queue_simulator.load import Amount, Floats, QueueArrivals, Service, draw_arrivals
from headway_studies.queue_simulator.model import Setup
from headway_studies.queue_simulator.waiting import DispatchPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRun:
    """One run, per request in order of arrival: wait and service in seconds, and the consumer."""

    arrivals: QueueArrivals
    wait_s: Floats
    service_s: Floats
    consumer: npt.NDArray[np.int64]

    @property
    def end_s(self) -> Floats:
        """When each request ended."""
        end_s: Floats = self.arrivals.time_s + self.wait_s + self.service_s
        return end_s


def simulate(
    setup: Setup, arrivals: QueueArrivals, policy: DispatchPolicy, generator: np.random.Generator
) -> QueueRun:
    """Serve all arrivals under one policy; the generator is drawn from by random-push alone."""
    fleet = ConsumerFleet(setup, arrivals)
    dispatch = make_dispatch(policy, fleet, generator)
    for request, at_s in enumerate(fleet.arrival_s):
        while (end_s := fleet.next_end_s) <= at_s:
            dispatch.freed(fleet.end_next(), end_s)
        dispatch.arrived(request, at_s)
    while (end_s := fleet.next_end_s) < np.inf:
        dispatch.freed(fleet.end_next(), end_s)
    return QueueRun(
        arrivals=arrivals,
        wait_s=np.array(fleet.started_s) - arrivals.time_s,
        service_s=np.array(fleet.service_s),
        consumer=np.array(fleet.consumer, np.int64),
    )


NAN = float("nan")


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Waits in seconds, and the share of requests in [0, 1] that missed their SLO."""

    requests: float
    mean_wait_s: float
    p50_wait_s: float
    p95_wait_s: float
    p99_wait_s: float
    max_wait_s: float
    slo_violations: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFigures:
    """All requests, those of each pattern in the set-up's order, and the utilisation in [0, 1]."""

    total: Figures
    patterns: tuple[Figures, ...]
    utilisation: float


def measure(setup: Setup, run: QueueRun) -> RunFigures:
    """The figures of one run."""
    slo_s = np.array([pattern.slo_s for pattern in setup.patterns])[run.arrivals.pattern]
    missed = (run.wait_s + run.service_s > slo_s).astype(np.float64)
    masks = [run.arrivals.pattern == index for index in range(len(setup.patterns))]
    return RunFigures(
        total=_figures(run.wait_s, missed),
        patterns=tuple(_figures(run.wait_s[mask], missed[mask]) for mask in masks),
        utilisation=_utilisation(setup, run),
    )


def _figures(wait_s: Floats, missed: Floats) -> Figures:
    count = len(wait_s)
    p50, p95, p99 = np.percentile(wait_s, (50, 95, 99)).tolist() if count else (NAN, NAN, NAN)
    return Figures(
        requests=count,
        mean_wait_s=float(wait_s.mean()) if count else NAN,
        p50_wait_s=p50,
        p95_wait_s=p95,
        p99_wait_s=p99,
        max_wait_s=float(wait_s.max()) if count else NAN,
        slo_violations=float(missed.mean()) if count else NAN,
    )


def _utilisation(setup: Setup, run: QueueRun) -> float:
    if not len(run.wait_s):
        return NAN
    loads = np.array(
        [
            [one.profiles[p.name].load if p.name in one.profiles else NAN for p in setup.patterns]
            for one in setup.consumers
        ]
    )
    last_s = run.arrivals.time_s[-1]
    start_s = run.arrivals.time_s + run.wait_s
    busy_s = np.minimum(run.end_s, last_s) - np.minimum(start_s, last_s)
    work_s = (busy_s * loads[run.consumer, run.arrivals.pattern]).sum()
    return float(work_s / (len(setup.consumers) * last_s))


CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Mean and half the width of its interval; the half width is NaN with one seed, both with none."""

    mean: float
    half_width: float

    @property
    def is_above_zero(self) -> bool:
        """True if the whole interval is positive."""
        return self.mean - self.half_width > 0


def estimate(values: Iterable[float]) -> Estimate:
    """The mean of one value per seed; seeds without a value (NaN) are left out."""
    from scipy.stats import t

    known = np.array([value for value in values if not isnan(value)])
    if not len(known):
        return Estimate(mean=nan, half_width=nan)
    if len(known) == 1:
        return Estimate(mean=float(known[0]), half_width=nan)
    spread = float(known.std(ddof=1)) / sqrt(len(known))
    half_width = float(t.ppf((1 + CONFIDENCE) / 2, len(known) - 1)) * spread
    return Estimate(mean=float(known.mean()), half_width=half_width)


Metric = Callable[[RunFigures], float]
Report = Callable[[float, float], None]

LOAD, ROUTING = 0, 1
"""Streams of random numbers within a seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """Every policy with the seeds 0 to `seeds` − 1."""

    setup: Setup
    policies: tuple[DispatchPolicy, ...]
    seeds: int
    amount: Amount
    service: Service = Service.DETERMINISTIC


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyResult:
    """The runs of one policy, one per seed, in order of the seeds."""

    policy: DispatchPolicy
    runs: tuple[RunFigures, ...]

    def estimate(self, metric: Metric) -> Estimate:
        """A figure over the seeds."""
        return estimate(metric(run) for run in self.runs)

    def difference(self, other: "PolicyResult", metric: Metric) -> Estimate:
        """This minus the other, paired by seed: what the arrivals do to both cancels out."""
        pairs = zip(self.runs, other.runs, strict=True)
        return estimate(metric(mine) - metric(theirs) for mine, theirs in pairs)


def run_experiment(experiment: Experiment, report: Report | None = None) -> tuple[PolicyResult, ...]:
    """All runs, in order of the policies; `report` hears of (runs done, runs in all)."""
    runs: dict[DispatchPolicy, list[RunFigures]] = {policy: [] for policy in experiment.policies}
    total = experiment.seeds * len(experiment.policies)
    for seed in range(experiment.seeds):
        generator = np.random.default_rng((seed, LOAD))
        arrivals = draw_arrivals(experiment.setup, experiment.amount, experiment.service, generator)
        for policy, done in runs.items():
            run = simulate(experiment.setup, arrivals, policy, np.random.default_rng((seed, ROUTING)))
            done.append(measure(experiment.setup, run))
            if report is not None:
                report(sum(map(len, runs.values())), total)
    return tuple(PolicyResult(policy=policy, runs=tuple(done)) for policy, done in runs.items())


Relation = Literal["", "<", "=", "?"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedPolicy:
    """One policy in the order, and the one before it: `difference` is this one's mean minus that one's."""

    result: PolicyResult
    relation: Relation
    difference: Estimate | None


def order_by(results: Sequence[PolicyResult], metric: Metric) -> tuple[RankedPolicy, ...]:
    """The results from the least mean to the greatest; equal ones keep their order, none is last."""

    def place(result: PolicyResult) -> tuple[bool, float]:
        mean = result.estimate(metric).mean
        return (True, 0.0) if isnan(mean) else (False, mean)

    ranked = sorted(results, key=place)
    places = []
    for at, result in enumerate(ranked):
        difference = result.difference(ranked[at - 1], metric) if at else None
        places.append(RankedPolicy(result=result, relation=_relation(difference), difference=difference))
    return tuple(places)


def _relation(difference: Estimate | None) -> Relation:
    if difference is None:
        return ""
    if isnan(difference.half_width):
        return "?"
    return "<" if difference.is_above_zero else "="
