"""`headway gpu-plan`: what whole numbers save, how far adding up capacities is off, and what a plan takes.

cost      made-up needs of 2 pools on 5 types; prices near what makes the types equal. Exact, fractions
          rounded up, and the best single type, over the cheapest fractions (the bound)
error     random loads on four types of an 8B engine: the mixes that are planned are replayed whole
          (`gpu_types_replay`), each pool against its own loss budget
time      of one plan, and of 100 deployments one by one
"""

from collections.abc import Iterator, Mapping
from math import log
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np

from benchmarks.gpu_types_replay import decode_lost, prefill_lost
from headway.config import resolve_profile
from headway.planning.replay import ReplayEngine, Requests
from headway.planning.types import PoolLimits, Role, Slo
from headway.studies.gpu_mix import (
    GpuCandidate,
    InfeasibleError,
    PoolNeed,
    RequestLoad,
    Share,
    Supply,
    cheapest,
    pool_needs,
    rounded_up,
)
from headway.studies.gpu_mix.needs import engines_in
from interp import load_profile

TYPES = ("a", "b", "c", "d", "e")
SIZES = (2.0, 5.0, 20.0, 100.0)
CASES, LOADS = 200, 80
LOSS_BUDGET = 0.01
PROFILES = {
    "h100": ("llama-3.1-8b_h100_tp1", 3.0),
    "h200": ("dynamo_h200_llama31-8b-fp8_tp1", 4.0),
    "a100": ("vidur_llama-3-8b_a100_tp1", 1.5),
    "a100x2": ("vidur_llama-3-8b_a100_tp2", 1.5),
}
"""Type: its profile, and the median of its price per GPU-hour."""

LIMITS = {Role.PREFILL: PoolLimits(), Role.DECODE: PoolLimits()}
REPLAYS = {"prefill": prefill_lost, "decode": decode_lost}


def made_up(size: float, draw: np.random.Generator) -> tuple[Mapping[str, PoolNeed], Mapping[str, Supply]]:
    """Two pools that need about `size` replicas of the median type; prices near proportion to speed."""
    speed = dict(zip(TYPES, np.exp(draw.normal(0.0, 0.6, len(TYPES))).tolist(), strict=True))
    gpus = dict.fromkeys(TYPES, 1)
    needs = {}
    for pool in ("prefill", "decode"):
        fit = np.exp(draw.normal(0.0, 0.1, len(TYPES))).tolist()
        load = size * float(draw.uniform(0.7, 1.4))
        replicas = {name: load / speed[name] * f for name, f in zip(TYPES, fit, strict=True)}
        needs[pool] = PoolNeed(shares=(Share(requests=1000, replicas=replicas),), gpus_per_replica=gpus)
    prices = {name: speed[name] * float(np.exp(draw.normal(0.0, 0.15))) for name in TYPES}
    return needs, {name: Supply(price_per_gpu_hour=price) for name, price in prices.items()}


def cost_ratios(size: float) -> Mapping[str, np.ndarray[Any, Any]]:
    """Costs over that of the cheapest fractions, of each of CASES made-up needs."""
    ratios: dict[str, list[float]] = {"exact": [], "rounded": [], "single type": []}
    for seed in range(CASES):
        needs, supply = made_up(size, np.random.default_rng(seed))
        bound = sum(_fractions(need, supply) for need in needs.values())
        singles = ({pool: need.only(name) for pool, need in needs.items()} for name in TYPES)
        costs = {
            "exact": cheapest(needs, supply).cost_per_hour,
            "rounded": rounded_up(needs, supply).cost_per_hour,
            "single type": min(cheapest(single, supply).cost_per_hour for single in singles),
        }
        for name, cost in costs.items():
            ratios[name].append(cost / bound)
    return {name: np.array(values) for name, values in ratios.items()}


def _fractions(need: PoolNeed, supply: Mapping[str, Supply]) -> float:
    return min(n * supply[name].price_per_gpu_hour for name, n in need.shares[0].replicas.items())


