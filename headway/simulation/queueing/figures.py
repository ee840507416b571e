"""One run in numbers: waits, SLO violations (wait + latency > SLO), and how busy the consumers were.

Utilisation is Σ load × time while requests arrive, over consumers × that time: the end of a run, in which a
backlog is worked off, does not count. All of it is NaN for a run or a pattern without requests.
"""

from dataclasses import dataclass

import numpy as np

from headway.simulation.queueing.arrivals import Floats
from headway.simulation.queueing.loop import Run
from headway.simulation.queueing.model import Setup

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


def measure(setup: Setup, run: Run) -> RunFigures:
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


def _utilisation(setup: Setup, run: Run) -> float:
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
