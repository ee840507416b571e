"""The status document of the planner, see `headway.planning.records.StatusDocument`."""

from dataclasses import asdict, dataclass
from typing import Any

from actors.planning.context import PlannerContext, PlannerState
from headway.config import PoolSettings
from headway.engine.kinds import engine_kind
from headway.planning import PoolLimits, Role
from headway.planning.reasons import jsonable
from headway.planning.records import PlannerPhase, StatusDocument

PLANNER_SETTINGS = ("dry_run", "policy", "predictor", "max_gpu_budget")


@dataclass(slots=True, kw_only=True)
class LoopCounters:
    """The loop's phase and its counts of ticks.

    `missed_ticks` were skipped, as a tick or a restart took longer than an interval.
    """

    state: PlannerPhase = "waiting"
    reason: str = "not started"
    ticks: int = 0
    late_ticks: int = 0
    missed_ticks: int = 0
    failed_ticks: int = 0
    last_tick_at: float | None = None
    next_tick_at: float | None = None


def status_document(context: PlannerContext, state: PlannerState, loop: LoopCounters) -> StatusDocument:
    """The whole document."""
    config, last, fault = context.settings.config, context.log.last, state.connector_fault
    model, profile = state.policy.model, state.policy.profile
    decision: dict[str, Any] | None = None
    if last is not None:
        shown = ("id", "created_at", "targets", "summary", "reached_at", "notes")
        decision = {**{key: getattr(last, key) for key in shown}, "status": last.connector.status}
        decision["missing"] = last.reasons.get("missing", {})
    answer = {} if last is None else {"status": last.connector.status, "detail": last.connector.detail}
    document = {
        "model": config.model,
        "engine": {
            "kind": config.engine.kind,
            "simulated": engine_kind(config).simulated,
            "time_scale": config.engine.time_scale,
        },
        "slo": config.slo.model_dump(),
        "planner": {
            **asdict(loop),
            **{key: getattr(config.planner, key) for key in PLANNER_SETTINGS},
            "interval_s": state.policy.interval_s,
        },
        "pools": {name: _pool(Role(name), pool, state) for name, pool in config.pools.items()},
        "attainment": {
            "last_interval": None if state.measured is None else state.measured.attainment,
            "total": state.memory.attainment,
        },
        "measured": state.measured,
        "last_decision": decision,
        "components": {
            **{name: {"ok": it.ok, "detail": it.detail} for name, it in context.actors.health().items()},
            "Connector": {"ok": not fault, "detail": fault},
        },
        "connector": {"kind": config.connector.kind, **answer},
        "changes": context.settings.changes,
        "refined": None if profile is None else profile.meta.get("refined"),
        "calibration": {
            phase: {key: ratio.get(key) for key in ("smoothed", "last", "count")}
            for phase, ratio in state.calibration.items()
        },
        "corrections": {} if model is None else model.corrections,
    }
    return StatusDocument.model_validate(jsonable(document))


def _pool(role: Role, pool: PoolSettings, state: PlannerState) -> dict[str, Any]:
    counts = state.counts.get(role)
    load = None if state.measured is None else state.measured.load.get(role)
    in_force = state.policy.in_force
    limits: PoolLimits | None = None if in_force is None else in_force.settings.limits.get(role)
    return {
        **{key: getattr(counts, key, None) for key in ("desired", "starting", "ready", "draining")},
        **{key: getattr(load, key, None) for key in ("running", "waiting", "kv_usage")},
        "min_replicas": pool.min_replicas,
        "max_replicas": pool.max_replicas,
        "gpus_per_replica": pool.gpus_per_replica if limits is None else limits.gpus_per_replica,
    }
