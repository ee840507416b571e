"""The reference policy against the documented formulas, worked out here by hand from the same surfaces."""

import json
from math import ceil

import pytest
from planning_cases import (
    DISAGGREGATED,
    MAX_KV_TOKENS,
    POOL,
    PROFILE,
    expected_load,
    first,
    limits,
    make_profile,
    observed,
    run,
    settings,
)

from headway.planning import PlanningError, PoolLimits, PoolState, Role, Slo, make_policy

PREFILL, DECODE = Role.PREFILL, Role.DECODE


def reference(profile=PROFILE, **changes):
    return make_policy("reference", settings(**changes), profile)


def test_prefill_correction_is_actual_over_expected_ttft():
    correction = first(reference()).reasons["corrections"]["prefill"]
    assert correction["value"] == pytest.approx(0.090 / 0.060)
    assert correction["basis"] == "measured"


def test_decode_correction_uses_concurrency_per_ready_replica_and_mean_context():
    correction = first(reference()).reasons["corrections"]["decode"]
    concurrency = 3_600 / 3 * 2.5 / 180
    kv_usage = concurrency * 1_100 / MAX_KV_TOKENS
    assert correction["details"]["concurrency"] == pytest.approx(concurrency)
    assert correction["details"]["kv_usage"] == pytest.approx(kv_usage)
    assert correction["value"] == pytest.approx(0.012 / PROFILE.decode.itl_s(kv_usage, 1_100))
    requests = observed().requests
    stormy = first(reference(), observed(requests=requests / 4, repeats=requests * 3 / 4))
    assert stormy.reasons["corrections"]["decode"] == correction


def test_kv_usage_of_the_expected_itl_is_capped_at_a_full_cache():
    details = first(reference(), observed(request_duration_s=1_000.0)).reasons["corrections"]["decode"][
        "details"
    ]
    assert details["kv_usage"] == 1.0


def test_without_request_duration_ttft_plus_itl_times_osl_stands_in():
    details = first(reference(), observed(request_duration_s=float("nan"))).reasons["corrections"]["decode"][
        "details"
    ]
    assert details["request_duration_s"] == pytest.approx(0.090 + 0.012 * 200)
    assert details["request_duration_source"] == "ttft + itl * osl"


@pytest.mark.parametrize(("ttft_s", "factor"), [(0.030, 0.5), (0.600, 1.0)])
def test_prefill_replicas_follow_the_formula_and_queueing_never_raises_them(ttft_s, factor):
    observation = observed(ttft_s=ttft_s, forecast=expected_load(90_000, 2_000))
    decision = first(reference(), observation)
    throughput = PROFILE.prefill.throughput_per_gpu(2_000.0)
    assert decision.targets[PREFILL] == ceil(90_000 * 2_000 / 180 * factor / throughput)


@pytest.mark.parametrize("itl_s", [0.009, 0.012])
def test_decode_replicas_follow_the_formula(itl_s):
    decision = first(reference(), observed(itl_s=itl_s, forecast=expected_load(90_000, 2_000, 400)))
    correction = decision.reasons["corrections"]["decode"]["value"]
    best = PROFILE.decode.best_throughput_per_gpu(0.020 / correction, 2_200.0)
    assert best.feasible
    assert decision.targets[DECODE] == ceil(90_000 * 400 / 180 / best.throughput_per_gpu)


def test_gpus_per_engine_divide_the_replicas_per_role():
    pools = limits(prefill=PoolLimits(gpus_per_replica=2), decode=PoolLimits(gpus_per_replica=4))
    load = observed(forecast=expected_load(90_000))
    one = first(reference(no_correction=True), load).reasons["requirement"]
    several = first(reference(no_correction=True, limits=pools), load).reasons["requirement"]
    assert several["prefill"]["replicas"] == pytest.approx(one["prefill"]["replicas"] / 2)
    assert several["decode"]["replicas"] == pytest.approx(one["decode"]["replicas"] / 4)


def test_no_correction_keeps_both_factors_at_one():
    decisions = run(reference(no_correction=True), [observed(ttft_s=9.0), observed(itl_s=9.0)])
    for decision in decisions:
        assert {c["value"] for c in decision.reasons["corrections"].values()} == {1.0}
        assert {c["basis"] for c in decision.reasons["corrections"].values()} == {"off"}


