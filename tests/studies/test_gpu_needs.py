"""PoolNeeds from replays: fractions of the replicas needed alone, by what each type can keep."""

from dataclasses import replace

import numpy as np
import pytest

from headway.planning.hindsight.learning import STAGES
from headway.planning.replay import LossCurve, Requests
from headway.planning.types import PoolLimits, Role
from headway_studies.gpu_mix.mix import cheapest
from headway_studies.gpu_mix.needs import GpuCandidate, RequestLoad, crossing, pool_needs
from interp import scaled
from tests.planning.replay.replay_cases import engine, load
from tests.studies.mix_cases import supply

BOTH = {Role.PREFILL: PoolLimits(), Role.DECODE: PoolLimits()}
MIXED = {Role.MIXED: PoolLimits()}


def candidate(speed=1.0, ttft_s=1.0, itl_s=0.03, **more):
    like = engine(ttft_s=ttft_s, itl_s=itl_s, **more)
    each = replace(like, profile=scaled(like.profile, speed))
    return GpuCandidate(engine=each, gpus_per_replica=dict.fromkeys(Role, 1))


def alone(pool, name):
    return sum(share.replicas[name] for share in pool.shares)


def test_alike_types_need_as_much_and_one_replica_of_them_costs_the_same():
    requests = load(1, 80.0, 100, 1500, 400)
    needs = pool_needs({"a": candidate(), "b": candidate()}, RequestLoad(requests=requests), BOTH)
    for pool in needs.pools.values():
        assert len(pool.shares) == 1
        assert alone(pool, "a") == alone(pool, "b") > 1
    single = pool_needs({"a": candidate()}, RequestLoad(requests=requests), BOTH)
    assert alone(single.pools["prefill"], "a") == alone(needs.pools["prefill"], "a")
    assert needs.hopeless == single.hopeless


@pytest.mark.parametrize("limits", [BOTH, MIXED])
def test_as_many_whole_replicas_keep_within_the_loss_budget_and_one_less_does_not(limits):
    requests = load(2, 60.0, 200, 1000, 200)
    each = candidate(chunk_tokens=2048 if limits is MIXED else 0)
    needs = pool_needs({"a": each}, RequestLoad(requests=requests, loss_budget=0.02), limits)
    for role in limits:
        count = cheapest(needs.pools, supply(a=1.0)).replicas[role.value]["a"]
        curve = STAGES[role].losses(each.engine, requests, 0, count)
        share = 0.02 / len(limits)
        assert curve.at(count) <= share * curve.requests < curve.at(count - 1)


def test_a_slower_type_needs_more():
    requests = load(3, 80.0, 100, 1500, 400)
    needs = pool_needs({"fast": candidate(), "slow": candidate(0.5)}, RequestLoad(requests=requests), BOTH)
    for pool in needs.pools.values():
        assert alone(pool, "slow") > 1.4 * alone(pool, "fast")


def test_prompts_that_only_the_faster_type_can_keep_are_a_share_of_their_own():
    base = load(4, 80.0, 100, 500, 50)
    inputs = np.where(np.arange(len(base.arrival_s)) % 10 == 0, 9000.0, 500.0)
    requests = Requests(base.arrival_s, inputs, np.full(len(inputs), 50.0))
    both = {"fast": candidate(ttft_s=0.45), "slow": candidate(0.5, ttft_s=0.45)}
    needs = pool_needs(both, RequestLoad(requests=requests), BOTH)
    late = [share for share in needs.pools["prefill"].shares if share.late]
    assert [(share.requests, share.late) for share in late] == [((inputs == 9000).sum(), {"slow"})]
    mix = cheapest(needs.pools, supply(fast=10.0, slow=0.1))
    assert mix.replicas["prefill"]["fast"] >= 1
    assert mix.replicas["prefill"]["slow"] >= 1
    assert "fast" not in mix.replicas["decode"]


def test_what_no_type_can_keep_is_not_judged():
    base = load(5, 10.0, 100, 500, 50)
    inputs = np.where(np.arange(len(base.arrival_s)) < 7, 100_000.0, base.input_tokens)
    requests = Requests(base.arrival_s, inputs, base.output_tokens)
    needs = pool_needs({"a": candidate(ttft_s=0.5)}, RequestLoad(requests=requests), BOTH)
    assert needs.hopeless >= 7
    served = sum(share.requests for share in needs.pools["prefill"].shares)
    assert served == len(inputs) - needs.hopeless


def test_a_type_that_keeps_nothing_is_no_candidate():
    requests = load(6, 20.0, 100, 1000, 100)
    hopeless = candidate(1e-3)
    needs = pool_needs({"good": candidate(), "hopeless": hopeless}, RequestLoad(requests=requests), BOTH)
    for pool in needs.pools.values():
        assert all(set(share.replicas) == {"good"} for share in pool.shares)


def test_requests_before_the_judged_ones_only_warm_up():
    requests = load(7, 40.0, 300, 1000, 100)
    first = int(np.searchsorted(requests.arrival_s, 150.0))
    needs = pool_needs({"a": candidate()}, RequestLoad(requests=requests, judged_from=first), BOTH)
    judged = sum(share.requests for share in needs.pools["decode"].shares)
    assert judged + needs.hopeless == len(requests.arrival_s) - first
    none = RequestLoad(requests=requests, judged_from=len(requests.arrival_s))
    assert all(pool.shares == () for pool in pool_needs({"a": candidate()}, none, BOTH).pools.values())


def test_without_requests_the_minimum_is_all():
    nothing = Requests(np.zeros(0), np.zeros(0), np.zeros(0))
    needs = pool_needs({"a": candidate()}, RequestLoad(requests=nothing), BOTH)
    assert needs.hopeless == 0
    assert cheapest(needs.pools, supply(a=1.0)).replicas == {"prefill": {"a": 1}, "decode": {"a": 1}}


@pytest.mark.parametrize(
    ("lost", "budget", "expected"),
    [
        ([100, 100, 100, 0], 0.01, 3.0),  # nothing is known below the mean work
        ([100, 10, 0], 0.1, 1.0),
        ([100, 10, 0], 0.0, 2.0),
        ([100, 99, 9], 0.3, 1 + np.log(100 / 31) / np.log(10)),
        ([100, 50, 40], 0.1, np.nan),
        ([0], 0.1, 0.0),
    ],
)
def test_where_a_curve_comes_down_to_the_budget(lost, budget, expected):
    assert crossing(LossCurve(lost[0], np.array(lost)), budget) == pytest.approx(expected, nan_ok=True)
