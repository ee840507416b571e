"""What every policy promises: pure, within limits and budget, JSON-able reasons, no crash on missing data."""

import copy
import json
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st
from planning_cases import OBSERVED, PROFILE, expected_load, first, limits, observed, settings

from headway.config import load_config
from headway.planning import (
    LoadForecast,
    PlanningError,
    PoolLimits,
    PoolState,
    Role,
    known,
    make_policy,
    policy_settings,
)
from headway.planning.baselines import StaticFleet
from headway.planning.deciding import gpus
from headway.planning.records import DecisionReasons

BOUNDS = limits(
    prefill=PoolLimits(min_replicas=1, max_replicas=12, gpus_per_replica=2),
    decode=PoolLimits(min_replicas=2, max_replicas=20, gpus_per_replica=1),
)
BUDGET = 24
SECTIONS = {"static": StaticFleet(prefill=3, decode=4)}

count, requests = (st.one_of(st.just(float("nan")), st.just(0.0), st.floats(0, most)) for most in (1e7, 1e5))
tokens = st.one_of(st.just(float("nan")), st.floats(1, 2e5))
seconds = st.one_of(st.just(float("nan")), st.floats(1e-4, 1e3))
replicas = st.integers(0, 30)
pool = st.builds(
    PoolState,
    desired=replicas,
    starting=replicas,
    ready=replicas,
    draining=replicas,
    running=count,
    waiting=count,
)
forecast = st.none() | st.builds(LoadForecast, requests=requests, isl_tokens=tokens, osl_tokens=tokens)
observations = st.builds(
    observed,
    requests=requests,
    isl_tokens=tokens,
    osl_tokens=tokens,
    ttft_s=seconds,
    itl_s=seconds,
    request_duration_s=seconds,
    forecast=forecast,
    pools=st.fixed_dictionaries({Role.PREFILL: pool, Role.DECODE: pool}),
)


def make(name):
    return make_policy(name, settings(limits=BOUNDS, max_gpu_budget=BUDGET, sections=SECTIONS), PROFILE)


def later(observation, tick):
    return observed(
        **{name: getattr(observation, name) for name in type(observation).__slots__} | {"now_s": 180.0 * tick}
    )


def turned(mapping):
    return dict(reversed(mapping.items()))


@pytest.fixture(params=known())
def name(request):
    return request.param


@pytest.mark.parametrize("policy_name", known())
@given(st.lists(observations, min_size=1, max_size=4))
def test_targets_stay_within_limits_and_budget_and_reasons_are_json(policy_name, sequence):
    policy = make(policy_name)
    state = policy.initial_state()
    for tick, observation in enumerate(sequence):
        decision = policy.plan(later(observation, tick), state)
        state = decision.next_state
        for role, bounds in BOUNDS.items():
            assert bounds.min_replicas <= decision.targets[role] <= bounds.max_replicas
        assert gpus(decision.targets, BOUNDS) <= BUDGET
        assert json.loads(json.dumps(decision.reasons, allow_nan=False)) == decision.reasons
        assert decision.reasons["targets"] == {str(role): n for role, n in decision.targets.items()}
        reasons = DecisionReasons.model_validate(decision.reasons)
        assert (reasons.policy, bool(reasons.summary)) == (policy_name, True)


@pytest.mark.parametrize("policy_name", known())
@given(observations, observations)
def test_a_decision_is_a_function_of_its_arguments(policy_name, earlier, now):
    policy = make(policy_name)
    state = first(policy, earlier).next_state
    kept = copy.deepcopy(state)
    one = policy.plan(later(now, 1), state)
    other = make(policy_name).plan(later(now, 1), pickle.loads(pickle.dumps(state)))
    assert state == kept or repr(state) == repr(kept)
    assert one.targets == other.targets
    assert json.dumps(one.reasons) == json.dumps(other.reasons)
    assert repr(one.next_state) == repr(other.next_state)