def test_the_factors_are_raw_not_smoothed():
    decisions = run(reference(), [observed(ttft_s=0.6), observed(ttft_s=0.06)])
    assert [d.reasons["corrections"]["prefill"]["value"] for d in decisions] == pytest.approx([10.0, 1.0])


def test_without_forecast_the_next_interval_is_like_this_one():
    assert first(reference()).targets == first(reference(), observed(forecast=expected_load(3_600))).targets


def test_an_infeasible_itl_is_said_with_the_best_achievable_and_sized_there():
    decision = first(reference(slo=Slo(ttft_s=0.2, itl_s=0.001), no_correction=True))
    assert decision.reasons["infeasible"]["decode"] == {
        "metric": "itl",
        "target_s": 0.001,
        "best_s": pytest.approx(0.0053, rel=0.05),
    }
    best = PROFILE.decode.best_throughput_per_gpu(0.001, 1_100.0)
    assert not best.feasible
    assert decision.targets[DECODE] == ceil(3_600 * 200 / 180 / best.throughput_per_gpu)
    assert any("itl of 1 ms is infeasible" in text for text in decision.reasons["warnings"])


def test_an_infeasible_ttft_is_said_but_changes_nothing():
    tight = first(reference(slo=Slo(ttft_s=0.050, itl_s=0.020)))
    assert tight.reasons["infeasible"]["prefill"]["best_s"] == pytest.approx(0.060)
    assert tight.targets == first(reference()).targets


class NoThroughput:
    """A double of both surfaces: an engine that produces nothing."""

    gpus_per_engine = 1
    table = PROFILE.decode.table
    extrapolated = PROFILE.prefill.extrapolated
    ttft_s = PROFILE.prefill.ttft_s
    itl_s = PROFILE.decode.itl_s

    def throughput_per_gpu(self, isl_tokens):
        return 0.0

    def best_throughput_per_gpu(self, itl_s, context_tokens):
        best = PROFILE.decode.best_throughput_per_gpu(itl_s, context_tokens)
        return type(best)(
            throughput_per_gpu=0.0, itl_s=best.itl_s, kv_usage=0.0, feasible=False, extrapolated=True
        )


def test_no_throughput_wishes_the_maximum():
    class Nothing:
        prefill = decode = NoThroughput()

    pools = limits(prefill=PoolLimits(max_replicas=6), decode=PoolLimits(max_replicas=7))
    decision = first(reference(Nothing(), limits=pools))
    assert decision.targets == {PREFILL: 6, DECODE: 7}
    assert decision.reasons["requirement"]["prefill"]["replicas"] is None
    assert (
        "prefill: the profile gives no throughput here, the pool's maximum is wished"
        in decision.reasons["warnings"]
    )


def test_limits_that_bind_are_named():
    pools = limits(prefill=PoolLimits(min_replicas=4), decode=PoolLimits(max_replicas=2))
    decision = first(reference(limits=pools, no_correction=True), observed(requests=7_200.0))
    assert decision.targets == {PREFILL: 4, DECODE: 2}
    assert decision.reasons["limits"] == ["prefill: min_replicas", "decode: max_replicas"]


