"""Fitting wished replica counts into each pool's limits and into one GPU budget.

Theory. First each pool is clamped to [min, max]. If the pools then need more GPUs than the budget B,

    scale = B / Σ n_r g_r          n_r replicas wished, g_r GPUs per replica of role r

and in the order of `Role` each pool but the last gets max(min, floor(n_r * scale)), the last
floor((B - GPUs already given) / g), at least its minimum: the published planner's rule for prefill and decode
(Dynamo's planner, `max_gpu_budget`), written for any number of pools. Two clauses keep the
result inside the budget and the wishes, which the bare rule does not when a minimum binds or g_r differ:
no pool takes GPUs that the minimums of the pools after it need, and none gets more than it wished.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import floor

from headway.planning.types import PlanningError, PoolLimits, Role

GPU_BUDGET = "gpu_budget"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Counts that fit, and the limits that changed them, such as `prefill: max_replicas` or `gpu_budget`."""

    targets: Mapping[Role, int]
    limits: tuple[str, ...]


def check_budget(limits: Mapping[Role, PoolLimits], budget: int | None) -> None:
    """PlanningError unless the minimums of all pools fit into the budget."""
    needed = gpus({role: pool.min_replicas for role, pool in limits.items()}, limits)
    if budget is not None and needed > budget:
        raise PlanningError(
            f"planner.max_gpu_budget: {budget} GPUs do not hold the min_replicas of all pools ({needed} GPUs)"
        )


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
    return f"{role}: max_replicas" if count > pool.max_replicas else None


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
