"""The status document of the planner, see `headway.planning.documents.StatusDocument`."""

from dataclasses import asdict, dataclass, field
from typing import Any

from actors.connectors.drift import DriftAwareConnector
from actors.connectors.protocol import PoolCounts
from actors.planning.context import PlannerContext, PlannerState
from headway.config import PoolSettings
from headway.engine.kinds import engine_kind
from headway.engine.nearest import guess_text
from headway.planning import PoolLimits, Role
from headway.planning.documents import PlannerPhase, StatusDocument
from headway.planning.policies import jsonable, predictors_asked
from headway.planning.record_figures import (
    beyond_reach,
    expected_replicas,
    forecast_error,
    judged_in,
    missed_since,
    needed_replicas,
    reason_codes,
    stood_already,
    unended_since,
)
from headway.planning.records import DecisionRecord
from headway.planning.schedule import ScheduledLimits
from headway.planning.types import KnowsAlternatives

PLANNER_SETTINGS = ("dry_run", "policy", "max_gpu_budget")


@dataclass(slots=True, kw_only=True)
class LoopCounters:
    """The loop's phase and its counts of ticks.

    `undecided_since` is when the loop began to wait for its first decision, or for one after it had to wait
    again; None once it is made. `begun_at` is when it was ready first. `missed_ticks` were skipped, as a tick
    or a restart took longer than an interval. `deciding_s` is the time of all `decided` ticks, `tick_s` that
    of the last; `decisions` count by role and reason.
    """

    state: PlannerPhase = "waiting"
    reason: str = "not started"
    undecided_since: float | None = None
    begun_at: float | None = None
    ticks: int = 0
    late_ticks: int = 0
    missed_ticks: int = 0
    failed_ticks: int = 0
    last_tick_at: float | None = None
    next_tick_at: float | None = None
    tick_s: float | None = None
    decided: int = 0
    deciding_s: float = 0.0
    decisions: dict[str, dict[str, int]] = field(default_factory=dict)

    def took(self, seconds: float) -> None:
        """Count the time of a tick."""
        self.tick_s, self.decided, self.deciding_s = seconds, self.decided + 1, self.deciding_s + seconds

    def count(self, record: DecisionRecord) -> None:
        """Count a decision by the reason of each pool."""
        for role, reason in reason_codes(record).items():
            counts = self.decisions.setdefault(role.value, {})
            counts[reason] = counts.get(reason, 0) + 1


def status_document(context: PlannerContext, state: PlannerState, loop: LoopCounters) -> StatusDocument:
    """The whole document."""
    config, last = context.settings.config, context.log.last
    durations = (record.measured.request_duration_s for record in reversed(context.log.records))
    model, profile = state.policy.model, state.policy.profile
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
            "predictor": ", ".join(predictors_asked(config.planner)) or None,
            "interval_s": state.policy.interval_s,
            "ready_within_s": config.engine.ready_within_s,
        },
        "pools": {name: _pool(Role(name), pool, context, state) for name, pool in config.pools.items()},
        "attainment": {
            "last_interval": None if state.measured is None else state.measured.attainment,
            "ttft_only": state.measured is not None and state.measured.ttft_only,
            "total": state.memory.attainment,
            "missed_since": missed_since(context.log.records, config.slo.attainment),
            "windows": {
                "all": judged_in(context.log.records),
                **{name: judged_in(context.log.records, name) for name in config.slo.classes},
            },
            "unended_since": unended_since(context.log.records),
            "usual_s": next(filter(None, durations), None),
        },
        "measured": state.measured,
        "silent": [
            {"part": part, "since_s": since_s, "requests": work}
            for part, since_s, work in (() if state.measured is None else state.measured.silent)
        ],
        "last_decision": None if last is None else _decision(context, state, last),
        "components": {
            **{name: {"ok": it.ok, "detail": it.detail} for name, it in context.actors.health().items()},
            "Connector": {"ok": not state.connector_fault, "detail": state.connector_fault},
        },
        "connector": _connector(context, state),
        "changes": context.settings.changes,
        "changed": {key: asdict(author) for key, author in context.settings.authors.items()},
        "seen_at": state.seen_at,
        "refined": None if profile is None else profile.meta.get("refined"),
        "guess": "" if profile is None else guess_text(profile.meta),
        "differing": {} if model is None else model.differing,
        "calibration": {
            phase.value: {"smoothed": ratio.smoothed, "last": ratio.last, "count": ratio.count}
            for phase, ratio in ({} if model is None else model.calibration).items()
        },
        "corrections": {} if model is None else model.corrections,
        "alternatives": _alternatives(state),
        "cost": {
            "price_per_gpu_hour": config.price_per_gpu_hour(),
            "currency": config.planner.advice.currency,
        },
    }
    if (share := context.part.figures()) is not None:
        document["fleet"] = share.document()
    if (advice := context.advice.figures(config)) is not None:
        document["advice"] = advice.document()
    return StatusDocument.model_validate(jsonable(document))


