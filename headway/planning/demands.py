"""What one deployment says at its decision, the requests that it would lose with how many GPUs, and that
decision within what it is granted (`headway.planning.sharing`).

Of each pool, the share of requests lost with n replicas is what the chosen
forecast with the factor that orders n would have lost; with fewer than its least factor orders, all. A queue
needs x replicas on top until it is gone, which is the part ψ of the time for which a GPU that comes then
stays. (What lacks a GPU has a queue; if that claimed it for all the time, the GPU would go to and fro.)

    lost_r(n) = (1 − ψ) lost(n) + ψ lost(n − x)          ψ = DRAIN_S / hold

Where not enough is known of a pool yet, each replica is taken for an equal part of the requests. Over the
pools losses add up, and the GPUs between them go where they save most:

    L(g) = λ · min over Σ_r g_r n_r ≤ g of Σ_r lost_r(n_r)          λ requests/s of late
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import gcd

import numpy as np

from headway.planning.deciding import gpus as gpus_of
from headway.planning.hindsight.backtest import Backtest
from headway.planning.hindsight.choice import Option, moving_share
from headway.planning.hindsight.needs import DRAIN_S, Assessment, needs_of
from headway.planning.hindsight.policy import HeadwayPolicy
from headway.planning.policies import jsonable
from headway.planning.sharing import GpuLosses, Grant, spend
from headway.planning.sleeping import SleepingPool
from headway.planning.types import Decision, FloatArray, PoolLimits, Role


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolDemand:
    """One pool: its limits, the replicas that it wants (within them), `extra` of them for its queue.

    The queue needs them for the part `queued` of the time. `option` or `tested` is None where not enough is
    known yet.
    """

    limits: PoolLimits
    wanted: int
    extra: int
    queued: float
    option: Option | None
    tested: Backtest | None

    def lost(self) -> FloatArray:
        """Share of the requests lost, f8, with min_replicas, one more, … `wanted` replicas."""
        counts = np.arange(self.limits.min_replicas, self.wanted + 1)
        if self.option is None or self.tested is None:
            return 1.0 - counts / max(self.wanted, 1)
        row = self.tested.names.index(self.option.forecast)
        shares = self.tested.lost[row] / max(self.tested.requests, 1.0)
        least = np.append(1.0, np.minimum.accumulate(np.minimum(shares, 1.0)))
        plain, queueing = (
            least[np.searchsorted(self.tested.replicas[row] + extra, counts, side="right")]
            for extra in (0, self.extra)
        )
        lost: FloatArray = (1.0 - self.queued) * plain + self.queued * queueing
        return lost


def gpu_losses(pools: Mapping[Role, PoolDemand], rate_rps: float) -> GpuLosses:
    """The losses of a deployment at `rate_rps` requests/s."""
    minimum = sum(pool.limits.min_replicas * pool.limits.gpus_per_replica for pool in pools.values())
    wanted = sum(pool.wanted * pool.limits.gpus_per_replica for pool in pools.values())
    shares = np.zeros(wanted - minimum + 1)
    for pool in pools.values():
        shares, _ = spend(shares, pool.lost(), pool.limits.gpus_per_replica)
    unit = gcd(*(pool.limits.gpus_per_replica for pool in pools.values()))
    # A request needs every pool.
    first = sum(
        pool.limits.gpus_per_replica for pool in pools.values() if pool.wanted > pool.limits.min_replicas == 0
    )
    lost = rate_rps * np.minimum(shares, 1.0)
    return GpuLosses(minimum_gpus=minimum, lost_rps=lost, unit_gpus=unit, first_gpus=first)


def demanded(policy: HeadwayPolicy, assessed: Assessment) -> GpuLosses:
    """The losses of a deployment at its decision, up to the GPUs that its policy holds where it has them."""
    needs, limits = needs_of(assessed, policy.settings), policy.settings.limits
    wanted, hold_s = policy.wanted(assessed, needs), policy.own.hold_s
    pools = {
        role: PoolDemand(
            limits=limits[role],
            wanted=wanted[role],
            extra=need.extra,
            queued=DRAIN_S / max(DRAIN_S, hold_s),
            option=None if need.learning else need.option,
            tested=assessed.backtests.get(role),
        )
        for role, need in needs.items()
    }
    held = gpus_of({role: assessed.observation.pools[role].desired for role in needs}, limits)
    moving = moving_share(assessed.lead_s, hold_s)
    losses = gpu_losses(pools, assessed.rate_rps)
    return replace(
        losses,
        held_gpus=held,
        moving=moving,
        waiting=assessed.waiting,
        idle=assessed.quiet,
        sleeping=_sleeping(policy, assessed, wanted),
    )


def _sleeping(
    policy: HeadwayPolicy, assessed: Assessment, wanted: Mapping[Role, int]
) -> tuple[SleepingPool, ...]:
    limits, memories = policy.settings.limits, assessed.state.pools
    return tuple(
        SleepingPool(
            role=role,
            engine=engine,
            gpus_awake=limits[role].gpus_per_replica,
            most=limits[role].sleepers,
            wanted=wanted[role],
            held=assessed.observation.pools[role].desired,
            kept=memories[role].kept,
            risen=memories[role].risen,
        )
        for role, engine in policy.settings.sleeping.items()
    )


def decide_within(policy: HeadwayPolicy, assessed: Assessment, grant: Grant) -> Decision:
    """The decision within the GPUs of a grant; its reasons say what it lacks."""
    stated = policy.settings.limits
    limits = {
        role: replace(each, sleepers=grant.sleepers.get(role, each.sleepers)) for role, each in stated.items()
    }
    # What a schedule asks for at other times is no matter of this grant.
    settings = replace(policy.settings, max_gpu_budget=grant.gpus, limits=limits, schedule=None)
    narrow = replace(policy, settings=settings)
    decision = narrow.decide(assessed)
    reasons = decision.reasons
    lacks = [f"shared budget: {grant.words}"] if grant.words else []
    summary = f"{reasons['summary'].removesuffix('.')}; {grant.words}." if lacks else reasons["summary"]
    fewer = [
        f"{role}: {count} of {stated[role].sleepers} engines may sleep; GPUs and host memory hold no more"
        for role, count in grant.sleepers.items()
        if count < stated[role].sleepers
    ]
    explained = {
        **reasons,
        "grant": jsonable(grant),
        "warnings": [*reasons["warnings"], *lacks, *fewer],
        "summary": summary,
    }
    return replace(decision, reasons=explained)
