"""Several deployments, one GPU budget: how many GPUs each may hold until its next decision.

Theory. Deployment k says what it would lose with g GPUs, L_k(g) requests/s, from its minimum m_k to the W_k
that it wants; L_k never rises. Priorities are strict: of two ways to share, the better is the one in which
the highest tier loses less, and only where that is equal the next tier counts. A priority is a promise of
order; as an exchange rate between tiers nobody could say what it means. Inside a tier

    minimise  Σ_k w_k L_k(g_k)   subject to   a_k ≤ g_k ≤ c_k,  Σ_k g_k ≤ B − Σ_k r_k

with weights w_k, what a request of each is worth: 1 unless it is set. Without them a tier prefers the
deployments whose requests cost the fewest GPUs. L_k is not convex (with less than the work that comes nearly
everything is late), so neither the steepest step nor a price per GPU finds the optimum. It is a
multiple-choice knapsack, and the dynamic programme over GPUs is exact:

    F_0(b) = 0        F_k(b) = min_g  F_{k-1}(b − g) + w_k L_k(g)

in O(B · steps of L_k) a deployment. What no loss asks for but a deployment still holds, as its release is
slow, comes last in its tier: so GPUs in use are not taken away for those below, while those above take them
at once. What nobody wants, or what makes no whole replica of those who do, is not given out.

Floors come before any priority. Of the W_k that it wants, deployment k has up to its floor f_k in any case,
and never more than its ceiling C_k. While it does not want its floor, others may hold the share s_k of it;
the rest r_k is kept free, so that no replica of others has to drain first when it does:

    c_k = max(m_k, min(W_k, C_k))    a_k = max(m_k, min(c_k, f_k))    r_k = max(0, f_k − ⌊s_k f_k⌋ − a_k)

all by whole replicas, downwards. Floors, or minimums where they are larger, together fit into B, and so do
all a_k + r_k. What is left is the same problem with higher minimums and a smaller budget: floors first, then
priorities strictly, then losses.

Moves. A GPU that changes hands serves nobody for a lead. As inside a deployment (`hindsight.choice`), what is
held stays until another division would lose less, over the time for which it then stays at least (the hold),
by all those together whose GPUs it changes:

    Σ L(moved) < (1 − φ) Σ L(held)          φ = lead / (lead + hold)

GPUs that nobody holds are free to go anywhere. Nothing of a lower tier is held against a higher one.

Idle deployments. Where nothing runs or waits, requests are lost only if they come before a replica that was
given up is back. After t seconds without a request no more than one in t is to be expected; a deployment is
idle while that is less than one:

    lead · min(λ, 1 / t) < 1

Requests that wait for the first replica of another are lost for certain, so that one gets the GPUs that are
free, and from idle ones, of whatever priority, those above their floor, if they make it whole together. What
is rarely asked thus yields at once, and anything after a lead without a request: until then keeping a GPU
costs less than starting again. Beyond its floor and what it holds an idle deployment only gets GPUs that no
other wants.

`headway.planning.demands` has the losses of one deployment.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from math import inf

import numpy as np

from headway.planning.sleeping import Bidder, Sleepers, SleepingPool, sleepers
from headway.planning.types import FloatArray, IntArray, PlanningError

ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GpuLosses:
    """`lost_rps` f8[W − m + 1], requests/s lost with m, m + 1, … W GPUs. PlanningError if that ever rises.

    What is held without a loss comes in steps of `unit_gpus`: of others no replica can be made, and of fewer
    than `first_gpus` above the minimum nothing that serves. `held_gpus` are had now, and `moving` is the φ of
    the theory. `waiting` are requests that wait for a first replica, `sleeping` the pools whose engines may
    sleep.
    """

    minimum_gpus: int
    lost_rps: FloatArray
    unit_gpus: int = 1
    first_gpus: int = 0
    held_gpus: int = 0
    moving: float = 0.0
    waiting: float = 0.0
    idle: bool = False
    sleeping: tuple[SleepingPool, ...] = ()

    def __post_init__(self) -> None:
        if len(self.lost_rps) == 0 or not np.isfinite(self.lost_rps).all():
            raise PlanningError("demand: losses are missing or not finite")
        if (np.diff(self.lost_rps) > 0).any():
            raise PlanningError("demand: more GPUs lose more requests")

    @property
    def wanted_gpus(self) -> int:
        """GPUs beyond which nothing is asked for."""
        return self.minimum_gpus + len(self.lost_rps) - 1

    def between(self, least: int, most: int) -> "GpuLosses":
        """The same where at least `least` and at most `most` GPUs are held, in whole replicas."""
        most = self.whole(min(most, self.wanted_gpus))
        least = self.whole(min(least, most))
        held = self.lost_rps[least - self.minimum_gpus : most - self.minimum_gpus + 1]
        first = self.first_gpus if least == self.minimum_gpus else 0
        return replace(self, minimum_gpus=least, lost_rps=held, first_gpus=first)

    def from_fewer(self, least: int, needed_rps: float) -> "GpuLosses":
        """The same from a lower minimum; each GPU up to that which they had keeps so many requests/s."""
        missing = np.arange(self.minimum_gpus - least, 0, -1)
        lost = np.concatenate([self.lost_rps[0] + needed_rps * missing, self.lost_rps])
        return replace(self, minimum_gpus=least, lost_rps=lost)

    def whole(self, gpus: int) -> int:
        """At most `gpus`, and at least the minimum, so that all of them make replicas."""
        return self.minimum_gpus + self.more(gpus - self.minimum_gpus)

    def more(self, gpus: int) -> int:
        """What of so many above the minimum is of use."""
        return gpus - gpus % self.unit_gpus if gpus >= max(1, self.first_gpus) else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What operators say of one deployment among the others. PlanningError where it contradicts itself.

    A higher `priority` comes first; `weight` is the worth of a request. Up to `floor_gpus` it has what it
    wants before any priority, and it never has more than `ceiling_gpus`. While it does not want its floor,
    others may hold the share `lend` of it, in [0, 1]; the rest stays free for it.
    """

    priority: int = 0
    weight: float = 1.0
    floor_gpus: int = 0
    ceiling_gpus: int | None = None
    lend: float = 1.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.lend <= 1.0:
            raise PlanningError(f"lend: {self.lend:g} is no share between 0 and 1")
        if self.ceiling_gpus is not None and self.ceiling_gpus < self.floor_gpus:
            raise PlanningError(
                f"ceiling_gpus: {self.ceiling_gpus} is below floor_gpus, which is {self.floor_gpus}"
            )

    @property
    def own_gpus(self) -> int:
        """The part of the floor that is never lent."""
        return self.floor_gpus - int(self.lend * self.floor_gpus + ROUNDING)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Demand:
    """One deployment at its decision."""

    name: str
    losses: GpuLosses
    standing: Standing = field(default_factory=Standing)

    @property
    def guaranteed_gpus(self) -> int:
        """The most that it may claim before any priority."""
        return max(self.standing.floor_gpus, self.losses.minimum_gpus)

    @property
    def above_ceiling(self) -> int:
        """GPUs that it wants, but may not have."""
        ceiling = self.standing.ceiling_gpus
        return 0 if ceiling is None else max(0, self.losses.wanted_gpus - ceiling)

    @property
    def kept_free(self) -> int:
        """Of the floor, what it does not hold at its minimum and others may not have."""
        return max(0, self.losses.whole(self.standing.own_gpus) - self.losses.minimum_gpus)

    @property
    def most(self) -> int:
        """GPUs that it wants and may have."""
        return self.losses.wanted_gpus - self.above_ceiling

    def bidder(self, granted: int) -> Bidder:
        """Its part in the division of what engines take that sleep."""
        losses, standing = self.losses, self.standing
        return Bidder(
            self.name, standing.priority, standing.weight, granted, losses.wanted_gpus, losses.sleeping
        )

    def bounded(self) -> "Demand":
        """The same from its floor to its ceiling; of an idle one, to what it holds or its floor."""
        held = max(self.standing.floor_gpus, self.losses.held_gpus)
        most = min(self.most, held) if self.losses.idle else self.most
        return replace(self, losses=self.losses.between(self.standing.floor_gpus, most))


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """GPUs that a deployment may hold of those it wanted.

    `ahead`: those that it lacks, by who got them and why; `kept_free`: by the deployment that they are kept
    free for; `above_ceiling`: those that it may not have; `unplaced`: which replicas find room on no node.
    `sleepers`: engines that each pool keeps for sleep.
    """

    gpus: int
    wanted: int
    ahead: Mapping[str, int]
    kept_free: Mapping[str, int] = field(default_factory=dict)
    above_ceiling: int = 0
    unplaced: str = ""
    sleepers: Sleepers = field(default_factory=dict)

    @property
    def words(self) -> str:
        """`holds 12 of 16 GPUs wanted; 4 went to chat (priority 2)`; empty when nothing is missing."""
        if self.gpus >= self.wanted:
            return ""
        why = ", ".join(self.missing()) or "the others leave no room for more"
        return f"holds {self.gpus} of {self.wanted} GPUs wanted; {why}"

    def missing(self) -> list[str]:
        """Where the GPUs are that it lacks."""
        went = [f"{gpus} went to {name}" for name, gpus in self.ahead.items()]
        kept = [f"{gpus} kept free for {name}" for name, gpus in self.kept_free.items()]
        above = [f"{self.above_ceiling} above its ceiling"] if self.above_ceiling else []
        return [*went, *kept, *above, *filter(None, [self.unplaced])]