@pytest.mark.parametrize("policy_name", known())
@given(observations)
def test_the_order_of_pools_in_mappings_does_not_matter(policy_name, observation):
    straight = first(make(policy_name), observation)
    other = make_policy(
        policy_name, settings(limits=turned(BOUNDS), max_gpu_budget=BUDGET, sections=SECTIONS), PROFILE
    )
    mirrored = later(observation, 1)
    mirrored = observed(
        **{n: getattr(mirrored, n) for n in type(mirrored).__slots__} | {"pools": turned(observation.pools)}
    )
    again = other.plan(mirrored, other.initial_state())
    assert list(again.targets) == list(straight.targets)
    assert json.dumps(again.reasons) == json.dumps(straight.reasons)


@given(st.floats(1, 1e6), st.floats(1, 10), st.floats(100, 20_000), st.floats(1, 2_000))
def test_more_load_of_the_same_lengths_never_asks_for_fewer_replicas(requests, factor, isl, osl):
    policy = make_policy(
        "reference",
        settings(limits=limits(prefill=PoolLimits(), decode=PoolLimits()), no_correction=True),
        PROFILE,
    )
    less = first(policy, observed(forecast=expected_load(requests, isl, osl))).targets
    more = first(policy, observed(forecast=expected_load(requests * factor, isl, osl))).targets
    assert all(more[role] >= less[role] for role in less)


def test_the_summary_is_one_line_for_people(name):
    summary = first(make(name)).reasons["summary"]
    assert summary.endswith(".")
    assert "\n" not in summary
    assert "decode" in summary.lower()


def test_an_observation_without_a_pool_is_an_error(name):
    with pytest.raises(PlanningError, match=r"observation\.pools: no entry for decode"):
        first(make(name), observed(pools={Role.PREFILL: OBSERVED.pools[Role.PREFILL]}))


@pytest.mark.parametrize(
    ("field", "value"), [("interval_s", 0.0), ("interval_s", float("nan")), ("now_s", float("nan"))]
)
def test_an_observation_without_time_is_an_error(name, field, value):
    with pytest.raises(PlanningError, match=rf"observation\.{field}"):
        first(make(name), observed(**{field: value}))


def test_an_unknown_policy_lists_the_known_ones():
    with pytest.raises(PlanningError, match="unknown policy 'magic'; known: headway, reference"):
        make_policy("magic", settings(), PROFILE)


def test_settings_come_from_the_configuration():
    config = load_config(
        None,
        {
            "slo.ttft_ms": 250,
            "pools.decode.gpus_per_replica": 4,
            "planner.max_gpu_budget": 12,
            "planner.static.decode": 2,
            "planner.threshold.target_ongoing.decode": 64,
        },
    )
    made = policy_settings(config, PROFILE)
    assert made.slo.ttft_s == pytest.approx(0.25)
    assert made.limits[Role.DECODE].gpus_per_replica == 4
    assert made.limits[Role.PREFILL].gpus_per_replica == 1
    assert first(make_policy("static", made)).targets == {Role.PREFILL: 1, Role.DECODE: 2}
    assert first(make_policy("threshold", made)).reasons["threshold"]["decode"]["target_ongoing"] == 64.0


@pytest.mark.parametrize(
    ("policy", "pace_s"), [("headway", 30.0), ("reference", 180.0), ("static", 180.0), ("threshold", 10.0)]
)
def test_the_interval_is_the_policys_own_unless_it_is_set(policy, pace_s):
    for key, wanted in (("planner.policy", pace_s), ("planner.adjustment_interval_s", 45.0)):
        own_key = "planner.threshold.interval_s" if policy == "threshold" else key
        overrides = {"planner.policy": policy} | ({} if wanted == pace_s else {own_key: wanted})
        config = load_config(None, overrides)
        assert make_policy(policy, policy_settings(config, PROFILE), PROFILE).interval_s == wanted


@pytest.mark.parametrize(
    ("wrong", "message"), [({"limits": {}}, "pools"), ({"interval_s": 0.0}, "adjustment_interval_s")]
)
def test_settings_are_valid_once_constructed(wrong, message):
    with pytest.raises(PlanningError, match=message):
        settings(**wrong)
