"""A demo's record: replica counts, load and attainment second by second, and the same as a result document.

The document has the form of a simulation's result (docs/reference.md), for the same page.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headway.loadgen import LoadTally
from headway.planning import Slo, policy_kind
from headway.simulation.results import FluidBound
from headway_cli.demo_plan import DemoPlan
from headway_cli.status import SIMULATED

COUNTS = ("desired", "starting", "ready", "draining")

BARS = "▁▂▃▄▅▆▇█"
Record = Mapping[str, Any]
HOUR_S = 3600.0
LINES = ("mean", "p50", "p95", "p99")
OUTCOMES = ("requests", "completed", "shed", "failed", "attainment", "goodput_rps")
KEPT = (*OUTCOMES, "ttft_s", "itl_s", "tpot_s", "e2e_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """One look: seconds since the load began, per role its four counts, what clients saw so far."""

    time_s: float
    pools: Mapping[str, Mapping[str, int]]
    rate_rps: float
    in_flight: int
    attainment: float | None
    failed: int
    decision: Mapping[str, Any] | None = None


class History:
    """All moments."""

    def __init__(self) -> None:
        self.moments: list[Moment] = []

    def add(self, moment: Moment) -> None:
        """Remember a look."""
        self.moments.append(moment)

    @property
    def roles(self) -> tuple[str, ...]:
        """The pools there are."""
        return tuple(self.moments[0].pools) if self.moments else ()

    def every(self, seconds: float) -> Iterator[Moment]:
        """The first moment of each period of so many seconds, and the last of all."""
        due_s = float("-inf")
        for place, moment in enumerate(self.moments):
            if moment.time_s >= due_s or place == len(self.moments) - 1:
                yield moment
                due_s = (moment.time_s // seconds + 1) * seconds

    def sampled(self, most: int) -> list[Moment]:
        """At most so many moments, evenly spread, ending with the last."""
        step = -(-len(self.moments) // most) if self.moments else 1
        return self.moments[::-1][::step][::-1]

    def replica_seconds(self, role: str) -> float:
        """Seconds that the replicas of a role existed, from start to gone, added up."""
        return sum(
            (after.time_s - before.time_s)
            * sum(before.pools[role][name] for name in ("starting", "ready", "draining"))
            for before, after in zip(self.moments, self.moments[1:], strict=False)
        )

    def highest(self, role: str, count: str = "ready") -> int:
        """The most replicas that a role had."""
        return max((moment.pools[role][count] for moment in self.moments), default=0)

    def series(self, role: str) -> dict[str, list[Any]]:
        """The counts of a role over time, a point where one changed; keys as in a simulation's result."""
        changes = list(self._changes(role))
        columns: dict[str, list[Any]] = {"time_s": [max(moment.time_s, 0.0) for moment in changes]}
        return columns | {name: [moment.pools[role][name] for moment in changes] for name in COUNTS}

    def _changes(self, role: str) -> Iterator[Moment]:
        last: Mapping[str, int] | None = None
        for moment in self.moments:
            if moment.pools[role] != last:
                last = moment.pools[role]
                yield moment


def read_pools(status: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    """The counts of a status document; an unknown one is 0."""
    return {
        role: {name: int(pool.get(name) or 0) for name in COUNTS} for role, pool in status["pools"].items()
    }


def sparkline(values: Sequence[float], top: float) -> str:
    """Values as bars; `top` is the full height."""
    scale = (len(BARS) - 1) / top if top > 0 else 0.0
    return "".join(BARS[min(round(max(value, 0.0) * scale), len(BARS) - 1)] for value in values)


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoResult:
    """Everything that a demo leaves: what clients saw, what the fleet did, every decision.

    `began_at` is the Unix time at which the load began.
    """

    plan: DemoPlan
    tally: LoadTally
    history: History
    decisions: list[dict[str, Any]]
    began_at: float


def live_document(result: DemoResult) -> dict[str, Any]:
    """The document; times are seconds since the load began."""
    plan, tally, history = result.plan, result.tally, result.history
    config, summary = plan.config, tally.summary()
    replicas = {role: history.series(role) for role in history.roles}
    gpu_hours = sum(history.replica_seconds(role) for role in history.roles) / HOUR_S
    bound = _fluid_bound_gpu_hours(result)
    desired = {role: series["desired"] for role, series in replicas.items()}
    return {
        "policy": config.planner.policy,
        "predictor": config.planner.predictor if policy_kind(config.planner.policy).forecasts else None,
        "routing": config.routing.profile,
        "seed": plan.seed,
        "profile": f"{config.engine.profile} at {config.engine.time_scale:g} × its speed",
        "trace": {
            "name": "the demo's load, live on Ray with SIMULATED engines",
            "rate_scale": 1.0,
            "isl_mean_tokens": float(plan.input_tokens),
            "osl_mean_tokens": float(plan.output_tokens),
        },
        "slo": {"ttft_s": config.slo.ttft_s, "itl_s": config.slo.itl_s, "attainment": config.slo.attainment},
        **{key: summary[key] for key in KEPT},
        "attainable": 1.0,
        "gpu_hours": gpu_hours,
        "fluid_bound_gpu_hours": bound,
        "fluid_bound_ratio": gpu_hours / bound if bound else None,
        "scale_events": sum(_changes(series) for series in desired.values()),
        "direction_reversals": sum(_reversals(series) for series in desired.values()),
        "simulated_s": history.moments[-1].time_s if history.moments else 0.0,
        "gpus_per_replica": dict.fromkeys(replicas, 1),
        "replicas": replicas,
        "notes": [SIMULATED, "live on Ray: latencies are what clients measured", *tally.notes()],
        "intervals": _intervals(result),
    }


def _fluid_bound_gpu_hours(result: DemoResult) -> float:
    """The work of the requests at the best throughput under the SLO."""
    plan, tally = result.plan, result.tally
    slo = Slo(ttft_s=plan.config.slo.ttft_s, itl_s=plan.config.slo.itl_s)
    bound = FluidBound(plan.profile, slo, shared_iterations=False)
    inputs = np.full(tally.completed, plan.input_tokens)
    outputs = np.full(tally.completed, plan.output_tokens)
    bound.add(inputs, outputs, inputs + outputs / 2.0)
    return bound.gpu_seconds / HOUR_S


def _intervals(result: DemoResult) -> list[dict[str, Any]]:
    """The decision log, its times counted from the beginning of the load.

    Intervals before that, and those that were not measured, are left out.
    """
    known = (record for record in result.decisions if record["measured"]["requests"] is not None)
    rows = (_interval(record, result.began_at) for record in known)
    return [row for row in rows if row["start_s"] >= 0.0]


def _interval(record: Record, offset_s: float) -> dict[str, Any]:
    measured = record["measured"]
    return {
        "start_s": record["interval"]["start_s"] - offset_s,
        "end_s": record["interval"]["end_s"] - offset_s,
        "requests": round(measured["requests"]),
        "ttft_s": _latency(measured["ttft_s"]),
        "itl_s": _latency(measured["itl_s"]),
        "attainment": measured["attainment"],
        "forecast": record["forecast"],
        "targets": record["targets"],
        "reasons": record["reasons"],
    }


def _latency(values: Record | None) -> dict[str, float | None]:
    return {name: (values or {}).get(name) for name in LINES}


def _changes(desired: Sequence[float]) -> int:
    return int(np.count_nonzero(np.diff(desired)))


def _reversals(desired: Sequence[float]) -> int:
    """Changes against the direction of the one before."""
    steps = np.diff(desired)
    signs = np.sign(steps[steps != 0])
    return int(np.count_nonzero(np.diff(signs)))