def made_up_load(draw: np.random.Generator, seconds: int = 300) -> tuple[Requests, Slo]:
    """Arrivals whose rate changes each 10 s, lognormal lengths, and an SLO."""
    rate_rps, burstiness = float(np.exp(draw.uniform(log(5), log(80)))), float(draw.choice([1e-6, 0.2, 0.5]))
    isl, osl = float(draw.choice([300, 1000, 2000])), float(draw.choice([80, 200, 400]))
    ttft_s, itl_s = draw.choice([0.3, 0.6, 1.0, 2.0]), draw.choice([0.015, 0.02, 0.03, 0.05])
    slo = Slo(ttft_s=float(ttft_s), itl_s=float(itl_s))
    counts = draw.poisson(10 * rate_rps * draw.gamma(1 / burstiness, burstiness, seconds // 10))
    begins_s = np.repeat(10.0 * np.arange(seconds // 10), counts)
    arrival_s = np.sort(begins_s + draw.uniform(0, 10, counts.sum()))
    lengths = np.exp(draw.standard_normal((2, len(arrival_s))) - 0.5) * np.array([[isl], [osl]])
    return Requests(arrival_s, *np.maximum(1.0, np.rint(lengths))), slo


def engine(profiles: Path, name: str, slo: Slo) -> GpuCandidate:
    """One of PROFILES under that SLO."""
    directory = profiles / PROFILES[name][0]
    profile = load_profile(directory if directory.is_dir() else resolve_profile(PROFILES[name][0]))
    of = ReplayEngine(
        profile=profile,
        slo=slo,
        max_batch_size=min(256, max(1, round(profile.decode.largest_batch))),
        chunk_tokens=0,
        transfer_latency_s=0.005,
        transfer_s_per_token=131_072 / 25e9,
    )
    gpus = {Role.PREFILL: profile.prefill.gpus_per_engine, Role.DECODE: profile.decode.gpus_per_engine}
    return GpuCandidate(engine=of, gpus_per_replica=gpus)


def planned_mixes(profiles: Path, seed: int) -> Iterator[tuple[str, float, float]]:
    """Pools that were given several types: their name, and lost over budget, as planned and with one more.

    One more replica is one of the pool's cheapest type.
    """
    draw = np.random.default_rng(seed)
    requests, slo = made_up_load(draw)
    types = {name: engine(profiles, name, slo) for name in PROFILES}
    prices = {name: price * float(np.exp(draw.normal(0.0, 0.4))) for name, (_, price) in PROFILES.items()}
    supply = {name: Supply(price_per_gpu_hour=price) for name, price in prices.items()}
    needs = pool_needs(types, RequestLoad(requests=requests, loss_budget=LOSS_BUDGET), LIMITS).pools
    try:
        mix = cheapest(needs, supply)
    except InfeasibleError:
        return
    for role in LIMITS:
        pool, need, fleet = role.value, needs[role.value], dict(mix.replicas[role.value])
        if len(fleet) < 2:
            continue
        engines = engines_in(role, types, requests)
        widest = max(need.shares, key=lambda share: share.requests)
        least = min(fleet, key=lambda name: prices[name] * need.gpus_per_replica[name])
        allowed = LOSS_BUDGET / len(LIMITS) * sum(share.requests for share in need.shares)
        lost = [
            REPLAYS[pool](engines, requests, each, widest.replicas) / allowed
            for each in (fleet, {**fleet, least: fleet[least] + 1})
        ]
        yield pool, lost[0], lost[1]


def plan_s(deployments: int) -> float:
    """CPU seconds for that many deployments of 2 pools on 5 types, one by one."""
    problems = [made_up(20.0, np.random.default_rng(seed)) for seed in range(deployments)]
    began = process_time()
    for needs, supply in problems:
        cheapest(needs, supply)
    return process_time() - began


def main(data: Path | None) -> int:
    """Print the figures; 0."""
    plan_s(1)
    print(f"CPU time: one plan {1e3 * plan_s(20) / 20:.1f} ms, 100 deployments {plan_s(100):.2f} s")
    print(f"cost over the cheapest fractions, mean (90th percentile) of {CASES} needs of 2 pools on 5 types:")
    for size in SIZES:
        shown = (
            f"{name} {values.mean():.3f} ({np.quantile(values, 0.9):.3f})"
            for name, values in cost_ratios(size).items()
        )
        print(f"  about {size:g} replicas a pool: {', '.join(shown)}")
    if data is None:
        print("error: needs --data")
        return 0
    mixes = [row for seed in range(LOADS) for row in planned_mixes(data / "profiles", seed)]
    for pool in REPLAYS:
        lost = np.array([row[1:] for row in mixes if row[0] == pool])
        middle, high = np.quantile(lost[:, 0], [0.5, 0.9])
        print(f"error, {pool}: {len(lost)} mixes of {LOADS} plans; within the loss budget", end=" ")
        print(
            f"{np.mean(lost[:, 0] <= 1):.0%}, with one more replica {np.mean(lost[:, 1] <= 1):.0%};", end=" "
        )
        print(f"lost over budget: median {middle:.2f}, 90th percentile {high:.1f}")
    return 0
