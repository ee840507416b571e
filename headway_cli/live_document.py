"""A live run in the form of a simulation's result (docs/reference.md), for the same page."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from headway.planning import Slo
from headway.simulation.build import POLICIES_WITHOUT_FORECAST
from headway.simulation.results import FluidBound
from headway_cli.status_view import SIMULATED

if TYPE_CHECKING:
    from headway_cli.demo_live import DemoResult

Record = Mapping[str, Any]

HOUR_S = 3600.0
LINES = ("mean", "p50", "p95", "p99")


def live_document(result: "DemoResult") -> dict[str, Any]:
    """The document; times are seconds since the load began."""
    plan, tally, history = result.plan, result.tally, result.history
    config, summary = plan.config, tally.summary()
    replicas = {role: history.series(role) for role in history.roles}
    gpu_hours = sum(history.replica_seconds(role) for role in history.roles) / HOUR_S
    bound = _fluid_bound_gpu_hours(result)
    desired = {role: series["desired"] for role, series in replicas.items()}
    return {
        "policy": config.planner.policy,
        "predictor": None if config.planner.policy in POLICIES_WITHOUT_FORECAST else config.planner.predictor,
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


OUTCOMES = ("requests", "completed", "shed", "failed", "attainment", "goodput_rps")
KEPT = (*OUTCOMES, "ttft_s", "itl_s", "tpot_s", "e2e_s")


def _fluid_bound_gpu_hours(result: "DemoResult") -> float:
    """The work of the requests at the best throughput under the SLO."""
    plan, tally = result.plan, result.tally
    slo = Slo(ttft_s=plan.config.slo.ttft_s, itl_s=plan.config.slo.itl_s)
    bound = FluidBound(plan.profile, slo, shared_iterations=False)
    inputs = np.full(tally.completed, plan.input_tokens)
    outputs = np.full(tally.completed, plan.output_tokens)
    bound.add(inputs, outputs, inputs + outputs / 2.0)
    return bound.gpu_seconds / HOUR_S


def _intervals(result: "DemoResult") -> list[dict[str, Any]]:
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
