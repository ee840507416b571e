"""The status document: what `GET /v1/control/status` answers. Plain JSON, null for unknown."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from actors.planning.parts import PartHealth
from actors.planning.records import Record
from actors.planning.world import World
from headway.config import HeadwayConfig
from headway.planning import decision_interval_s
from headway.planning.reasons import jsonable

State = Literal["waiting", "running", "holding", "stopped"]


@dataclass(slots=True, kw_only=True)
class Progressing:
    """Where the loop stands. `missed_ticks`: skipped, as a tick or a restart took longer than an interval."""

    state: State = "waiting"
    reason: str = "not started"
    ticks: int = 0
    late_ticks: int = 0
    missed_ticks: int = 0
    failed_ticks: int = 0
    last_tick_at: float | None = None
    next_tick_at: float | None = None


def status_document(world: World, loop: Progressing, components: Mapping[str, PartHealth]) -> dict[str, Any]:
    """The whole document."""
    config = world.settings.config
    document: dict[str, Any] = jsonable(
        {
            "model": config.model,
            "engine": {
                "kind": config.engine.kind,
                "simulated": config.engine.kind == "simulated",
                "time_scale": config.engine.time_scale,
            },
            "slo": config.slo.model_dump(),
            "planner": _planner(config, world, loop),
            "pools": {name: _pool(name, world) for name in config.pools},
            "attainment": {
                "last_interval": None if world.measured is None else world.measured.attainment,
                "total": world.memory.attainment,
            },
            "measured": world.measured,
            "last_decision": _last_decision(world.log.last),
            "components": {**components, "Connector": {"ok": not world.fault, "detail": world.fault}},
            "connector": {"kind": world.kind, **_last_action(world.log.last)},
            "changes": world.settings.changes,
            "refined": None if world.profile is None else world.profile.meta.get("refined"),
            "calibration": {
                phase: {key: ratio.get(key) for key in ("smoothed", "last", "count")}
                for phase, ratio in world.calibration.items()
            },
        }
    )
    return document


def _planner(config: HeadwayConfig, world: World, loop: Progressing) -> dict[str, Any]:
    return {
        "state": loop.state,
        "reason": loop.reason,
        "dry_run": config.planner.dry_run,
        "policy": config.planner.policy,
        "predictor": config.planner.predictor,
        "interval_s": interval_s(config, world),
        "max_gpu_budget": config.planner.max_gpu_budget,
        "ticks": loop.ticks,
        "late_ticks": loop.late_ticks,
        "missed_ticks": loop.missed_ticks,
        "failed_ticks": loop.failed_ticks,
        "last_tick_at": loop.last_tick_at,
        "next_tick_at": loop.next_tick_at,
    }


def interval_s(config: HeadwayConfig, world: World) -> float:
    """Seconds between two ticks: the policy's own interval."""
    if world.in_force is not None:
        return world.in_force.policy.interval_s
    return decision_interval_s(config.planner)


def _pool(name: str, world: World) -> dict[str, Any]:
    pool = world.settings.config.pools[name]  # type: ignore[index] # a name of its own keys
    counts = next((counts for role, counts in world.counts.items() if role == name), None)
    load = {} if world.measured is None else world.measured.load
    carried = next((item for role, item in load.items() if role == name), None)
    limits = {} if world.in_force is None else world.in_force.settings.limits
    profiled = next((limit.gpus_per_replica for role, limit in limits.items() if role == name), None)
    known = {} if counts is None else jsonable(counts)
    return {
        **{key: known.get(key) for key in ("desired", "starting", "ready", "draining")},
        "running": None if carried is None else carried.running,
        "waiting": None if carried is None else carried.waiting,
        "kv_usage": None if carried is None else carried.kv_usage,
        "min_replicas": pool.min_replicas,
        "max_replicas": pool.max_replicas,
        "gpus_per_replica": profiled or pool.gpus_per_replica,
    }


def _last_decision(record: Record | None) -> dict[str, Any] | None:
    if record is None:
        return None
    shown = {key: record[key] for key in ("id", "created_at", "targets", "summary", "reached_at", "notes")}
    return {**shown, "status": record["connector"]["status"]}


def _last_action(record: Record | None) -> dict[str, Any]:
    return {} if record is None else {key: record["connector"].get(key) for key in ("status", "detail")}
