"""How much of a fixed fleet a trace asks for: what "70 % load" means in comparisons of routings.

    demand(role)   GPU-seconds that the trace's work needs at the best throughput under the SLO (the fluid
                   bound of `results`, prompts and output apart; no prefix reuse)
    load           the largest of demand / (replicas × GPUs per replica × duration) over the pools; a mixed
                   replica does both works, so there the demands add up

At 100 % a fleet that never idles and batches perfectly would just keep up, so real fleets are overloaded
from somewhat below. The load is proportional to the rate, which gives the rate scale for a wanted load.
"""

from collections.abc import Mapping

import numpy as np

from headway.config.roles import Role
from headway.planning.types import PoolLimits, Slo
from headway.simulation.fluid import FluidBound
from headway.workload import Trace
from interp import Profile


def demand_gpu_s(
    trace: Trace, profile: Profile, slo: Slo, *, shared_iterations: bool
) -> Mapping[Role, float]:
    """GPU-seconds of prefill and of decode work in `trace`, as it is read."""
    prefill = FluidBound(profile, slo, shared_iterations=shared_iterations)
    both = FluidBound(profile, slo, shared_iterations=shared_iterations)
    for chunk in trace.chunks():
        context = chunk.input_tokens + chunk.output_tokens / 2.0
        prefill.add(chunk.input_tokens, np.zeros_like(chunk.output_tokens), context)
        both.add(chunk.input_tokens, chunk.output_tokens - 1, context)
    return {Role.PREFILL: prefill.gpu_seconds, Role.DECODE: both.gpu_seconds - prefill.gpu_seconds}


def offered_load(
    demand: Mapping[Role, float],
    fleet: Mapping[Role, int],
    pools: Mapping[Role, PoolLimits],
    duration_s: float,
) -> float:
    """The load of the busiest pool; 1 is 100 %."""
    have = {role: count * pools[role].gpus_per_replica * duration_s for role, count in fleet.items()}
    if Role.MIXED in have:
        return sum(demand.values()) / have[Role.MIXED]
    return max(demand[role] / have[role] for role in have)