def share(demands: Iterable[Demand], gpus: int, host_memory: float = inf) -> Mapping[str, Grant]:
    """A grant for each name; the order of `demands` does not matter. `host_memory` in bytes is for engines
    that may sleep.

    PlanningError when a name comes twice, a ceiling is below a minimum, or the minimums or the floors
    together exceed `gpus`.
    """
    ranked = sorted(demands, key=lambda demand: (-demand.standing.priority, demand.name))
    _check(ranked, gpus)
    bounded = [demand.bounded() for demand in ranked]
    free = {one.name: one.kept_free for one in bounded}
    spare = gpus - sum(one.losses.minimum_gpus + free[one.name] for one in bounded)
    granted = dict[str, int]()
    for _, members in groupby(bounded, key=lambda demand: demand.standing.priority):
        tier = list(members)
        more = _share_tier(tier, spare)
        spare -= sum(more)
        granted |= {one.name: one.losses.minimum_gpus + own for one, own in zip(tier, more, strict=True)}
    spare = _yield(bounded, granted, spare)
    for demand in ranked:
        if demand.losses.idle:
            before = granted[demand.name]
            granted[demand.name] = demand.losses.whole(min(before + spare, demand.most))
            spare -= granted[demand.name] - before
    bidders = [one.bidder(granted[one.name]) for one in ranked]
    kept = sleepers(bidders, gpus, host_memory)
    return {
        demand.name: _grant(demand, ranked, granted, free, kept.get(demand.name, {})) for demand in ranked
    }


