"""Before the first tick: the policy is rehearsed, so that it is compiled, and learns of the warm-up trace."""

import logging
from dataclasses import replace
from typing import Any

from actors.collector.interval import Health, HealthStatus, Latency, Measured
from actors.planning.context import PlannerContext, PlannerState, PolicyInForce
from actors.planning.log import PlannerMemory
from actors.planning.tick import observe
from headway.config import HeadwayConfig
from headway.planning import Decision, Observation, Policy
from headway.planning.deciding import call, decide
from headway.planning.forecasting import LearnsFromPast, first_state, read_past
from headway.workload import TraceError, TraceOptions, open_trace
from predictors import PredictorError

logger = logging.getLogger(__name__)

REHEARSALS = 3


async def rehearse(context: PlannerContext, state: PlannerState) -> None:
    """Plan for made-up traffic, and forget it; PlanningError or ActorFailure as a tick would raise them.

    Several times: a policy that learns uses, and compiles, more of itself once it has a past.
    """
    in_force, now_s = state.policy.current(), context.clock()
    typical = Measured(
        start_s=now_s,
        end_s=now_s,
        health=Health(status=HealthStatus.OK),
        requests=1.0,
        isl_tokens=1000.0,
        osl_tokens=100.0,
        ttft_s=Latency(mean=0.1),
        itl_s=Latency(mean=0.01),
    )
    observation = observe(typical, state.counts, in_force.policy.interval_s)
    await context.compute(lambda: _rehearsed(in_force, observation))


async def recalled(context: PlannerContext, policy: PolicyInForce) -> PlannerMemory:
    """The memory of a planner that has learnt of the warm-up trace; one without a past where that fails."""
    config, now_s = context.settings.config, context.clock()
    try:
        state = await context.compute(lambda: _first_state(config, policy.policy, now_s))
    except (TraceError, PredictorError) as error:
        logger.warning("the warm-up trace cannot be learnt: %s", error)
        state = call(policy.policy.name, policy.policy.initial_state)
    return PlannerMemory(policy=config.planner.policy, state=state)


def _first_state(config: HeadwayConfig, policy: Policy, now_s: float) -> Any:  # noqa: ANN401
    source, past = config.planner.load_predictor_warmup_trace, None
    if source is not None and isinstance(policy, LearnsFromPast):
        with open_trace(source, TraceOptions()) as trace:
            past = read_past(trace, policy.interval_s, policy.past_intervals)
    return first_state(policy, past, config.planner, now_s)


def _rehearsed(in_force: PolicyInForce, observation: Observation) -> Decision:
    policy, bounds = in_force.policy, in_force.settings.bounds
    state = call(policy.name, policy.initial_state)
    decision = decide(policy, observation, state, bounds)
    for tick in range(1, REHEARSALS):
        later = replace(observation, now_s=observation.now_s + tick * policy.interval_s)
        decision = decide(policy, later, decision.next_state, bounds)
    return decision
