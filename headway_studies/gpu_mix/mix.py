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

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import ceil, inf, isfinite

import numpy as np

from headway.config import HeadwayConfig
from headway.planning.types import PlanningError
from headway_studies.gpu_mix.needs import PoolNeed
from interp.arrays import FloatArray

Counts = Mapping[str, Mapping[str, int]]
"""Replicas by pool and GPU type; what is missing is 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Supply:
    """A GPU type as it can be had: its price, and how many GPUs there are (None: any number)."""

    price_per_gpu_hour: float
    max_gpus: int | None = None

    def __post_init__(self) -> None:
        if not (isfinite(self.price_per_gpu_hour) and self.price_per_gpu_hour > 0):
            raise PlanningError(f"gpu_types: a price of {self.price_per_gpu_hour} is not positive")


@dataclass(frozen=True, slots=True, kw_only=True)
class MixRules:
    """Further bounds of the choice.

    `max_types` in one pool. `max_gpus` of all types and pools together. `running` is what runs now, and
    `switching` the share of its price per hour that leaving a running replica costs, in [0, 1): what runs
    counts as that much cheaper, so that it is exchanged only for what saves more.
    """

    max_types: int | None = None
    max_gpus: int | None = None
    running: Counts = field(default_factory=dict)
    switching: float = 0.0

    def __post_init__(self) -> None:
        if self.max_types is not None and self.max_types < 1:
            raise PlanningError(f"max-types: {self.max_types} is below 1")
        if not 0 <= self.switching < 1:
            raise PlanningError(f"switching: {self.switching} is not a share in [0, 1)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """Replicas by pool and type (types without any are missing), and what they cost."""

    replicas: Counts
    cost_per_hour: float

    def gpus(self, needs: Mapping[str, PoolNeed]) -> Mapping[str, int]:
        """GPUs by type."""
        total: Counter[str] = Counter()
        for pool, counts in self.replicas.items():
            for gpu_type, count in counts.items():
                total[gpu_type] += count * needs[pool].gpus_per_replica[gpu_type]
        return dict(total)


Key = tuple[str, ...]

TOLERANCE = 1e-6
"""Within which HiGHS keeps constraints and whole numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraint:
    """low ≤ Σ factor · variable ≤ high.

    A limit has words, with {most} for what would be enough: `high` and the excess, times `unit`.
    """

    factors: Mapping[Key, float]
    low: float = -inf
    high: float = inf
    words: str = ""
    unit: float = 1.0


@dataclass(frozen=True, slots=True)
class Variable:
    """A quantity to choose, from 0 to `most`, and what one of it costs."""

    cost: float = 0.0
    most: float = inf
    whole: bool = False


@dataclass(slots=True)
class Programme:
    """A small mixed-integer linear programme by names, with an answer to "which limits are in the way?".

        minimise Σ cost · variable        low ≤ Σ factor · variable ≤ high        0 ≤ variable ≤ most

    Variables and constraints are to be added in a fixed order. HiGHS solves it by branch and bound
    (scipy.optimize.milp) with gap 0, so that no better solution exists. Which of several best solutions it
    returns is not specified, but the same programme gives the same one.
    """

    variables: dict[Key, Variable] = field(default_factory=dict)
    constraints: list[Constraint] = field(default_factory=list)

    def solve(self, *, whole: bool = True) -> Mapping[Key, float] | None:
        """Values by variable, or None where nothing keeps all constraints. `whole` False: fractions."""
        from scipy.optimize import Bounds, LinearConstraint, milp

        if not self.variables:
            return {}
        variables = self.variables.values()
        found = milp(
            np.array([variable.cost for variable in variables]),
            integrality=np.array([int(whole and variable.whole) for variable in variables]),
            bounds=Bounds(0.0, np.array([variable.most for variable in variables])),
            constraints=LinearConstraint(
                self._matrix(), [row.low for row in self.constraints], [row.high for row in self.constraints]
            ),
            options={"mip_rel_gap": 0.0},
        )
        return None if found.x is None else dict(zip(self.variables, found.x.tolist(), strict=True))

    def _matrix(self) -> FloatArray:
        places = {key: place for place, key in enumerate(self.variables)}
        matrix = np.zeros((len(self.constraints), len(places)))
        for number, row in enumerate(self.constraints):
            matrix[number, [places[key] for key in row.factors]] = list(row.factors.values())
        return matrix

    def in_the_way(self) -> str:
        """The limits that the least excess over limits exceeds, each in its words; "" if they do not help."""
        # Only exceeding a limit costs here, so the cheapest solution exceeds the limits that are in the way.
        soft = Programme({key: replace(variable, cost=0.0) for key, variable in self.variables.items()})
        for number, row in enumerate(self.constraints):
            soft.constraints.append(soft._softened(row, ("excess", str(number))) if row.words else row)
        solution = soft.solve() or {}
        excess = [solution.get(("excess", str(number)), 0.0) for number in range(len(self.constraints))]
        over = [(row, more) for row, more in zip(self.constraints, excess, strict=True) if more > TOLERANCE]
        return "; ".join(
            row.words.format(most=ceil((row.high + more) * row.unit - TOLERANCE)) for row, more in over
        )

    def _softened(self, row: Constraint, excess: Key) -> Constraint:
        """The constraint with a variable for what exceeds its upper limit, which costs its unit."""
        self.variables[excess] = Variable(cost=row.unit)
        return replace(row, factors={**row.factors, excess: -1.0})


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
            programme.constraints.append(Constraint(factors=gpus, high=offer.max_gpus, words=words))
    if rules.max_gpus is not None:
        everything = {key: gpus for gpu_type in supply for key, gpus in _gpus(needs, gpu_type).items()}
        words = f"planner.max_gpu_budget: {rules.max_gpus} are not enough, {{most}} would be"
        programme.constraints.append(Constraint(factors=everything, high=rules.max_gpus, words=words))
    return programme


