"""What the planning tests share: one small profile, settings, observations, and runs of a policy."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import hypothesis
import numpy as np

from headway.engine import EngineRules
from headway.planning import (
    Decision,
    LoadForecast,
    Observation,
    Policy,
    PolicySettings,
    PoolLimits,
    PoolState,
    Role,
    Slo,
)
from headway.planning.decision_text import reason_lines
from headway.planning.records import DecisionReasons
from interp import DecodeSamples, PrefillSamples, Profile, build_profile

NAN = float("nan")
MAX_KV_TOKENS = 100_000.0


def make_profile(gpus: int = 1) -> Profile:
    """An engine with TTFT = 10 ms + 50 µs per token, ITL = 5 ms + 10 ms * KV usage + 0.1 ms per sequence."""
    isl = np.array([100.0, 1_000.0, 2_000.0, 4_000.0, 8_000.0])
    ttft = 0.010 + isl * 50e-6
    kv, context = (axis.ravel() for axis in np.meshgrid([0.02, 0.2, 0.5, 0.9], [500.0, 1_000.0, 4_000.0]))
    batch = kv * MAX_KV_TOKENS / context
    itl = 0.005 + 0.010 * kv + 0.0001 * batch
    return build_profile(
        PrefillSamples(isl_tokens=isl, ttft_s=ttft, throughput_per_gpu=isl / ttft / gpus),
        DecodeSamples(
            max_kv_tokens=MAX_KV_TOKENS,
            kv_usage=kv,
            context_tokens=context,
            itl_s=itl,
            throughput_per_gpu=batch / itl / gpus,
        ),
        {"gpus_per_engine": gpus},
    )


PROFILE = make_profile()

steady = hypothesis.settings()
"""The suite's own, under a name that studies use."""

POOL = PoolState(desired=3, starting=0, ready=3, draining=0, running=20.0, waiting=4.0)
DISAGGREGATED = {Role.PREFILL: POOL, Role.DECODE: POOL}

OBSERVED = Observation(
    now_s=180.0,
    interval_s=180.0,
    requests=3_600.0,
    isl_tokens=1_000.0,
    osl_tokens=200.0,
    ttft_s=0.090,
    itl_s=0.012,
    request_duration_s=2.5,
    pools=DISAGGREGATED,
)


def observed(**changes: Any) -> Observation:
    return dataclasses.replace(OBSERVED, **changes)


def expected_load(requests: float, isl_tokens: float = 1_000.0, osl_tokens: float = 200.0) -> LoadForecast:
    return LoadForecast(requests=requests, isl_tokens=isl_tokens, osl_tokens=osl_tokens)


def settings(**changes: Any) -> PolicySettings:
    base: dict[str, Any] = {
        "slo": Slo(ttft_s=0.2, itl_s=0.020),
        "limits": limits(prefill=PoolLimits(), decode=PoolLimits()),
        "engine": EngineRules(max_batch_size=64),
    }
    return PolicySettings(**(base | changes))


def limits(**pools: PoolLimits) -> Mapping[Role, PoolLimits]:
    return {Role(name): pool for name, pool in pools.items()}


def first(policy: Policy, observation: Observation = OBSERVED) -> Decision:
    return policy.plan(observation, policy.initial_state())


def run(policy: Policy, observations: Iterable[Observation]) -> list[Decision]:
    state, decisions = policy.initial_state(), []
    for observation in observations:
        decisions.append(policy.plan(observation, state))
        state = decisions[-1].next_state
    return decisions


def why(reasons: Mapping[str, Any]) -> str:
    """The reasons of a decision as `headway decisions --why` shows them."""
    return "\n".join(reason_lines(DecisionReasons.model_validate(reasons)))
