r"""The cheapest whole numbers of replicas of several GPU types: a mixed-integer programme, solved exactly.

For pools p, types t and the shares s of a pool's requests that the same types can keep

    x_pt ∈ {0, 1, 2, …}     replicas                    minimise  Σ c_pt (x_pt + w left_pt)
    y_pst ∈ [0, 1]          the part of share s on t    Σ_t y_pst = 1              all of each share is served
    left_pt ≥ 0             running ones that are left  Σ_s n_pst y_pst ≤ x_pt     within the capacity of t
    used_pt ∈ {0, 1}        whether the pool has t      left_pt ≥ running_pt − x_pt

with n_pst the replicas that a share takes alone on t, c_pt = price × g_pt (the GPUs of one replica) and w the
switching share. Limits:

    Σ_p g_pt x_pt ≤ stock of t      Σ_pt g_pt x_pt ≤ budget      least ≤ Σ_t x_pt ≤ most of the pool
    Σ requests_s y_pst ≤ may miss, over the types t that are late with s
    x_pt ≤ enough · used_pt         Σ_t used_pt ≤ types allowed

Where all types can serve everything this is Σ_t x_pt / n_pt ≥ 1: capacities add up in parts of the replicas
needed alone.
"""

from collections.abc import Mapping
from math import ceil

from headway.planning.errors import PlanningError
from headway.planning.gpu_types.programme import TOLERANCE, Column, Key, Programme, Row
from headway.planning.gpu_types.values import Mix, MixRules, PoolNeed, Supply

Needs = Mapping[str, PoolNeed]
Supplies = Mapping[str, Supply]


class InfeasibleError(PlanningError):
    """No mix serves the load within the limits: the line names those that are in the way."""


def cheapest(needs: Needs, supply: Supplies, rules: MixRules | None = None) -> Mix:
    """The cheapest mix. InfeasibleError where there is none."""
    return _mix(needs, supply, _solved(needs, supply, rules, whole=True))


def rounded_up(needs: Needs, supply: Supplies, rules: MixRules | None = None) -> Mix:
    """The cheapest mix of fractions, rounded up; it may exceed limits. For comparison with `cheapest`."""
    return _mix(needs, supply, _solved(needs, supply, rules, whole=False))


def _solved(needs: Needs, supply: Supplies, rules: MixRules | None, *, whole: bool) -> Mapping[Key, float]:
    programme = _programme(needs, supply, rules or MixRules())
    solution = programme.solve(whole=whole)
    if solution is None:
        raise InfeasibleError(programme.in_the_way() or "no mix of GPU types serves the load")
    return solution


def _programme(needs: Needs, supply: Supplies, rules: MixRules) -> Programme:
    programme = Programme()
    for pool, need in needs.items():
        _add_replicas(programme, pool, need, supply, rules)
        _add_shares(programme, pool, need)
        _add_limits(programme, pool, need, rules.max_types)
    for gpu_type, offer in supply.items():
        if offer.max_gpus is not None and (gpus := _gpus(needs, gpu_type)):
            words = f"gpu_types.{gpu_type}.max_gpus: {offer.max_gpus} are not enough, {{most}} would be"
            programme.rows.append(Row(factors=gpus, high=offer.max_gpus, words=words))
    if rules.max_gpus is not None:
        everything = {key: gpus for gpu_type in supply for key, gpus in _gpus(needs, gpu_type).items()}
        words = f"planner.max_gpu_budget: {rules.max_gpus} are not enough, {{most}} would be"
        programme.rows.append(Row(factors=everything, high=rules.max_gpus, words=words))
    return programme


def _gpus(needs: Needs, gpu_type: str) -> dict[Key, float]:
    """The GPUs of that type by column."""
    return {
        ("x", pool, gpu_type): float(need.gpus_per_replica[gpu_type])
        for pool, need in needs.items()
        if gpu_type in need.gpus_per_replica
    }


