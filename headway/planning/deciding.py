"""Calls into a policy, and what its counts must keep: limits of pools, the GPU budget, and steps.

Fitting wished replica counts into each pool's limits and into one GPU budget.

Theory. First each pool is clamped to [min, max]. If the pools then need more GPUs than the budget B,

    scale = B / Σ n_r g_r          n_r replicas wished, g_r GPUs per replica of role r

and in the order of `Role` each pool but the last gets max(min, floor(n_r * scale)), the last
floor((B - GPUs already given) / g), at least its minimum: the published planner's rule for prefill and decode
(Dynamo's planner, `max_gpu_budget`), written for any number of pools. Two clauses keep the
result inside the budget and the wishes, which the bare rule does not when a minimum binds or g_r differ:
no pool takes GPUs that the minimums of the pools after it need, and none gets more than it wished.

Calls into a policy: what it raises, and a decision that cannot be carried out, become one line.

Policies come from other packages too. The simulator, the live planner and its rehearsals call them through
here, so that all of them refuse the same with the same words: policy, fault, and the line of its code that an
exception came from.

Steps. With `planner.max_step` k a pool of d desired replicas goes to

    max(d − k, min(d + k, target))

whatever the policy; the next decision goes on from there. Limits and GPU budget come first: where falling
pools would leave too little to rising ones, those rise by less, and where the desired counts themselves do
not fit, as after a budget was lowered, pools fall at once.

Schedules. Bounds that a schedule changes are those of the decision's time (`headway.planning.schedule`). A
policy that is `PlansWithin` plans with them; the counts of others, which know the pools' own, are fitted.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import floor
from numbers import Integral
from types import MappingProxyType
from typing import Any, ParamSpec, TypeVar

from headway.extensions import fault_line
from headway.planning.schedule import Schedule, ScheduledLimits
from headway.planning.types import (
    Decision,
    KnowsStarts,
    Observation,
    PlanningError,
    PlansWithin,
    Policy,
    PoolLimits,
    PoolState,
    Role,
)

GPU_BUDGET = "gpu_budget"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Counts that fit, and the limits that changed them, such as `prefill: max_replicas` or `gpu_budget`."""

    targets: Mapping[Role, int]
    limits: tuple[str, ...]


def check_budget(limits: Mapping[Role, PoolLimits], budget: int | None, where: str = "") -> None:
    """PlanningError unless the minimums of all pools fit into the budget; `where` they are not the own."""
    needed = gpus({role: pool.min_replicas for role, pool in limits.items()}, limits)
    if budget is not None and needed > budget:
        raise PlanningError(
            f"planner.max_gpu_budget: {budget} GPUs do not hold the min_replicas of all pools{where} "
            f"({needed} GPUs)"
        )


def one_each(limits: Mapping[Role, PoolLimits]) -> Mapping[Role, int]:
    """The fewest replicas that serve."""
    return {role: max(1, pool.min_replicas) for role, pool in limits.items()}


def gpus(counts: Mapping[Role, int], limits: Mapping[Role, PoolLimits]) -> int:
    """GPUs that replica counts occupy."""
    return sum(count * limits[role].gpus_per_replica for role, count in counts.items())


def fit(wished: Mapping[Role, int], limits: Mapping[Role, PoolLimits], budget: int | None) -> Fit:
    """Clamp to each pool's limits, then share the budget in proportion. The minimums must fit."""
    roles = [role for role in Role if role in limits]
    clamped = {role: limits[role].clamped(wished[role]) for role in roles}
    hit = [note for role in roles if (note := _limit_hit(role, wished[role], limits[role]))]
    if budget is None or gpus(clamped, limits) <= budget:
        return Fit(targets=clamped, limits=tuple(hit))
    return Fit(targets=_share(clamped, limits, budget), limits=(*hit, GPU_BUDGET))


def _limit_hit(role: Role, count: int, pool: PoolLimits) -> str | None:
    if count < pool.min_replicas:
        return f"{role}: min_replicas"
    return f"{role}: {pool.most_by}" if count > pool.max_replicas else None


