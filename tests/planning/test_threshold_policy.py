"""The threshold policy in virtual time: thresholds, the two delays, and missing load."""

import dataclasses
import json

import pytest
from planning_cases import DISAGGREGATED, NAN, POOL, first, limits, observed, settings

from headway.planning import PlanningError, PoolLimits, Role, make_policy
from headway.planning.baselines import TargetOngoing, ThresholdSettings, Wish, WishHistory

DECODE, MIXED = Role.DECODE, Role.MIXED


def threshold(up=30.0, down=600.0, **changes):
    targets = TargetOngoing(prefill=2, decode=10, mixed=10)
    delays = ThresholdSettings(
        target_ongoing=targets, upscale_delay_s=up, downscale_delay_s=down, interval_s=10
    )
    bounds = limits(prefill=PoolLimits(max_replicas=50), decode=PoolLimits(max_replicas=50))
    return make_policy(
        "threshold", settings(**({"sections": {"threshold": delays}, "limits": bounds} | changes))
    )


def at(now_s, ongoing, **load):
    busy = dataclasses.replace(POOL, **({"running": ongoing, "waiting": 0.0} | load))
    still = dataclasses.replace(POOL, running=6.0, waiting=0.0)
    return observed(now_s=now_s, interval_s=10.0, pools=DISAGGREGATED | {DECODE: busy, Role.PREFILL: still})


def decode_targets(policy, loads):
    """Decode targets, one per 10 s, for the ongoing requests of each tick. 3 replicas are there at first."""
    state, targets = policy.initial_state(), []
    for tick, ongoing in enumerate(loads):
        decision = policy.plan(at(10.0 * tick, ongoing), state)
        state = decision.next_state
        targets.append(decision.targets[DECODE])
    return targets


def test_running_and_waiting_count_against_the_target_per_role():
    decision = first(threshold(up=0.0), at(0.0, NAN, running=41.0, waiting=10.0))
    assert decision.targets == {Role.PREFILL: 3, DECODE: 6}
    assert decision.reasons["threshold"]["decode"] == {"ongoing": 51.0, "target_ongoing": 10.0, "wish": 6}


@pytest.mark.parametrize(
    ("delays", "loads", "expected"),
    [
        # More is wanted for the whole delay before it is given; each step waits, and a dip begins anew.
        ({}, [50, 60, 70, 80, 80], [3, 3, 3, 8, 8]),
        ({}, [50, 50, 50, 50, 80, 80, 80, 80], [3, 3, 3, 5, 5, 5, 5, 8]),
        ({}, [50, 50, 30, 50, 50, 50, 50], [3, 3, 3, 3, 3, 3, 5]),
        # Fewer is the largest wish of the window, to which the count found at first belongs.
        ({"down": 40.0}, [30, 10, 20, 10, 10, 10, 10, 10], [3, 3, 3, 3, 2, 2, 1, 1]),
        ({"down": 30.0}, [10, 10, 10, 10], [3, 3, 3, 1]),
        ({"down": 20.0}, [0, 0, 0], [3, 3, 1]),
        ({"down": 5.0}, [30, 10, 10], [3, 1, 1]),
        ({"up": 0.0, "down": 0.0}, [30, 70, 10, 0, 41], [3, 7, 1, 1, 5]),
        # Load that is not measured holds, and begins both delays anew.
        ({}, [50, 50, 50, NAN, 50, 50, 50, 50], [3, 3, 3, 3, 3, 3, 3, 5]),
        ({"down": 30.0}, [10, 10, NAN, 10, 10, 10], [3, 3, 3, 3, 3, 1]),
    ],
)
def test_targets_follow_the_load_after_the_delays(delays, loads, expected):
    assert decode_targets(threshold(**delays), loads) == expected


@pytest.mark.parametrize("load", [{"running": NAN}, {"waiting": NAN}, {"running": -5.0}])
def test_half_a_load_is_no_load(load):
    decision = first(threshold(up=0.0), at(0.0, 500.0, **load))
    assert decision.targets[DECODE] == 3
    assert decision.reasons["held"] == ["decode"]
    assert "decode: load not measured" in decision.reasons["warnings"]


def test_limits_and_budget_bound_the_targets():
    bounds = limits(prefill=PoolLimits(), decode=PoolLimits(max_replicas=9))
    assert first(threshold(up=0.0, limits=bounds), at(0.0, 1e12)).targets[DECODE] == 9
    shared = first(threshold(up=0.0, limits=bounds, max_gpu_budget=8), at(0.0, 1e12))
    assert shared.targets == {Role.PREFILL: 2, DECODE: 6}
    assert shared.reasons["limits"] == ["gpu_budget"]


def test_a_mixed_pool():
    policy = threshold(up=0.0, limits=limits(mixed=PoolLimits()))
    decision = first(policy, observed(pools={MIXED: dataclasses.replace(POOL, running=95.0)}))
    assert decision.targets == {MIXED: 10}


def test_the_reasons_hold_what_the_decision_started_from():
    """The decision follows from `memory`, `threshold`, `delays` and `now_s` of the reasons alone."""
    policy, state = threshold(down=40.0), None
    for tick, ongoing in enumerate([30, 10, 20, 90, 90, 90, 90, 10, 10, 10, 10, 10]):
        decision = policy.plan(at(10.0 * tick, ongoing), state or policy.initial_state())
        state = decision.next_state
        reasons = json.loads(json.dumps(decision.reasons, allow_nan=False))
        known = reasons["memory"]["decode"]
        wishes = tuple(Wish(**wish) for wish in known.pop("wishes"))
        wish = Wish(at_s=reasons["inputs"]["now_s"], replicas=reasons["threshold"]["decode"]["wish"])
        memory = WishHistory(**known, wishes=wishes).observe(wish, reasons["delays"]["downscale_delay_s"])
        assert memory.decide(wish, reasons["delays"]["upscale_delay_s"]) == state.pools[DECODE]
        assert reasons["targets"]["decode"] == state.pools[DECODE].target


def test_the_memory_stays_small():
    policy = threshold()
    state = policy.initial_state()
    for tick in range(1_000):
        state = policy.plan(at(10.0 * tick, 500.0 - tick % 200), state).next_state
    assert len(state.pools[DECODE].wishes) <= 61


def test_minimums_beyond_the_budget_are_refused():
    with pytest.raises(PlanningError, match="max_gpu_budget"):
        threshold(max_gpu_budget=1)