def test_the_gpu_budget_scales_both_pools_down_and_is_named():
    load = observed(forecast=expected_load(36_000))
    free, bound = first(reference(), load), first(reference(max_gpu_budget=10), load)
    p, d = free.targets[PREFILL], free.targets[DECODE]
    assert p + d > 10
    assert bound.targets == {PREFILL: 10 * p // (p + d), DECODE: 10 - 10 * p // (p + d)}
    assert bound.reasons["limits"] == ["gpu_budget"]
    assert bound.reasons["wished"] == {"prefill": p, "decode": d}
    assert "limited by gpu_budget" in bound.reasons["summary"]


@pytest.mark.parametrize(
    ("pool", "moving"),
    [
        (POOL, False),
        (PoolState(desired=3, starting=1, ready=3, draining=0), True),
        (PoolState(desired=3, starting=0, ready=3, draining=1), True),
        (PoolState(desired=3, starting=0, ready=2, draining=0), True),
    ],
)
def test_scaling_that_is_under_way_is_warned_of(pool, moving):
    reasons = first(reference(), observed(pools=DISAGGREGATED | {DECODE: pool})).reasons
    assert reasons["scaling_in_progress"] == (["decode"] if moving else [])
    assert ("decode: a scaling action is still under way" in reasons["warnings"]) is moving


def test_lengths_outside_the_profile_are_warned_of():
    reasons = first(reference(), observed(forecast=expected_load(100, 50_000))).reasons
    assert (
        "prefill: the profile was not sampled at the expected lengths, its values are extrapolated"
        in reasons["warnings"]
    )


@pytest.mark.parametrize(
    ("changes", "summary"),
    [
        (
            {},
            "3600 requests of 1000 input and 200 output tokens in the next 180 s need 2 prefill and 2 "
            "decode: prefill 3 → 2, decode 3 → 2.",
        ),
        (
            {"osl_tokens": float("nan"), "requests": 7_200.0},
            "7200 requests of 1000 input and unknown output tokens in the next 180 s need 3 prefill, "
            "decode is held: prefill 3, decode 3.",
        ),
        (
            {"isl_tokens": float("nan")},
            "No length of a request is known, prefill is held, decode is held: prefill 3, decode 3.",
        ),
        (
            {"requests": float("nan")},
            "The request count was not measured, targets are held: prefill 3, decode 3.",
        ),
        (
            {"requests": 0.0},
            "No request arrived in 180 s, pools go to their minimum: prefill 3 → 1, decode 3 → 1.",
        ),
    ],
)
def test_the_summary_reads_as_a_sentence(changes, summary):
    assert first(reference(no_correction=True), observed(**changes)).reasons["summary"] == summary


def recomputed(reasons):
    """Targets from the reasons alone, after a trip through JSON."""
    interval_s, load = reasons["inputs"]["interval_s"], reasons["forecast"]
    factor = min(1.0, reasons["corrections"]["prefill"]["value"])
    tokens_per_s = {
        "prefill": load["requests"] * load["isl_tokens"] / interval_s * factor,
        "decode": load["requests"] * load["osl_tokens"] / interval_s,
    }
    bounds, counts = reasons["settings"]["limits"], {}
    for role, rate in tokens_per_s.items():
        gpus, need = bounds[role]["gpus_per_replica"], reasons["requirement"][role]
        wished = ceil(rate / need["throughput_per_gpu"] / gpus)
        counts[role] = max(bounds[role]["min_replicas"], min(bounds[role]["max_replicas"], wished))
    gpus = {role: bounds[role]["gpus_per_replica"] for role in counts}
    total, budget = sum(counts[r] * gpus[r] for r in counts), reasons["settings"]["max_gpu_budget"]
    if budget is not None and total > budget:
        counts["prefill"] = counts["prefill"] * budget // total
        counts["decode"] = (budget - counts["prefill"] * gpus["prefill"]) // gpus["decode"]
    return counts


@pytest.mark.parametrize("budget", [None, 64])
def test_a_decision_can_be_recomputed_from_its_reasons(budget):
    pools = limits(
        prefill=PoolLimits(gpus_per_replica=2), decode=PoolLimits(max_replicas=40, gpus_per_replica=2)
    )
    policy = reference(make_profile(2), limits=pools, max_gpu_budget=budget)
    for requests in (1_000, 30_000, 300_000):
        decision = first(policy, observed(forecast=expected_load(requests)))
        reasons = json.loads(json.dumps(decision.reasons, allow_nan=False))
        assert recomputed(reasons) == reasons["targets"] == dict(decision.targets)
        corrected = 0.020 / reasons["corrections"]["decode"]["value"]
        best = policy.surfaces.decode.best_throughput_per_gpu(corrected, 1_100.0)
        assert reasons["requirement"]["decode"]["throughput_per_gpu"] == best.throughput_per_gpu


@pytest.mark.parametrize("pools", [limits(mixed=PoolLimits()), limits(prefill=PoolLimits())])
def test_it_wants_exactly_prefill_and_decode(pools):
    with pytest.raises(PlanningError, match="reference needs the pools prefill and decode, found"):
        reference(limits=pools)


def test_it_wants_a_profile():
    with pytest.raises(PlanningError, match="needs a profile"):
        reference(None)


def test_a_budget_below_the_minimums_is_an_error_at_the_start():
    with pytest.raises(PlanningError, match=r"planner\.max_gpu_budget: 1 GPUs do not hold .* \(2 GPUs\)"):
        reference(max_gpu_budget=1)