def _check(ranked: Sequence[Demand], gpus: int) -> None:
    names = [demand.name for demand in ranked]
    if twice := {name for name in names if names.count(name) > 1}:
        raise PlanningError(f"deployments: {min(twice)} is there twice")
    for demand in ranked:
        least, ceiling = demand.losses.minimum_gpus, demand.standing.ceiling_gpus
        if ceiling is not None and ceiling < least:
            raise PlanningError(
                f"share.ceiling_gpus: {demand.name} may hold {ceiling}, its minimum is {least}"
            )
    _check_fit("minimums", {demand.name: demand.losses.minimum_gpus for demand in ranked}, gpus)
    _check_fit("floors", {demand.name: demand.guaranteed_gpus for demand in ranked}, gpus)


def _check_fit(kind: str, needed: Mapping[str, int], gpus: int) -> None:
    if sum(needed.values()) > gpus:
        each = ", ".join(f"{name} {count}" for name, count in needed.items())
        raise PlanningError(f"fleet.gpus: {gpus} GPUs do not hold the {kind} of all deployments ({each})")


def _share_tier(tier: Sequence[Demand], spare: int) -> list[int]:
    """GPUs on top of each minimum: as they are held, unless another division loses enough less."""
    losses = [demand.losses for demand in tier]
    weights = [demand.standing.weight for demand in tier]
    moved = _divide(losses, weights, spare)
    staying = [one.between(one.held_gpus, one.wanted_gpus) for one in losses]
    kept = [own.minimum_gpus - one.minimum_gpus for own, one in zip(staying, losses, strict=True)]
    if sum(kept) > spare:
        return moved
    more = _divide(staying, weights, spare - sum(kept))
    stay = [own + other for own, other in zip(kept, more, strict=True)]
    changed = [at for at, count in enumerate(moved) if count != stay[at]]
    before = sum(weights[at] * losses[at].lost_rps[stay[at]] for at in changed)
    after = sum(weights[at] * losses[at].lost_rps[moved[at]] for at in changed)
    return moved if after < (1.0 - max(one.moving for one in losses)) * before else stay


