"""Several deployments, one GPU budget: how many GPUs each may hold until its next decision.

Theory. Deployment k says what it would lose with g GPUs, L_k(g) requests/s, from its minimum m_k to the W_k
that it wants; L_k never rises. Priorities are strict: of two ways to share, the better is the one in which
the highest tier loses less, and only where that is equal the next tier counts. A priority is a promise of
order; as an exchange rate between tiers nobody could say what it means. Inside a tier

    minimise  Σ_k w_k L_k(g_k)   subject to   m_k ≤ g_k ≤ W_k,  Σ_k g_k ≤ B

with weights w_k, what a request of each is worth: 1 unless it is set. Without them a tier prefers the
deployments whose requests cost the fewest GPUs. L_k is not convex (with less than the work that comes nearly
everything is late), so neither the steepest step nor a price per GPU finds the optimum. It is a
multiple-choice knapsack, and the dynamic programme over GPUs is exact:

    F_0(b) = 0        F_k(b) = min_g  F_{k-1}(b − g) + w_k L_k(g)

in O(B · steps of L_k) a deployment. What no loss asks for but a deployment still holds, as its release is
slow, comes last in its tier: so GPUs in use are not taken away for those below, while those above take them
at once. What nobody wants, or what makes no whole replica of those who do, is not given out.

The losses of one deployment. Of each pool, the share of requests lost with n replicas is what the chosen
forecast with the factor that orders n would have lost; with fewer than its least factor orders, all. Replicas
for the queue come on top. Where not enough is known of a pool yet, each replica is taken for an equal part of
the requests. Over the pools losses add up, and the GPUs between them go where they save most:

    L(g) = λ · min over Σ_r g_r n_r ≤ g of Σ_r lost_r(n_r)          λ requests/s of late

A GPU that changes hands serves nobody for a lead. Counted over the time for which it then stays at least (the
hold), what is gained above the h GPUs held now is worth less,

    L'(g) = φ L(h) + (1 − φ) L(g)  for g > h,        φ = lead / (lead + hold)

so that deployments of equal need do not pass GPUs to and fro.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import gcd

import numpy as np

from headway.planning.hindsight.backtest import Backtest
from headway.planning.hindsight.choice import Option, moving_share
from headway.planning.hindsight.needs import Assessment, needs_of
from headway.planning.hindsight.policy import HeadwayPolicy
from headway.planning.policies import jsonable
from headway.planning.types import Decision, FloatArray, IntArray, PlanningError, PoolLimits, Role


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GpuLosses:
    """`lost_rps` f8[W − m + 1], requests/s lost with m, m + 1, … W GPUs. PlanningError if that ever rises.

    What is held without a loss comes in steps of `unit_gpus`: of others no replica can be made.
    """

    minimum_gpus: int
    lost_rps: FloatArray
    unit_gpus: int = 1

    def __post_init__(self) -> None:
        if len(self.lost_rps) == 0 or not np.isfinite(self.lost_rps).all():
            raise PlanningError("demand: losses are missing or not finite")
        if (np.diff(self.lost_rps) > 0).any():
            raise PlanningError("demand: more GPUs lose more requests")

    @property
    def wanted_gpus(self) -> int:
        """GPUs beyond which nothing is asked for."""
        return self.minimum_gpus + len(self.lost_rps) - 1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Demand:
    """One deployment at its decision. A higher `priority` comes first; `weight` is the worth of a request."""

    name: str
    losses: GpuLosses
    priority: int = 0
    weight: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """GPUs that a deployment may hold of those it wanted; `ahead`: those that it lacks, by who got them."""

    gpus: int
    wanted: int
    ahead: Mapping[str, int]

    @property
    def words(self) -> str:
        """`holds 12 of 16 GPUs wanted; 4 went to chat (priority 2)`; empty when nothing is missing."""
        if self.gpus >= self.wanted:
            return ""
        went = ", ".join(f"{gpus} went to {name}" for name, gpus in self.ahead.items())
        return (
            f"holds {self.gpus} of {self.wanted} GPUs wanted; {went or 'the others leave no room for more'}"
        )


def share(demands: Iterable[Demand], gpus: int) -> Mapping[str, Grant]:
    """A grant for each name; the order of `demands` does not matter.

    PlanningError when a name comes twice, or the minimums together exceed `gpus`.
    """
    ranked = sorted(demands, key=lambda demand: (-demand.priority, demand.name))
    _check(ranked, gpus)
    spare = gpus - sum(demand.losses.minimum_gpus for demand in ranked)
    granted = dict[str, int]()
    for _, members in groupby(ranked, key=lambda demand: demand.priority):
        tier = list(members)
        more = _share_tier(tier, spare)
        spare -= sum(more)
        granted |= {one.name: one.losses.minimum_gpus + own for one, own in zip(tier, more, strict=True)}
    return {demand.name: _grant(demand, ranked, granted) for demand in ranked}


def _check(ranked: Sequence[Demand], gpus: int) -> None:
    names = [demand.name for demand in ranked]
    if twice := {name for name in names if names.count(name) > 1}:
        raise PlanningError(f"deployments: {min(twice)} is there twice")
    if sum(demand.losses.minimum_gpus for demand in ranked) > gpus:
        each = ", ".join(f"{demand.name} {demand.losses.minimum_gpus}" for demand in ranked)
        raise PlanningError(f"gpus: {gpus} GPUs do not hold the minimums of all deployments ({each})")


def _share_tier(tier: Sequence[Demand], spare: int) -> list[int]:
    """GPUs on top of each minimum: what loses least, and then what else is wanted."""
    totals, choices = np.zeros(spare + 1), list[IntArray]()
    for demand in tier:
        totals, chosen = spend(totals, demand.weight * demand.losses.lost_rps)
        choices.append(chosen)
    left, given = spare, list[int]()
    for chosen in reversed(choices):
        given.append(int(chosen[left]))
        left -= given[-1]
    given.reverse()
    for at, demand in enumerate(tier):
        more = min(left, len(demand.losses.lost_rps) - 1 - given[at])
        more -= more % demand.losses.unit_gpus
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


def _grant(demand: Demand, ranked: Sequence[Demand], granted: Mapping[str, int]) -> Grant:
    """The grant of one deployment, and the others that have what it lacks: highest priority first."""
    missing, ahead = demand.losses.wanted_gpus - granted[demand.name], dict[str, int]()
    for other in ranked:
        above = granted[other.name] - other.losses.minimum_gpus
        if other.name != demand.name and other.priority >= demand.priority and min(above, missing) > 0:
            ahead[f"{other.name} (priority {other.priority})"] = min(above, missing)
            missing -= min(above, missing)
    return Grant(gpus=granted[demand.name], wanted=demand.losses.wanted_gpus, ahead=ahead)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolDemand:
    """One pool: its limits, the replicas it wants (within them) and has, `extra` of them for its queue.

    `option` or `tested` is None where not enough is known yet.
    """

    limits: PoolLimits
    wanted: int
    held: int
    extra: int
    option: Option | None
    tested: Backtest | None

    def lost(self) -> FloatArray:
        """Share of the requests lost, f8, with min_replicas, one more, … `wanted` replicas."""
        counts = np.arange(self.limits.min_replicas, self.wanted + 1)
        if self.option is None or self.tested is None:
            return 1.0 - counts / max(self.wanted, 1)
        row = self.tested.names.index(self.option.forecast)
        shares = self.tested.lost[row] / max(self.tested.requests, 1.0)
        ordered = self.tested.replicas[row] + self.extra
        least = np.append(1.0, np.minimum.accumulate(np.minimum(shares, 1.0)))
        return least[np.searchsorted(ordered, counts, side="right")]


def gpu_losses(pools: Mapping[Role, PoolDemand], rate_rps: float, moving: float) -> GpuLosses:
    """The losses of a deployment: `rate_rps` requests/s, `moving` the φ of the theory."""
    minimum = sum(pool.limits.min_replicas * pool.limits.gpus_per_replica for pool in pools.values())
    wanted = sum(pool.wanted * pool.limits.gpus_per_replica for pool in pools.values())
    held = sum(pool.held * pool.limits.gpus_per_replica for pool in pools.values())
    shares = np.zeros(wanted - minimum + 1)
    for pool in pools.values():
        shares, _ = spend(shares, pool.lost(), pool.limits.gpus_per_replica)
    lost = rate_rps * np.minimum(shares, 1.0)
    now = min(max(held - minimum, 0), len(lost) - 1)
    lost[now + 1 :] = moving * lost[now] + (1.0 - moving) * lost[now + 1 :]
    unit = gcd(*(pool.limits.gpus_per_replica for pool in pools.values()))
    return GpuLosses(minimum_gpus=minimum, lost_rps=np.minimum.accumulate(lost), unit_gpus=unit)


def demanded(policy: HeadwayPolicy, assessed: Assessment) -> GpuLosses:
    """The losses of a deployment at its decision, up to the GPUs that its policy holds where it has them."""
    needs = needs_of(assessed, policy.settings)
    wanted = policy.wanted(assessed, needs)
    pools = {
        role: PoolDemand(
            limits=policy.settings.limits[role],
            wanted=wanted[role],
            held=assessed.observation.pools[role].desired,
            extra=need.extra,
            option=None if need.learning else need.option,
            tested=assessed.backtests.get(role),
        )
        for role, need in needs.items()
    }
    return gpu_losses(pools, assessed.rate_rps, moving_share(assessed.lead_s, policy.own.hold_s))


def decide_within(policy: HeadwayPolicy, assessed: Assessment, grant: Grant) -> Decision:
    """The decision within the GPUs of a grant; its reasons say what it lacks."""
    narrow = replace(policy, settings=replace(policy.settings, max_gpu_budget=grant.gpus))
    decision = narrow.decide(assessed)
    reasons = decision.reasons
    lacks = [f"shared budget: {grant.words}"] if grant.words else []
    summary = f"{reasons['summary'].removesuffix('.')}; {grant.words}." if lacks else reasons["summary"]
    warnings = [*reasons["warnings"], *lacks]
    explained = {**reasons, "grant": jsonable(grant), "warnings": warnings, "summary": summary}
    return replace(decision, reasons=explained)