def _gpus(needs: Needs, gpu_type: str) -> dict[Key, float]:
    """The GPUs of that type by variable."""
    return {
        ("x", pool, gpu_type): float(need.gpus_per_replica[gpu_type])
        for pool, need in needs.items()
        if gpu_type in need.gpus_per_replica
    }


def _add_replicas(programme: Programme, pool: str, need: PoolNeed, supply: Supplies, rules: MixRules) -> None:
    """Replicas of each type at their cost, and the cost of leaving those that run."""
    for gpu_type, gpus in need.gpus_per_replica.items():
        cost = supply[gpu_type].price_per_gpu_hour * gpus
        replicas: Key = ("x", pool, gpu_type)
        programme.variables[replicas] = Variable(cost, whole=True)
        running = rules.running.get(pool, {}).get(gpu_type, 0)
        if running and rules.switching:
            left: Key = ("left", pool, gpu_type)
            programme.variables[left] = Variable(rules.switching * cost)
            programme.constraints.append(Constraint(factors={left: 1.0, replicas: 1.0}, low=running))


def _add_shares(programme: Programme, pool: str, need: PoolNeed) -> None:
    """All of each share is served, within the capacity of each type, and few of it late."""
    capacity = {name: dict[Key, float]() for name in need.gpus_per_replica}
    late, requests = dict[Key, float](), max(1, sum(share.requests for share in need.shares))
    for number, share in enumerate(need.shares):
        if not share.replicas:
            raise InfeasibleError(f"slo: no GPU type can serve {share.requests} requests of {pool}")
        parts: dict[str, Key] = {name: ("y", pool, name, str(number)) for name in share.replicas}
        for name, part in parts.items():
            programme.variables[part] = Variable(most=1.0)
            capacity[name][part] = share.replicas[name]
            if name in share.late:
                late[part] = share.requests / requests
        programme.constraints.append(
            Constraint(factors=dict.fromkeys(parts.values(), 1.0), low=1.0, high=1.0)
        )
    for name, taken in capacity.items():
        programme.constraints.append(Constraint(factors={**taken, ("x", pool, name): -1.0}, high=0.0))
    if late:
        words = f"slo: {need.may_miss:.0f} requests of {pool} may be late even when idle, {{most}} would"
        limit = Constraint(factors=late, high=need.may_miss / requests, words=words, unit=requests)
        programme.constraints.append(limit)


def _add_limits(programme: Programme, pool: str, need: PoolNeed, max_types: int | None) -> None:
    types = tuple(need.gpus_per_replica)
    replicas: dict[Key, float] = {("x", pool, name): 1.0 for name in types}
    programme.constraints.append(Constraint(factors=replicas, low=need.min_replicas))
    if need.max_replicas is not None:
        words = f"pools.{pool}.max_replicas: {need.max_replicas} are not enough, {{most}} would be"
        programme.constraints.append(Constraint(factors=replicas, high=need.max_replicas, words=words))
    if max_types is None or max_types >= len(types):
        return
    for name in types:
        enough = ceil(sum(share.replicas.get(name, 0.0) for share in need.shares)) + need.min_replicas
        programme.variables["used", pool, name] = Variable(most=1.0, whole=True)
        row = Constraint(factors={("x", pool, name): 1.0, ("used", pool, name): -float(enough)}, high=0.0)
        programme.constraints.append(row)
    used: dict[Key, float] = {("used", pool, name): 1.0 for name in types}
    words = f"{pool}: at most {max_types} GPU types are not enough, {{most}} would be"
    programme.constraints.append(Constraint(factors=used, high=max_types, words=words))


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


def supplies(config: HeadwayConfig) -> Mapping[str, Supply]:
    """Prices and stock by type."""
    return {
        name: Supply(price_per_gpu_hour=each.price_per_gpu_hour, max_gpus=each.max_gpus)
        for name, each in config.gpu_types.items()
    }
