"""Slow replicas in the plan: what they lack is held on top, and said; without any nothing changes."""

import json
from dataclasses import replace

import pytest
from planning_cases import PROFILE, observed, run, settings

from headway.engine import EngineRules
from headway.planning import PoolState, Role, Slo, make_policy
from headway.planning.hindsight.needs import as_typical, slow_replicas
from headway.planning.replay import ReplayEngine

ENGINE = ReplayEngine.of(PROFILE, Slo(ttft_s=0.2, itl_s=0.020), EngineRules(max_batch_size=64))
POOLS = {role: PoolState(desired=8, starting=0, ready=8, draining=0) for role in (Role.PREFILL, Role.DECODE)}


def found(**slow):
    return slow_replicas(
        observed(pools=POOLS, slow={Role(name): each for name, each in slow.items()}), ENGINE
    )


def test_a_slow_prefill_replica_computes_as_much_less():
    each = found(prefill=(2.0, 2.0, 2.0))[Role.PREFILL]
    assert (each.worth, each.lacking) == ((0.5, 0.5, 0.5), 2)
    # A mean prompt takes 60 ms of the 200 ms that it has.
    assert found(prefill=(4.0,))[Role.PREFILL].worth == (0.0,)


def test_a_slow_decode_replica_holds_fewer_requests_as_fast():
    """ITL 5 ms and more: at four times that no batch keeps 20 ms."""
    (worth,) = found(decode=(1.5,))[Role.DECODE].worth
    assert 0.1 < worth < 1 / 1.5
    assert found(decode=(4.0,))[Role.DECODE].worth == (0.0,)


def test_fast_replicas_lack_nothing():
    assert found(decode=(0.5,)) == {}


def test_without_lengths_a_replica_is_worth_as_much_as_it_is_fast():
    nothing = float("nan")
    seen = observed(pools=POOLS, isl_tokens=nothing, osl_tokens=nothing, slow={Role.DECODE: (4.0,)})
    assert slow_replicas(seen, ENGINE)[Role.DECODE].worth == (0.25,)


def test_a_fleet_counts_for_what_it_is_worth():
    slow = found(prefill=(2.0, 2.0))
    typical = as_typical(POOLS, slow)
    assert (typical[Role.PREFILL].ready, typical[Role.DECODE].ready) == (7, 8)
    assert as_typical(POOLS, {}) == POOLS


def planned(slow):
    policy = make_policy("headway", settings(engine=EngineRules(max_batch_size=64)), PROFILE)
    seen = observed(interval_s=30.0, requests=600.0, pools=POOLS, slow=slow)
    return run(policy, [replace(seen, now_s=30.0 * number) for number in range(1, 9)])[-1]


@pytest.mark.parametrize("role", [Role.PREFILL, Role.DECODE])
def test_the_plan_holds_what_they_lack_and_says_so(role):
    other = Role.DECODE if role is Role.PREFILL else Role.PREFILL
    before, after = planned({}), planned({role: (2.0, 2.0)})
    needs = [
        {key: each.reasons["needs"][key]["replicas"] for key in Role if key in POOLS}
        for each in (before, after)
    ]
    slow = after.reasons["slow"][role]
    assert needs[1][role] == needs[0][role] + slow["lacking"]
    assert needs[1][other] == needs[0][other]
    assert slow["lacking"] >= 1
    assert f"{role}: 2 of 8 replicas take 2.0 times as long as the others" in " ".join(
        after.reasons["warnings"]
    )
    assert "to make up for slow replicas" in after.reasons["summary"]
    assert "slow" not in before.reasons
    assert "slow" not in before.reasons["inputs"]
    json.dumps(after.reasons)
