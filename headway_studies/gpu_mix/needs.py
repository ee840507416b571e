r"""Recorded requests → what each pool needs of each GPU type, by replays.

For each type the requests whose SLO it can keep on an idle engine are replayed through fleets of it alone
(`headway.planning.replay`); n is where the loss curve crosses the loss budget. Requests that the same types
can keep form a share. It takes its part of n by its work W (seconds of a busy replica):

    n_st = n_t · W_st / W_t         W_t: the work of what t can keep

also of a type that is late with it; where types differ, half of the loss budget is for requests served so.
docs/gpu-types.md has the assumptions: capacities add up, pools share the loss budget equally, and the other
pool's latency is that of the partner, the type that keeps most requests when it serves both pools.

Requests that no type can keep are not judged, and counted as `hopeless`. A type whose fleets, however large,
lose more than the budget serves nothing. Without requests the pool's minimum is all it needs.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil, inf, isfinite
from typing import TypeVar

import numpy as np

from headway.config import ConfigError, HeadwayConfig, resolve_profile
from headway.engine import engine_rules
from headway.planning.hindsight import COMPILED_FROM
from headway.planning.hindsight.learning import STAGES
from headway.planning.replay import LossCurve, ReplayEngine, Requests, attainable, prefill_seconds
from headway.planning.replay.engine import fits
from headway.planning.types import NAN, PoolLimits, Role, Slo
from interp import ProfileError, load_profile, scaled
from interp.arrays import BoolArray
from interp.jit import drop_stale_cache

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Requests whose SLO the same types can keep.

    `replicas` says, by type, how many replicas of it (a fraction) this share takes where it serves the share
    alone; types that are missing cannot serve it. Those in `late` serve it, but not within its SLO.
    """

    requests: int
    replicas: Mapping[str, float]
    late: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolNeed:
    """The shares that one pool has to serve, the GPUs of one replica by type, and the pool's limits.

    `may_miss` requests may be served by types that are late with them.
    """

    shares: tuple[Share, ...]
    gpus_per_replica: Mapping[str, int]
    may_miss: float = 0.0
    min_replicas: int = 0
    max_replicas: int | None = None

    def only(self, gpu_type: str) -> "PoolNeed":
        """The same with one type; shares that it cannot serve have none then."""
        shares = (replace(share, replicas=_only(share.replicas, gpu_type)) for share in self.shares)
        gpus = _only(self.gpus_per_replica, gpu_type)
        return replace(self, shares=tuple(shares), gpus_per_replica=gpus)


def _only(values: Mapping[str, T], name: str) -> Mapping[str, T]:
    return {name: values[name]} if name in values else {}


