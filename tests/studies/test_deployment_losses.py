"""What the policy says it would lose with how many GPUs, and what it does with those that it is granted."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.planning import PoolLimits, PoolState, Role, make_policy
from headway.planning.deciding import gpus
from headway.planning.demands import PoolDemand, decide_within, demanded, gpu_losses
from headway.planning.hindsight.choice import choose
from headway.planning.hindsight.learning import Traffic
from headway.planning.sharing import Demand, Grant, Standing, share
from tests.planning.planning_cases import NAN, PROFILE, limits, observed, settings, steady

INTERVAL_S = 30.0
TICKS = 30
LIMITS = limits(prefill=PoolLimits(gpus_per_replica=1), decode=PoolLimits(gpus_per_replica=2))
POLICY = make_policy("headway", settings(limits=LIMITS), PROFILE)


def observation(tick, rate, desired):
    """An interval of Poisson arrivals, with `desired` replicas of each role ready; NaN is not measured."""
    rng = np.random.default_rng(tick)
    count = 0 if np.isnan(rate) else rng.poisson(rate * INTERVAL_S)
    lengths = np.full(count, 1000.0)
    traffic = Traffic(
        arrival_s=(tick + np.sort(rng.uniform(0.0, 1.0, count))) * INTERVAL_S,
        input_tokens=lengths,
        completed_input_tokens=lengths,
        completed_output_tokens=np.full(count, 100.0),
    )
    return observed(
        now_s=(tick + 1) * INTERVAL_S,
        interval_s=INTERVAL_S,
        requests=NAN if np.isnan(rate) else float(count),
        pools={
            role: PoolState(desired=ready, starting=0, ready=ready, draining=0, running=1.0, waiting=0.0)
            for role, ready in desired.items()
        },
        traffic=None if np.isnan(rate) else traffic,
    )


def learnt(rate):
    """Targets and state after TICKS intervals in which replicas were there at once."""
    state, targets = POLICY.initial_state(), {Role.PREFILL: 2, Role.DECODE: 2}
    for tick in range(TICKS):
        decision = POLICY.plan(observation(tick, rate, targets), state)
        state, targets = decision.next_state, decision.targets
    return targets, state


@pytest.fixture(scope="module")
def busy():
    return learnt(60.0)


@pytest.fixture(scope="module")
def assessed(busy):
    targets, state = busy
    return POLICY.assess(observation(TICKS, 60.0, targets), state)


def test_losses_reach_from_everything_to_what_may_be_lost(assessed):
    losses = demanded(POLICY, assessed)
    assert losses.minimum_gpus == 3
    assert losses.lost_rps[0] == pytest.approx(assessed.rate_rps)
    assert losses.lost_rps[-1] <= 0.01 * assessed.rate_rps
    assert assessed.rate_rps == pytest.approx(60.0, rel=0.1)


def test_without_a_grant_deciding_is_planning(busy, assessed):
    _, state = busy
    assert POLICY.decide(assessed).reasons == POLICY.plan(assessed.observation, state).reasons


def test_a_grant_of_all_that_is_wanted_changes_nothing(assessed):
    wanted = demanded(POLICY, assessed).wanted_gpus
    granted = decide_within(POLICY, assessed, Grant(gpus=wanted, wanted=wanted, ahead={}))
    assert granted.targets == POLICY.decide(assessed).targets
    assert gpus(granted.targets, LIMITS) == wanted


@steady
@given(st.integers(0, 60))
def test_targets_stay_within_the_grant(assessed, more):
    losses = demanded(POLICY, assessed)
    granted = min(losses.minimum_gpus + more, losses.wanted_gpus)
    decision = decide_within(POLICY, assessed, Grant(gpus=granted, wanted=losses.wanted_gpus, ahead={}))
    assert losses.minimum_gpus <= gpus(decision.targets, LIMITS) <= granted


def test_the_decision_says_what_it_lacks_and_who_has_it(assessed):
    losses = demanded(POLICY, assessed)
    other = Demand(name="chat", losses=losses, standing=Standing(priority=2))
    grants = share([Demand(name="batch", losses=losses), other], losses.wanted_gpus + 5)
    reasons = decide_within(POLICY, assessed, grants["batch"]).reasons
    words = f"holds 5 of {losses.wanted_gpus} GPUs wanted; {losses.wanted_gpus - 5} went to chat (priority 2)"
    assert words in reasons["summary"]
    assert f"shared budget: {words}" in reasons["warnings"]
    none = {"kept_free": {}, "above_ceiling": 0, "sleepers": {}, "unplaced": ""}
    assert reasons["grant"] == {
        "gpus": 5,
        "wanted": losses.wanted_gpus,
        "ahead": dict(grants["batch"].ahead),
        **none,
    }
    plain = decide_within(POLICY, assessed, grants["chat"]).reasons
    assert "went to" not in plain["summary"]
    assert not [text for text in plain["warnings"] if text.startswith("shared budget")]


def test_an_interval_without_data_asks_for_what_is_held(busy):
    targets, state = busy
    blind = POLICY.assess(observation(TICKS, NAN, targets), state)
    assert demanded(POLICY, blind).wanted_gpus == gpus(targets, LIMITS)
    assert (np.diff(demanded(POLICY, blind).lost_rps)[-2:] < 0).all()


def test_a_policy_that_never_saw_anything_asks_for_what_there_is():
    desired = {Role.PREFILL: 3, Role.DECODE: 2}
    blind = POLICY.assess(observation(0, NAN, desired), POLICY.initial_state())
    assert demanded(POLICY, blind).wanted_gpus == gpus(desired, LIMITS)
    assert demanded(POLICY, blind).lost_rps[0] > 0.0


def test_its_own_budget_bounds_what_is_asked_for(assessed):
    bounded = replace(POLICY, settings=replace(POLICY.settings, max_gpu_budget=7))
    assert demanded(bounded, assessed).wanted_gpus <= 7


def test_a_demand_says_what_is_held_and_what_a_move_costs(busy, assessed):
    losses = demanded(POLICY, assessed)
    assert losses.held_gpus == gpus(busy[0], LIMITS)
    assert losses.moving == pytest.approx(assessed.lead_s / (assessed.lead_s + POLICY.own.hold_s))


def test_what_is_not_known_is_lost_in_equal_parts():
    pool = PoolDemand(limits=PoolLimits(), wanted=5, extra=0, queued=0.2, option=None, tested=None)
    losses = gpu_losses({Role.MIXED: pool}, rate_rps=10.0)
    assert losses.lost_rps == pytest.approx([8.0, 6.0, 4.0, 2.0, 0.0])


@pytest.mark.parametrize("queued", [0.0, 0.2, 1.0])
def test_the_queue_takes_its_replicas_for_its_part_of_the_time(assessed, queued):
    """Two of the replicas work off what waits: until then the losses of what comes are those of two fewer."""
    tested = assessed.backtests[Role.PREFILL]
    option = choose({Role.PREFILL: tested}, {Role.PREFILL: 1}, 0.01)[Role.PREFILL]
    known = {"limits": PoolLimits(), "wanted": option.replicas + 2, "option": option, "tested": tested}
    plain = PoolDemand(extra=0, queued=queued, **known).lost()
    lost = PoolDemand(extra=2, queued=queued, **known).lost()
    fewer = np.array([1.0, 1.0, *plain[:-2]])
    assert lost == pytest.approx((1.0 - queued) * plain + queued * fewer)