def _yield(bounded: Sequence[Demand], granted: dict[str, int], spare: int) -> int:
    """Move GPUs of idle deployments, and the `spare` ones, to those with requests that wait, see the module;
    what is spare then.
    """
    waiting = [one for one in bounded if one.losses.waiting > 0]
    idle = sorted(
        (one for one in bounded if one.losses.idle),
        key=lambda one: (one.standing.priority, one.losses.lost_rps[0], one.name),
    )
    for one in sorted(waiting, key=lambda one: (-one.standing.priority, -one.losses.waiting, one.name)):
        lacking = one.losses.wanted_gpus - granted[one.name]
        given = dict[str, int]()
        for other in idle:
            has, missing = granted[other.name], lacking - spare - sum(given.values())
            given[other.name] = has - other.losses.whole(has - max(0, missing))
        had = spare + sum(given.values())
        more = one.losses.whole(granted[one.name] + min(lacking, had)) - granted[one.name]
        if more > 0:
            granted[one.name] += more
            spare = had - more
            for name, gpus in given.items():
                granted[name] -= gpus
    return spare


def _divide(losses: Sequence[GpuLosses], weights: Sequence[float], spare: int) -> list[int]:
    """GPUs on top of each minimum: what loses least, and then what else is wanted."""
    totals, choices = np.zeros(spare + 1), list[IntArray]()
    for one, weight in zip(losses, weights, strict=True):
        totals, chosen = spend(totals, weight * one.lost_rps)
        choices.append(chosen)
    left, given = spare, list[int]()
    for chosen in reversed(choices):
        given.append(int(chosen[left]))
        left -= given[-1]
    given.reverse()
    for at, one in enumerate(losses):
        more = one.more(min(left + given[at], len(one.lost_rps) - 1)) - given[at]
        given[at] += more
        left -= more
    return given


def spend(totals: FloatArray, lost: FloatArray, unit: int = 1) -> tuple[FloatArray, IntArray]:
    """One step of the programme: `totals` f8[B + 1] of those before, `lost` by units of `unit` GPUs.

    The least sums f8[B + 1], and what the new one has of b GPUs in them, i8[B + 1]: the fewest where equal.
    """
    best, chosen = totals + lost[0], np.zeros(len(totals), np.int64)
    for step in np.nonzero(np.diff(lost) < 0)[0] + 1:
        took = int(step) * unit
        if took >= len(totals):
            break
        candidate = totals[: len(totals) - took] + lost[step]
        better = candidate < best[took:]
        best[took:][better] = candidate[better]
        chosen[took:][better] = took
    return best, chosen


def _grant(
    demand: Demand,
    ranked: Sequence[Demand],
    granted: Mapping[str, int],
    free: Mapping[str, int],
    kept: Sleepers,
) -> Grant:
    """The grant of one deployment, and where what it lacks is: kept free, on floors, or with others of its
    priority or a higher one, highest first."""
    others = [other for other in ranked if other.name != demand.name]
    missing = demand.losses.wanted_gpus - granted[demand.name] - demand.above_ceiling
    kept_free = up_to(missing, {other.name: free[other.name] for other in others})
    ahead = dict[str, int]()
    for other in others:
        above = granted[other.name] - other.losses.minimum_gpus
        of_floor = min(above, other.guaranteed_gpus - other.losses.minimum_gpus)
        ahead[f"{other.name} (floor)"] = of_floor
        if other.standing.priority >= demand.standing.priority:
            ahead[f"{other.name} (priority {other.standing.priority})"] = above - of_floor
        elif demand.losses.idle:
            ahead[f"{other.name} (in use)"] = above - of_floor
    return Grant(
        gpus=granted[demand.name],
        wanted=demand.losses.wanted_gpus,
        ahead=up_to(missing - sum(kept_free.values()), ahead),
        kept_free=kept_free,
        above_ceiling=demand.above_ceiling,
        sleepers=kept,
    )


def up_to(missing: int, held: Mapping[str, int]) -> Mapping[str, int]:
    """The first of these GPUs, by holder, until there are so many."""
    found = dict[str, int]()
    for name, gpus in held.items():
        if (taken := min(gpus, missing)) > 0:
            found[name] = taken
            missing -= taken
    return found