GIVEN_UP = 0.5
"""Part of the loss budget for requests that a type serves though it is late with them even when idle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuCandidate:
    """A GPU type's engine, and the GPUs of one replica by role."""

    engine: ReplayEngine
    gpus_per_replica: Mapping[Role, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLoad:
    """Requests to serve: those from `judged_from` on count, the ones before warm the fleets up.

    What came before `since_s` is under way then (`headway.planning.replay.engine.under_way`).
    """

    requests: Requests
    judged_from: int = 0
    since_s: float = -inf
    loss_budget: float = 0.01

    @property
    def judged(self) -> int:
        """The number of those that count."""
        return len(self.requests.arrival_s) - self.judged_from


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolNeeds:
    """The needs of all pools, by role; `hopeless` judged requests are not part of it."""

    pools: Mapping[str, PoolNeed]
    hopeless: int


def pool_needs(
    candidates: Mapping[str, GpuCandidate], load: RequestLoad, limits: Mapping[Role, PoolLimits]
) -> PoolNeeds:
    """The needs of each pool in `limits`; their GPUs per replica are the candidates'."""
    requests, pools, hopeless = load.requests, dict[str, PoolNeed](), 0
    part = replace(load, loss_budget=load.loss_budget / len(limits))
    for role, limit in limits.items():
        engines = engines_in(role, candidates, requests)
        can = {name: attainable(each, requests, mixed=role is Role.MIXED) for name, each in engines.items()}
        need = PoolNeed(
            shares=_shares(role, engines, can, part),
            gpus_per_replica={name: each.gpus_per_replica[role] for name, each in candidates.items()},
            may_miss=GIVEN_UP * part.loss_budget * load.judged,
            min_replicas=limit.min_replicas,
            max_replicas=limit.max_replicas,
        )
        pools[role.value] = need
        hopeless = max(hopeless, load.judged - sum(share.requests for share in need.shares))
    return PoolNeeds(pools=pools, hopeless=hopeless)


def engines_in(
    role: Role, candidates: Mapping[str, GpuCandidate], requests: Requests
) -> Mapping[str, ReplayEngine]:
    """Each type's engine in the pool of that role, with the partner's surface and batches in the other."""
    engines = {name: candidate.engine for name, candidate in candidates.items()}
    if role is Role.MIXED:
        return engines
    partner = max(engines.values(), key=lambda engine: _reach(engine, requests))
    return {name: _paired(engine, partner, role) for name, engine in engines.items()}


def _reach(engine: ReplayEngine, requests: Requests) -> tuple[int, float]:
    """The number of requests that an engine keeps idle and, where that is equal, the speed of its prompts."""
    kept = int(attainable(engine, requests).sum())
    return kept, -float(prefill_seconds(engine, requests).sum())


def _paired(engine: ReplayEngine, partner: ReplayEngine, role: Role) -> ReplayEngine:
    own, other = engine.profile, partner.profile
    if role is Role.DECODE:
        return replace(engine, profile=replace(own, prefill=other.prefill))
    return replace(engine, profile=replace(own, decode=other.decode), max_batch_size=partner.max_batch_size)


def _shares(
    role: Role, engines: Mapping[str, ReplayEngine], can: Mapping[str, BoolArray], load: RequestLoad
) -> tuple[Share, ...]:
    """The judged requests by the types that can keep them, with what each share takes of each type."""
    kept = np.array([mask[load.judged_from :] for mask in can.values()])
    patterns, of = np.unique(kept, axis=1, return_inverse=True)
    differ = bool((patterns.any(axis=0) & ~patterns.all(axis=0)).any())
    waiting = (1.0 - GIVEN_UP if differ else 1.0) * load.loss_budget
    rates = {name: _replicas_per_work(role, engines[name], load, can[name], waiting) for name in engines}
    judged = load.requests.where(np.arange(len(load.requests.arrival_s)) >= load.judged_from)
    shares = ((pattern, judged.where(of.ravel() == number)) for number, pattern in enumerate(patterns.T))
    return tuple(
        Share(
            requests=len(share.arrival_s),
            replicas=_takes(role, engines, rates, share),
            late=frozenset(name for name, keeps in zip(engines, pattern, strict=True) if not keeps),
        )
        for pattern, share in shares
        if pattern.any()
    )


def _takes(
    role: Role, engines: Mapping[str, ReplayEngine], rates: Mapping[str, float], share: Requests
) -> Mapping[str, float]:
    """Replicas of each type that the share takes; types without a rate, or without room, are missing."""
    return {
        name: rates[name] * float(STAGES[role].seconds(engine, share).sum())
        for name, engine in engines.items()
        if isfinite(rates[name]) and fits(engine, share).all()
    }


def _replicas_per_work(
    role: Role, engine: ReplayEngine, load: RequestLoad, can: BoolArray, loss_budget: float
) -> float:
    """n / W of what the type can keep; NaN where it keeps nothing, or loses more than the budget anyway."""
    first = int(can[: load.judged_from].sum())
    own = load.requests.where(can)
    judged = own.where(np.arange(len(own.arrival_s)) >= first)
    if len(judged.arrival_s) == 0:
        return NAN
    seconds = STAGES[role].seconds(engine, judged)
    guess = ceil(float(seconds.sum()) / max(1.0, float(np.ptp(judged.arrival_s))))
    curve = STAGES[role].losses(engine, own, first, guess, load.since_s)
    return crossing(curve, loss_budget) / float(seconds.sum())


def crossing(curve: LossCurve, loss_budget: float) -> float:
    """Replicas, a fraction, where the curve comes down to the budget, a share of its requests; NaN: nowhere.

    Between two counts the logarithm of lost + 1 is linear, as it is between replays. Below the mean work a
    curve knows nothing but that all is lost; so the first count above that is taken whole.
    """
    allowed = loss_budget * curve.requests
    within = np.flatnonzero(curve.lost <= allowed)
    if len(within) == 0:
        return NAN
    count = int(within[0])
    if count == 0 or curve.lost[count - 1] == curve.requests:
        return float(count)
    above, below = np.log1p(curve.lost[count - 1 : count + 1].astype(float))
    return count - float((np.log1p(allowed) - below) / (above - below))


def candidates(config: HeadwayConfig) -> Mapping[str, GpuCandidate]:
    """The types by name; GPUs per replica are as profiled. ConfigError begins with the key."""
    drop_stale_cache(*COMPILED_FROM)
    return {name: _candidate(config, name) for name in config.gpu_types}


def _candidate(config: HeadwayConfig, name: str) -> GpuCandidate:
    key = f"gpu_types.{name}.profile"
    try:
        profile = load_profile(resolve_profile(config.gpu_types[name].profile, key=key))
        profile = scaled(profile, config.engine.time_scale)
        rules = engine_rules(config, profile)
    except ProfileError as error:
        raise ConfigError(f"{key}: {error}") from error
    slo = Slo(ttft_s=config.slo.ttft_s, itl_s=config.slo.itl_s)
    decode = profile.decode.gpus_per_engine
    gpus = {Role.PREFILL: profile.prefill.gpus_per_engine, Role.DECODE: decode, Role.MIXED: decode}
    return GpuCandidate(engine=ReplayEngine.of(profile, slo, rules), gpus_per_replica=gpus)
