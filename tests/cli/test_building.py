"""From settings and trace to a scenario: what fills gaps, the first fleet, and what no fleet can give."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from headway.config import load_config, resolve_profile
from headway.engine import MIXED_CHUNK_TOKENS, EngineRules, engine_rules
from headway.planning import LoadForecast, PlanningError, Role, Slo
from headway.simulation.build import make_plan, make_scenario, run, warm_up
from headway.simulation.demand import IdleEngine, first_interval, reach, requirements, size_fleet
from headway.workload import open_trace
from interp import Profile, ProfileError, load_profile

PROFILE = "llama-3.1-8b_h100_tp1"
LOAD = "steady:rate_rps=50,duration_s=600,input_tokens=1000,output_tokens=100,input_cv=0,output_cv=0,seed=2"


@pytest.fixture(scope="module")
def profile() -> Profile:
    return load_profile(resolve_profile(PROFILE))


def with_meta(profile: Profile, **meta: Any) -> Profile:
    return replace(profile, meta=meta)


def test_batch_limit_is_the_settings_then_the_profile(profile: Profile) -> None:
    stated = engine_rules(load_config(None, {"engine.max_batch_size": 17}), profile)
    assert stated.max_batch_size == 17
    assert engine_rules(load_config(), profile).max_batch_size == profile.meta["max_batch_size"]
    silent = with_meta(profile)
    assert engine_rules(load_config(), silent).max_batch_size == round(silent.decode.largest_batch)


def test_kv_bytes_are_the_settings_then_the_profile_then_the_default(profile: Profile) -> None:
    stated = load_config(None, {"engine.kv_transfer.bytes_per_token": 99})
    assert engine_rules(stated, with_meta(profile, kv_bytes_per_token=7)).kv_bytes_per_token == 99
    assert engine_rules(load_config(), with_meta(profile, kv_bytes_per_token=7)).kv_bytes_per_token == 7
    assert engine_rules(load_config(), with_meta(profile)).kv_bytes_per_token == 131_072


@pytest.mark.parametrize("value", ["many", 0, -1, True, float("nan"), 1e300, 10**400])
def test_kv_bytes_of_a_profile_are_checked(profile: Profile, value: object) -> None:
    with pytest.raises(ProfileError, match=r"meta\.json: kv_bytes_per_token"):
        engine_rules(load_config(), with_meta(profile, kv_bytes_per_token=value))


def test_a_batch_too_large_to_simulate_is_refused(profile: Profile) -> None:
    huge = replace(profile, decode=replace(profile.decode, largest_batch=1e9))
    with pytest.raises(ProfileError, match=r"1000000000 requests .* engine\.max_batch_size"):
        engine_rules(load_config(), huge)
    assert engine_rules(load_config(None, {"engine.max_batch_size": 64}), huge).max_batch_size == 64


def test_time_scale_is_the_speed_of_the_engines(profile: Profile) -> None:
    slow = make_plan(load_config(None, {"engine.time_scale": 0.25}))
    assert slow.profile.prefill.ttft_s(1000) == pytest.approx(4 * profile.prefill.ttft_s(1000), rel=1e-12)
    assert slow.profile.decode.itl_s(0.3, 1000) == pytest.approx(
        4 * profile.decode.itl_s(0.3, 1000), rel=1e-12
    )
    assert slow.engine == make_plan(load_config()).engine
    assert make_plan(load_config()).profile.notes == profile.notes


def test_slower_engines_make_longer_requests_and_larger_fleets() -> None:
    loose = {"slo.ttft_ms": 3000, "slo.itl_ms": 200, "planner.predictor": "constant"}
    results = []
    for scale in (1.0, 0.25):
        plan = make_plan(load_config(None, {**loose, "engine.time_scale": scale}))
        with open_trace(LOAD) as trace:
            results.append(run(plan, make_scenario(plan, trace), trace).report().document())
    plain, slow = results
    assert slow["ttft_s"]["mean"] > 3 * plain["ttft_s"]["mean"]
    assert slow["gpu_hours"] > 1.5 * plain["gpu_hours"]


def test_only_mixed_replicas_chunk_by_default(profile: Profile) -> None:
    assert engine_rules(load_config(), profile).chunk_tokens == 0
    mixed = {"pools": {"mixed": {}}, "planner.policy": "threshold"}
    assert engine_rules(load_config(None, mixed), profile).chunk_tokens == MIXED_CHUNK_TOKENS
    chosen = load_config(None, {**mixed, "engine.chunk_tokens": 512})
    assert engine_rules(chosen, profile).chunk_tokens == 512


def test_first_interval_is_counted_exactly() -> None:
    with open_trace(LOAD) as trace:
        load, span_s = first_interval(trace, 180.0)
        arrivals = np.concatenate([chunk.arrival_s for chunk in trace.chunks()])
    assert span_s == 180.0
    assert load.requests == np.count_nonzero(arrivals < 180.0)
    assert (load.isl_tokens, load.osl_tokens) == (1000.0, 100.0)


def test_first_interval_of_a_short_trace_is_all_of_it() -> None:
    with open_trace("steady:rate_rps=5,duration_s=30,seed=1") as trace:
        load, span_s = first_interval(trace, 180.0)
        assert (load.requests, span_s) == (trace.request_count, 30.0)


def test_fleet_covers_the_demand_and_no_more() -> None:
    plan = make_plan(load_config(None, {"planner.adjustment_interval_s": 60}))
    load = LoadForecast(requests=6000.0, isl_tokens=1000.0, osl_tokens=100.0)
    need = requirements(load, 60.0, plan.settings, plan.profile)
    fleet = size_fleet(load, 60.0, plan.settings, plan.profile)
    assert all(fleet[role] - 1 < need[role] <= fleet[role] for role in fleet)


def test_fleet_of_a_quiet_start_is_the_minimum() -> None:
    plan = make_plan(load_config(None, {"pools.prefill.min_replicas": 2}))
    load = LoadForecast(requests=0.0, isl_tokens=0.0, osl_tokens=0.0)
    fleet = size_fleet(load, 60.0, plan.settings, plan.profile)
    assert fleet == {Role.PREFILL: 2, Role.DECODE: 1}


def test_mixed_fleet_does_both_works() -> None:
    load = LoadForecast(requests=6000.0, isl_tokens=1000.0, osl_tokens=100.0)
    split, mixed = (
        make_plan(load_config(None, {"planner.policy": "threshold", **pools}))
        for pools in ({}, {"pools": {"mixed": {}}})
    )
    apart = requirements(load, 60.0, split.settings, split.profile)
    together = requirements(load, 60.0, mixed.settings, mixed.profile)
    assert together[Role.MIXED] == pytest.approx(sum(apart.values()))


MIXED = {"pools.mixed.max_replicas": 40, "planner.policy": "static", "slo.ttft_ms": 500, "slo.itl_ms": 12}


def sized(trace, **overrides):
    """The fleet of mixed replicas with which policies begin on `trace`."""
    plan = make_plan(load_config(None, {**MIXED, "planner.policy": "threshold", **overrides}))
    with open_trace(trace) as opened:
        return make_scenario(plan, opened).initial[Role.MIXED]


@pytest.mark.parametrize("chunk_tokens", [256, 2048])
def test_mixed_replicas_to_begin_with_keep_the_promise_and_one_less_does_not(chunk_tokens: int) -> None:
    """Both work at once on a mixed replica, so sums of averages would be too few."""
    load, chunks = (
        "steady:rate_rps=60,duration_s=180,seed=1,input_cv=1",
        {"engine.chunk_tokens": chunk_tokens},
    )
    replicas = sized(load, **chunks)
    attained = []
    for count in (replicas, replicas - 1):
        plan = make_plan(load_config(None, {**MIXED, **chunks, "planner.static.mixed": count}))
        with open_trace(load) as trace:
            tally = run(plan, make_scenario(plan, trace), trace).tally
        attained.append(tally.met / tally.requests)
    assert replicas > 2
    assert attained[0] >= 0.985
    assert attained[1] < min(0.99, attained[0])


def test_mixed_replicas_to_begin_with_stay_within_limits() -> None:
    load = "steady:rate_rps=60,duration_s=180,seed=1"
    assert sized(load, **{"pools.mixed.max_replicas": 2}) == 2
    assert sized(load, **{"pools.mixed.min_replicas": 30}) == 30
    late = {"slo.ttft_ms": 0.001}
    assert sized(load, **late) == 1  # nothing can be kept, so no more replicas help


def test_scenario_has_what_the_settings_say() -> None:
    overrides = {
        "routing.profile": "round_robin",
        "simulation.start_up_delay_s": 7.0,
        "simulation.start_up_delay_cv": 0.5,
        "simulation.crashes": [{"role": "decode", "at_s": 9.0}],
        "simulation.seed": 11,
        "pools.decode.gpus_per_replica": 4,
    }
    plan = make_plan(load_config(None, overrides))
    with open_trace(LOAD) as trace:
        scenario = make_scenario(plan, trace)
    assert scenario.routing.name == "ROUND_ROBIN"
    assert (scenario.start_up.delay_s, scenario.start_up.cv, scenario.seed) == (7.0, 0.5, 11)
    assert [(crash.role, crash.at_s) for crash in scenario.crashes] == [(Role.DECODE, 9.0)]
    assert scenario.pools[Role.DECODE].gpus_per_replica == 4
    assert scenario.pools[Role.PREFILL].gpus_per_replica == plan.profile.prefill.gpus_per_engine


def test_warm_up_counts_the_intervals_that_were_seen() -> None:
    past = "steady:rate_rps=2,duration_s=1000"
    plan = make_plan(
        load_config(None, {"planner.policy": "reference", "planner.load_predictor_warmup_trace": past})
    )
    assert len(warm_up(plan, rate_scale=3.0).past.counts) == 5
    assert plan.forecaster.forecast().requests == pytest.approx(3 * 2 * 180, rel=0.1)
    assert warm_up(make_plan(load_config())).past is None


def test_a_warm_up_trace_that_is_too_short_names_the_key() -> None:
    key = "planner.load_predictor_warmup_trace"
    past = "steady:rate_rps=2,duration_s=100"
    plan = make_plan(load_config(None, {"planner.policy": "reference", key: past}))
    with pytest.raises(PlanningError, match=rf"{key}: .*less than one interval of 180 s"):
        warm_up(plan)


@pytest.mark.parametrize(
    ("key", "value", "fault"),
    [
        ("planner.load_predictor_warmup_trace", "past.csv", "past.csv: no such file"),
        ("planner.load_predictor_warmup_trace", ".", "is not a file"),
        ("planner.load_predictor_warmup_trace", "steady:rate=2", "unknown key 'rate'"),
        ("simulation.initial.prefill", 99, "outside what pools.prefill allows, 1 to 16"),
    ],
)
def test_a_plan_is_refused_before_any_trace_is_read(key: str, value: object, fault: str) -> None:
    with pytest.raises(PlanningError) as refused:
        make_plan(load_config(None, {key: value}))
    assert str(refused.value).startswith(f"{key}: ")
    assert fault in str(refused.value)


@pytest.mark.parametrize(
    ("policy", "key"),
    [
        ("headway", "planner.adjustment_interval_s"),
        ("reference", "planner.adjustment_interval_s"),
        ("threshold", "planner.threshold.interval_s"),
    ],
)
def test_an_interval_far_too_short_for_the_trace_is_refused(policy: str, key: str) -> None:
    plan = make_plan(load_config(None, {"planner.policy": policy, key: 1e-5}))
    with open_trace(LOAD) as trace, pytest.raises(PlanningError, match=rf"{key}: 1e-05 s .* 600 s"):
        make_scenario(plan, trace)


def test_a_warm_up_of_endless_intervals_is_refused() -> None:
    past = {"planner.load_predictor_warmup_trace": LOAD, "planner.adjustment_interval_s": 1e-5}
    with pytest.raises(PlanningError, match=r"planner\.adjustment_interval_s: 1e-05 s"):
        warm_up(make_plan(load_config(None, past)))


def test_reach_counts_each_request(profile: Profile) -> None:
    idle_s = float(profile.prefill.ttft_s(1000.0))
    idle = IdleEngine(profile=profile, rules=EngineRules(), mixed=True)
    with open_trace(LOAD) as trace:
        easy = reach(trace, Slo(ttft_s=idle_s * 1.01, itl_s=1.0), idle)
        late = reach(trace, Slo(ttft_s=idle_s * 0.99, itl_s=1.0), idle)
        slow = reach(trace, Slo(ttft_s=1.0, itl_s=1e-5), idle)
        total = trace.request_count
    assert (easy.requests, easy.attainable, easy.ttft_missed, easy.itl_missed) == (total, total, 0, 0)
    assert (late.attainable, late.ttft_missed) == (0, total)
    assert (slow.attainable, slow.itl_missed) == (0, total)
    assert easy.best_ttft_s == pytest.approx(idle_s)
    assert easy.isl_outside == easy.context_outside == 0


def test_each_chunk_of_a_prompt_is_an_iteration_of_an_idle_replica(profile: Profile) -> None:
    slo = Slo(ttft_s=1.01 * float(profile.prefill.ttft_s(1000.0)), itl_s=1.0)
    missed = []
    for chunk_tokens in (0, 2000, 100):
        idle = IdleEngine(profile=profile, rules=EngineRules(chunk_tokens=chunk_tokens), mixed=True)
        with open_trace(LOAD) as trace:
            missed.append(reach(trace, slo, idle).ttft_missed)
            total = trace.request_count
    assert missed == [0, 0, total]