def _share(wished: Mapping[Role, int], limits: Mapping[Role, PoolLimits], budget: int) -> dict[Role, int]:
    total = gpus(wished, limits)
    reserved = gpus({role: limits[role].min_replicas for role in wished}, limits)
    remaining, shared = budget, dict[Role, int]()
    for position, (role, count) in enumerate(wished.items(), start=1):
        pool = limits[role]
        reserved -= pool.min_replicas * pool.gpus_per_replica
        affordable = (remaining - reserved) // pool.gpus_per_replica
        portion = affordable if position == len(wished) else floor(count * budget / total)
        shared[role] = max(pool.min_replicas, min(portion, affordable, count))
        remaining -= shared[role] * pool.gpus_per_replica
    return shared


P = ParamSpec("P")
T = TypeVar("T")


class PolicyError(PlanningError):
    """A policy raised an exception, or decided what cannot be carried out."""

    @classmethod
    def of(cls, policy: str, fault: str) -> "PolicyError":
        """The line about the policy of that name."""
        return cls(f"planner.policy: {policy}: {fault}")


def call(policy: str, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What a function of that policy returns; PolicyError for whatever it raises but PlanningError."""
    try:
        return function(*args, **kwargs)
    except PlanningError:
        raise
    except Exception as error:
        raise PolicyError.of(policy, fault_line(error)) from error


NOT_KNOWN: Mapping[Role, float] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The bounds of each decision: pools' limits, GPUs of all of them, replicas by which one changes.

    `limits` are the pools' own where there is a schedule.
    """

    limits: Mapping[Role, PoolLimits]
    max_gpu_budget: int | None = None
    max_step: int | None = None
    schedule: Schedule | None = None

    def at(self, now_s: float, starts_s: Mapping[Role, float] = NOT_KNOWN) -> "Bounds":
        """Those in force; `starts_s` is how long replicas take to start, where that is known."""
        if self.schedule is None:
            return self
        return replace(self, limits=self.schedule.at(now_s, starts_s), schedule=None)


def decide(
    policy: Policy,
    observation: Observation,
    state: Any,  # noqa: ANN401 - each policy's state is its own
    bounds: Bounds,
) -> Decision:
    """The policy's decision within the bounds in force, cut to steps, which can be carried out.

    PlanningError or PolicyError otherwise.
    """
    if bounds.schedule is None:
        return in_steps(_planned(policy, observation, state, bounds), observation.pools, bounds)
    starts_s = call(policy.name, policy.starts_s, state) if isinstance(policy, KnowsStarts) else NOT_KNOWN
    in_force = bounds.at(observation.now_s, starts_s)
    if isinstance(policy, PlansWithin):
        decision = _planned(call(policy.name, policy.within, in_force.limits), observation, state, in_force)
    else:
        decision = _planned(policy, observation, state, bounds)
    return in_steps(by_schedule(decision, in_force), observation.pools, in_force)


def _planned(policy: Policy, observation: Observation, state: Any, bounds: Bounds) -> Decision:  # noqa: ANN401
    decision = call(policy.name, policy.plan, observation, state)
    check_decision(policy.name, decision, bounds.limits, bounds.max_gpu_budget)
    return decision


def by_schedule(decision: Decision, bounds: Bounds) -> Decision:
    """The same fitted into bounds in force; its reasons say which of them a schedule set, and it is at."""
    fitted = fit(decision.targets, bounds.limits, bounds.max_gpu_budget)
    said = {
        str(role): words
        for role, limits in bounds.limits.items()
        if isinstance(limits, ScheduledLimits) and (words := limits.words(int(fitted.targets[role])))
    }
    summary = str(decision.reasons.get("summary") or "").removesuffix(".")
    lines = "; ".join(f"{role} {words}" for role, words in said.items())
    reasons = {
        **decision.reasons,
        "targets": {str(role): int(count) for role, count in fitted.targets.items()},
        "limits": [*decision.reasons.get("limits", ()), *fitted.limits],
        "schedule": said,
        **({"summary": f"{summary}; {lines}.".removeprefix("; ")} if lines else {}),
    }
    return replace(decision, targets=fitted.targets, reasons=reasons)


def fewer_by_schedule(
    limits: Mapping[Role, PoolLimits], own: Mapping[Role, PoolLimits], most_gpus: int
) -> Mapping[Role, PoolLimits]:
    """Limits whose minimums take at most so many GPUs, as far as a schedule has them above the pools' own."""
    least = {role: each.min_replicas for role, each in limits.items()}
    while gpus(least, limits) > most_gpus:
        role = max(least, key=lambda role: least[role] - own[role].min_replicas)
        if least[role] <= own[role].min_replicas:
            break
        least[role] -= 1
    return {role: _with_least(each, least[role]) for role, each in limits.items()}


def _with_least(limits: PoolLimits, least: int) -> PoolLimits:
    if least == limits.min_replicas or not isinstance(limits, ScheduledLimits):
        return replace(limits, min_replicas=least)
    asked = f"{limits.min_from}, which asks for {limits.min_replicas}"
    return replace(limits, min_replicas=least, min_from=asked)


def in_steps(decision: Decision, pools: Mapping[Role, PoolState], bounds: Bounds) -> Decision:
    """The same with no pool changed by more than a step, see the module; its reasons say where that cut."""
    if bounds.max_step is None:
        return decision
    wished, desired = decision.targets, {role: pools[role].desired for role in bounds.limits}
    targets = _stepped(wished, desired, bounds, bounds.max_step)
    cut = [role for role in targets if targets[role] != wished[role]]
    if not cut:
        return decision
    steps = ", ".join(f"{role} {desired[role]} → {targets[role]}" for role in cut)
    summary = str(decision.reasons.get("summary") or "").removesuffix(".")
    reasons = {
        **decision.reasons,
        "targets": {str(role): count for role, count in targets.items()},
        "wished": {str(role): int(count) for role, count in wished.items()},
        "limits": [*decision.reasons.get("limits", ()), *(f"{role}: max_step" for role in cut)],
        "summary": f"{summary}; in steps of {bounds.max_step}: {steps}.".removeprefix("; "),
    }
    return replace(decision, targets=targets, reasons=reasons)


def _stepped(
    wished: Mapping[Role, int], desired: Mapping[Role, int], bounds: Bounds, step: int
) -> dict[Role, int]:
    limits, budget = bounds.limits, bounds.max_gpu_budget
    targets = {
        role: limits[role].clamped(max(now - step, min(now + step, int(wished[role]))))
        for role, now in desired.items()
    }
    for role, now in desired.items():
        over = 0 if budget is None else gpus(targets, limits) - budget
        if over > 0 and targets[role] > now:
            less = -(-over // limits[role].gpus_per_replica)
            targets[role] = max(now, targets[role] - less, limits[role].min_replicas)
    if budget is not None and gpus(targets, limits) > budget:
        return {role: min(count, int(wished[role])) for role, count in targets.items()}
    return targets


def check_decision(
    policy: str,
    decision: object,
    limits: Mapping[Role, PoolLimits],
    budget: int | None,
) -> None:
    """PolicyError unless it is a Decision: a whole number for each pool, in limits and budget."""
    if not isinstance(decision, Decision):
        raise PolicyError.of(policy, f"plan returned {_kind(decision)}, not a Decision")
    for name in ("targets", "reasons"):
        if not isinstance(value := getattr(decision, name), Mapping):
            raise PolicyError.of(policy, f"{name} of the decision are {_kind(value)}, not a mapping")
    targets = decision.targets
    for role in targets:
        if not isinstance(role, Role):
            raise PolicyError.of(policy, f"target of {role!r}, a {_kind(role)}; keys are members of Role")
        if role not in limits:
            raise PolicyError.of(policy, f"target of {role}, which is no pool here ({', '.join(limits)})")
    for role, pool in limits.items():
        if role not in targets:
            raise PolicyError.of(policy, f"no target for {role}")
        _check_count(policy, role, targets[role], pool)
    needed = gpus(targets, limits)
    if budget is not None and needed > budget:
        raise PolicyError.of(policy, f"needs {needed} GPUs, planner.max_gpu_budget is {budget}")


def _check_count(policy: str, role: Role, count: object, pool: PoolLimits) -> None:
    # Integral: numpy's whole numbers are as good; a bool is one too, but never a count.
    if isinstance(count, bool) or not isinstance(count, Integral):
        said = f"{count}" if isinstance(count, float | bool) else f"of type {_kind(count)}"
        raise PolicyError.of(policy, f"target of {role} is {said}, not a whole number")
    if int(count) > pool.max_replicas:
        raise PolicyError.of(policy, f"{role} {count} is above pools.{role}.max_replicas {pool.max_replicas}")
    if int(count) < pool.min_replicas:
        raise PolicyError.of(policy, f"{role} {count} is below pools.{role}.min_replicas {pool.min_replicas}")


def _kind(value: object) -> str:
    return "None" if value is None else type(value).__name__