def _decision(context: PlannerContext, state: PlannerState, last: DecisionRecord) -> dict[str, Any]:
    """The newest decision, as `LastDecision` has it."""
    shown = ("id", "created_at", "targets", "summary", "reached_at", "notes")
    return {
        **{key: getattr(last, key) for key in shown},
        **{key: last.reasons.get(key, {}) for key in ("missing", "slow")},
        "status": last.connector.status,
        "forecast": None if last.forecast is None else last.forecast.document(),
        "expected_replicas": expected_replicas(last),
        "needed": needed_replicas(last),
        "beyond_reach": beyond_reach(last),
        "already": stood_already(last),
        "limits": last.reasons.get("limits", ()),
        "forecast_error": forecast_error(context.log.records, state.policy.interval_s),
    }


def _connector(context: PlannerContext, state: PlannerState) -> dict[str, Any]:
    """Its answer to the newest decision, and counts that others set."""
    connector, last = context.connector, context.log.last
    return {
        "kind": context.settings.config.connector.kind,
        **({} if last is None else {"status": last.connector.status, "detail": last.connector.detail}),
        **(connector.document() if isinstance(connector, DriftAwareConnector) else {}),
        "failures": state.connector_failures,
    }


def _alternatives(state: PlannerState) -> dict[str, Any] | None:
    memory, in_force = state.memory, state.policy.in_force
    policy = None if in_force is None else in_force.policy
    if not isinstance(policy, KnowsAlternatives) or memory.policy != policy.name or memory.state is None:
        return None
    if state.alternatives[0] is not memory.state:
        state.alternatives = memory.state, policy.alternatives(memory.state_for(policy))
    found = state.alternatives[1]
    return None if found is None else asdict(found)


def _pool(role: Role, pool: PoolSettings, context: PlannerContext, state: PlannerState) -> dict[str, Any]:
    counts = state.counts.get(role)
    load = None if state.measured is None else state.measured.load.get(role)
    in_force = state.policy.in_force
    limits: PoolLimits | None = None if in_force is None else in_force.settings.limits.get(role)
    if in_force is not None and pool.schedule:
        limits = in_force.settings.bounds.at(context.clock()).limits.get(role)
    return {
        **{key: getattr(counts, key, None) for key in ("desired", "starting", "ready", "draining")},
        **{key: getattr(load, key, None) for key in ("running", "waiting", "kv_usage")},
        "asleep": state.asleep.get(role, 0),
        "min_replicas": pool.min_replicas,
        "max_replicas": pool.max_replicas,
        "gpus_per_replica": pool.gpus_per_replica if limits is None else limits.gpus_per_replica,
        "schedule": limits.words() if isinstance(limits, ScheduledLimits) else "",
        **_held(counts, pool, context, state),
    }


def _held(
    counts: PoolCounts | None, pool: PoolSettings, context: PlannerContext, state: PlannerState
) -> dict[str, int]:
    """What waits for the first replica of a pool that is empty; nothing of others."""
    empty = pool.min_replicas == 0 and counts is not None and not counts.ready
    return {"waiting": state.held_now(context.clock())} if empty else {}
