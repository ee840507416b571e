"""Cost of one decision of the policy `headway` at 100 requests/s: two pools, and one of mixed replicas.

CPU time of `plan`, in which the requests of a 30 s interval are replayed through candidate fleets, so other
work on the machine does not count. Arrivals are Poisson around a rate that swings and is noisy, lengths
lognormal. A long past is the first intervals' loss curves again and again, as the policy would have kept
them. Of many deployments each has its own profile, policy and state; they make the same decisions in groups
of 1, 10 and 100, so that the time of all is linear in their number if the median stays where it is.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import nan, sin
from pathlib import Path
from typing import Any

import numpy as np

from headway.config import load_config
from headway.planning import Observation, Policy, PoolState, Role
from headway.planning.hindsight.history import PoolHistory
from headway.planning.hindsight.learning import MOST_INTERVALS
from headway.planning.hindsight.state import HindsightState
from headway.planning.replay import LossCurve
from headway.planning.types import FloatArray, Traffic
from headway.simulation.build import make_plan

INTERVAL_S, RATE_RPS = 30.0, 100.0
ISL, OSL = (1155.0, 1.0), (211.0, 0.7)
"""Mean tokens and their coefficient of variation."""

PROFILES: Mapping[str, tuple[str, float, float]] = {
    "8B": ("vidur_llama-3-8b_a100_tp1", 0.5, 0.020),
    "70B": ("vidur_llama-2-70b_a100_tp4", 1.5, 0.045),
}
"""Profile, TTFT and ITL in seconds, where a data directory has them."""

FIRST = 30
"""Intervals that are really planned; a longer past repeats them."""

MIXED: Mapping[str, Any] = {"pools.mixed.max_replicas": 4000}
"""Mixed replicas, as many as it takes: at tight ITLs those are hundreds."""

PASTS_H = (2.0, 48.0)
DECISIONS = 100
LIMIT_S = 2.0
TOGETHER, ROUNDS = (1, 10, 100), 2
"""Deployments that one process plans in turns, and decisions of each."""


@dataclass(slots=True)
class Deployment:
    """A policy, its state after `tick` intervals, and its traffic; pools always have what was asked for."""

    policy: Policy
    random: np.random.Generator
    state: Any
    replicas: Mapping[Role, int]
    tick: int = 0

    def decide(self) -> float:
        """CPU seconds of the next decision."""
        observation = self._observation()
        begun_s = time.process_time()
        decision = self.policy.plan(observation, self.state)
        took_s = time.process_time() - begun_s
        self.state, self.replicas, self.tick = decision.next_state, decision.targets, self.tick + 1
        return took_s

    def _observation(self) -> Observation:
        now_s = (self.tick + 1) * INTERVAL_S
        swing = 1.0 + 0.3 * sin(self.tick / 20.0) + 0.1 * self.random.standard_normal()
        requests = int(self.random.poisson(RATE_RPS * INTERVAL_S * swing))
        inputs, outputs = (_lengths(self.random, requests, *of) for of in (ISL, OSL))
        return Observation(
            now_s=now_s,
            interval_s=INTERVAL_S,
            requests=float(requests),
            isl_tokens=float(inputs.mean()),
            osl_tokens=float(outputs.mean()),
            ttft_s=nan,
            itl_s=nan,
            pools={
                role: PoolState(desired=ready, starting=0, ready=ready, draining=0, waiting=0.0)
                for role, ready in self.replicas.items()
            },
            traffic=Traffic(
                arrival_s=now_s - INTERVAL_S * np.sort(self.random.random(requests))[::-1],
                input_tokens=inputs,
                completed_input_tokens=inputs,
                completed_output_tokens=outputs,
            ),
        )


def deployment(overrides: Mapping[str, Any]) -> Deployment:
    """After the first FIRST intervals."""
    policy = _policy(overrides)
    roles = [Role.MIXED] if MIXED.items() <= overrides.items() else [Role.PREFILL, Role.DECODE]
    fresh = Deployment(policy, np.random.default_rng(1), policy.initial_state(), dict.fromkeys(roles, 10))
    for _ in range(FIRST):
        fresh.decide()
    return fresh


def _policy(overrides: Mapping[str, Any]) -> Policy:
    return make_plan(load_config(None, {**overrides, "planner.policy": "headway"})).policy


def _lengths(random: np.random.Generator, number: int, mean: float, variation: float) -> FloatArray:
    sigma2 = np.log1p(variation**2)
    return np.maximum(1.0, np.rint(random.lognormal(np.log(mean) - sigma2 / 2.0, sigma2**0.5, number)))


def aged(state: HindsightState, intervals: int) -> HindsightState:
    """The state after `intervals`, its own coming again and again."""
    pools = {
        role: replace(memory, history=_repeated(memory.history, intervals))
        for role, memory in state.pools.items()
    }
    return replace(state, pools=pools)


def _repeated(history: PoolHistory, intervals: int) -> PoolHistory:
    long = history
    for tick in range(len(history), intervals):
        place = tick % len(history)
        lost = history.lost[history.starts[place] : history.starts[place + 1]]
        curve = LossCurve(int(history.requests[place]), lost)
        long = long.add(float(history.work[place]), curve, MOST_INTERVALS)
    return long


def main(data: Path | None) -> int:
    """Print decisions by profile and past, and by the number of deployments."""
    print(f"CPU time of a decision; asked: below {LIMIT_S:g} s")
    for name, overrides in _profiles(data).items():
        young = deployment(overrides)
        for hours in PASTS_H:
            old = replace(young, state=aged(young.state, round(hours * 3600.0 / INTERVAL_S)))
            _print(f"{name}, after {hours:g} h", [old.decide() for _ in range(DECISIONS)])
        for together in TOGETHER:
            _print(f"{name}, {together} deployments", list(_many(young, overrides, together)))
    return 0


def _many(like: Deployment, overrides: Mapping[str, Any], together: int) -> Iterator[float]:
    """The same decisions of max(TOGETHER) deployments, so many of them planned in turns."""
    for first in range(0, max(TOGETHER), together):
        seeds = range(first, first + together)
        group = [
            replace(like, policy=_policy(overrides), random=np.random.default_rng(seed)) for seed in seeds
        ]
        for _ in range(ROUNDS):
            yield from [each.decide() for each in group]


def _profiles(data: Path | None) -> Mapping[str, Mapping[str, Any]]:
    """Settings by what the profile is called; without data the one that comes with Headway."""
    if data is None or not (data / "profiles").is_dir():
        split = {"built-in profile": {"slo.ttft_ms": 500, "slo.itl_ms": 20}}
    else:
        split = {
            name: {
                "engine.profile": str(data / "profiles" / directory),
                "slo.ttft_ms": 1e3 * ttft_s,
                "slo.itl_ms": 1e3 * itl_s,
            }
            for name, (directory, ttft_s, itl_s) in PROFILES.items()
        }
    return split | {f"{name} mixed": {**settings, **MIXED} for name, settings in split.items()}


def _print(what: str, taken_s: Sequence[float]) -> None:
    median, most = np.quantile(taken_s, (0.5, 0.99))
    verdict = "met" if most < LIMIT_S else "MISSED"
    print(
        f"  {what:<30}{len(taken_s):>5} decisions: median {1e3 * median:6.0f} ms,"
        f" p99 {1e3 * most:6.0f} ms: {verdict}",
        flush=True,
    )