def _add_replicas(programme: Programme, pool: str, need: PoolNeed, supply: Supplies, rules: MixRules) -> None:
    """What replicas of each type cost, and what it costs to leave those that run."""
    for gpu_type, gpus in need.gpus_per_replica.items():
        cost = supply[gpu_type].price_per_gpu_hour * gpus
        replicas: Key = ("x", pool, gpu_type)
        programme.columns[replicas] = Column(cost, whole=True)
        running = rules.running.get(pool, {}).get(gpu_type, 0)
        if running and rules.switching:
            left: Key = ("left", pool, gpu_type)
            programme.columns[left] = Column(rules.switching * cost)
            programme.rows.append(Row(factors={left: 1.0, replicas: 1.0}, low=running))


def _add_shares(programme: Programme, pool: str, need: PoolNeed) -> None:
    """All of each share is served, within the capacity of each type, and few of it late."""
    capacity = {name: dict[Key, float]() for name in need.gpus_per_replica}
    late, requests = dict[Key, float](), max(1, sum(share.requests for share in need.shares))
    for number, share in enumerate(need.shares):
        if not share.replicas:
            raise InfeasibleError(f"slo: no GPU type can serve {share.requests} requests of {pool}")
        parts: dict[str, Key] = {name: ("y", pool, name, str(number)) for name in share.replicas}
        for name, part in parts.items():
            programme.columns[part] = Column(most=1.0)
            capacity[name][part] = share.replicas[name]
            if name in share.late:
                late[part] = share.requests / requests
        programme.rows.append(Row(factors=dict.fromkeys(parts.values(), 1.0), low=1.0, high=1.0))
    for name, taken in capacity.items():
        programme.rows.append(Row(factors={**taken, ("x", pool, name): -1.0}, high=0.0))
    if late:
        words = f"slo: {need.may_miss:.0f} requests of {pool} may be late even when idle, {{most}} would"
        limit = Row(factors=late, high=need.may_miss / requests, words=words, unit=requests)
        programme.rows.append(limit)


def _add_limits(programme: Programme, pool: str, need: PoolNeed, max_types: int | None) -> None:
    types = tuple(need.gpus_per_replica)
    replicas: dict[Key, float] = {("x", pool, name): 1.0 for name in types}
    programme.rows.append(Row(factors=replicas, low=need.min_replicas))
    if need.max_replicas is not None:
        words = f"pools.{pool}.max_replicas: {need.max_replicas} are not enough, {{most}} would be"
        programme.rows.append(Row(factors=replicas, high=need.max_replicas, words=words))
    if max_types is None or max_types >= len(types):
        return
    for name in types:
        enough = ceil(sum(share.replicas.get(name, 0.0) for share in need.shares)) + need.min_replicas
        programme.columns["used", pool, name] = Column(most=1.0, whole=True)
        row = Row(factors={("x", pool, name): 1.0, ("used", pool, name): -float(enough)}, high=0.0)
        programme.rows.append(row)
    used: dict[Key, float] = {("used", pool, name): 1.0 for name in types}
    words = f"{pool}: at most {max_types} GPU types are not enough, {{most}} would be"
    programme.rows.append(Row(factors=used, high=max_types, words=words))


def _mix(needs: Needs, supply: Supplies, solution: Mapping[Key, float]) -> Mix:
    """The solution by pool; replicas that are no whole number are rounded up."""
    replicas = {
        pool: {
            name: count
            for name in need.gpus_per_replica
            if (count := ceil(solution["x", pool, name] - TOLERANCE)) > 0
        }
        for pool, need in needs.items()
    }
    cost_per_hour = sum(
        count * needs[pool].gpus_per_replica[name] * supply[name].price_per_gpu_hour
        for pool, counts in replicas.items()
        for name, count in counts.items()
    )
    return Mix(replicas=replicas, cost_per_hour=cost_per_hour)
