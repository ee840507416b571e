"""Many runs: each policy on the same arrivals of each seed (common random numbers).

Seed k gives two generators, of arrivals and of random-push, so that a policy that draws leaves the load of
the others alone. The same experiment gives the same figures, and a policy's do not depend on the others.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from headway.simulation.queueing.arrivals import Amount, Arrivals, Service, draw_arrivals
from headway.simulation.queueing.estimate import Estimate, estimate
from headway.simulation.queueing.figures import RunFigures, measure
from headway.simulation.queueing.loop import simulate
from headway.simulation.queueing.model import Setup
from headway.simulation.queueing.policies import Policy

Metric = Callable[[RunFigures], float]
Report = Callable[[float, float], None]

LOAD, ROUTING = 0, 1
"""Streams of random numbers within a seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """What is run: every policy with the seeds 0 to `seeds` − 1."""

    setup: Setup
    policies: tuple[Policy, ...]
    seeds: int
    amount: Amount
    service: Service = Service.DETERMINISTIC


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyResult:
    """The runs of one policy, one per seed, in order of the seeds."""

    policy: Policy
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
    runs: dict[Policy, list[RunFigures]] = {policy: [] for policy in experiment.policies}
    total = experiment.seeds * len(experiment.policies)
    for seed in range(experiment.seeds):
        arrivals = _load(experiment, seed)
        for policy, done in runs.items():
            run = simulate(experiment.setup, arrivals, policy, np.random.default_rng((seed, ROUTING)))
            done.append(measure(experiment.setup, run))
            if report is not None:
                report(sum(map(len, runs.values())), total)
    return tuple(PolicyResult(policy=policy, runs=tuple(done)) for policy, done in runs.items())


def _load(experiment: Experiment, seed: int) -> Arrivals:
    generator = np.random.default_rng((seed, LOAD))
    return draw_arrivals(experiment.setup, experiment.amount, experiment.service, generator)
