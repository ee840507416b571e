"""The compiled kernel against the token-by-token engine in plain Python, queues included."""

import numpy as np
import pytest

from headway.engine import EngineRules
from headway.engine.kernel.layout import Routing
from headway.planning.types import Role
from interp import PrefillSamples, build_profile
from tests.simulation import plain_engine
from tests.simulation.worlds import ArrayTrace, poisson_trace, roofline_profile, run, scenario

REACHED_S = 1e-6


def disaggregated(profile, trace, rules, prefills, decodes):
    engine = EngineRules(
        max_batch_size=rules.max_batch,
        transfer_latency_s=rules.transfer_latency_s,
        kv_bytes_per_token=1.0,
        transfer_bytes_per_s=1 / rules.transfer_s_per_token,
    )
    initial = {Role.PREFILL: prefills, Role.DECODE: decodes}
    return run(scenario(profile, initial, engine=engine, routing=Routing.ROUND_ROBIN), trace)


def assert_same_times(records, jobs):
    finished = np.array([job.finished_s for job in jobs])
    first = np.array([job.first_token_s for job in jobs])
    assert len(records) == len(jobs)
    assert np.abs(records["finished_s"] - finished).max() < REACHED_S
    assert np.abs(records["first_token_s"] - first).max() < REACHED_S


def short_of_kv() -> ArrayTrace:
    trace = poisson_trace(seed=3, count=300, rate_rps=20.0, isl_mean=300, osl_mean=200)
    trace.input_tokens = np.minimum(trace.input_tokens, 2_000)
    trace.output_tokens = np.minimum(trace.output_tokens, 2_000)
    return trace


AT_ONCE = ArrayTrace(np.repeat([0.0, 3.0], 20), np.full(40, 100), np.full(40, 50))


@pytest.mark.parametrize(
    ("trace", "prefills", "decodes", "max_batch", "capacity"),
    [
        pytest.param(poisson_trace(7, 400, 2.0), 1, 1, 64, 100_000, id="light"),
        pytest.param(poisson_trace(7, 400, 12.0), 1, 1, 64, 100_000, id="busy"),
        pytest.param(poisson_trace(7, 400, 30.0), 2, 3, 24, 100_000, id="several replicas"),
        pytest.param(poisson_trace(7, 400, 60.0), 3, 2, 8, 100_000, id="overload with long queues"),
        pytest.param(short_of_kv(), 1, 1, 64, 6_000, id="KV capacity limits admission"),
        pytest.param(AT_ONCE, 1, 1, 64, 100_000, id="simultaneous arrivals share a batch"),
    ],
)
def test_finish_times_equal_token_by_token(trace, prefills, decodes, max_batch, capacity):
    profile = roofline_profile(capacity=capacity)
    rules = plain_engine.Rules(max_batch, capacity, transfer_latency_s=0.003, transfer_s_per_token=1e-6)
    result, records = disaggregated(profile, trace, rules, prefills, decodes)
    jobs = plain_engine.disaggregated(trace, profile, rules, prefills, decodes)
    assert_same_times(records, jobs)
    gaps, itl_s = plain_engine.gaps_of(jobs), result.report().itl_s
    assert result.tally.latencies["itl_s"].count == len(gaps)
    assert itl_s.mean == pytest.approx(gaps.mean(), rel=1e-9)
    assert itl_s.p50 == pytest.approx(np.quantile(gaps, 0.5), rel=0.01)
    assert itl_s.p99 == pytest.approx(np.quantile(gaps, 0.99), rel=0.02)


@pytest.mark.parametrize(("chunk_tokens", "max_batch"), [(256, 64), (2048, 64), (512, 6)])
def test_mixed_replicas_equal_token_by_token(chunk_tokens, max_batch):
    profile = roofline_profile()
    trace = poisson_trace(seed=5, count=300, rate_rps=14.0)
    rules = plain_engine.Rules(max_batch, 100_000, chunk_tokens=chunk_tokens)
    engine = EngineRules(max_batch_size=max_batch, chunk_tokens=chunk_tokens)
    setting = scenario(profile, {Role.MIXED: 2}, engine=engine, routing=Routing.ROUND_ROBIN)
    result, records = run(setting, trace)
    jobs = plain_engine.aggregated(trace, profile, rules, 2)
    assert_same_times(records, jobs)
    gaps = plain_engine.gaps_of(jobs)
    assert result.report().document()["itl_s"]["mean"] == pytest.approx(gaps.mean(), rel=1e-9)


def prefill_ends(profile, trace, chunk_tokens):
    setting = scenario(
        profile, {Role.PREFILL: 1, Role.DECODE: 1}, engine=EngineRules(chunk_tokens=chunk_tokens)
    )
    return run(setting, trace)[1]["prefill_finished_s"]


def test_chunked_batching_packs_short_prompts():
    profile = roofline_profile()
    trace = ArrayTrace(np.zeros(32), np.full(32, 64), np.full(32, 1))
    work_s = 64 * (profile.prefill.ttft_s(128) - profile.prefill.ttft_s(16)) / (128 - 16)
    empty_s = profile.prefill.ttft_s(64) - work_s
    assert prefill_ends(profile, trace, 0).max() == pytest.approx(32 * profile.prefill.ttft_s(64))
    assert prefill_ends(profile, trace, 2048).max() == pytest.approx(empty_s + 32 * work_s)


def profile_of(isl, ttft_s):
    isl, ttft_s = np.array(isl), np.array(ttft_s)
    samples = PrefillSamples(isl_tokens=isl, ttft_s=ttft_s, throughput_per_gpu=isl / ttft_s)
    return build_profile(samples, roofline_profile().decode.samples)


@pytest.mark.parametrize("shape", [{Role.MIXED: 1}, {Role.PREFILL: 1, Role.DECODE: 1}])
def test_no_chunk_takes_negative_time_where_samples_fall(shape):
    profile = profile_of([128.0, 256.0, 1024.0], [0.058, 0.052, 0.080])
    trace = ArrayTrace(np.repeat([0.0, 5.0], [1, 200]), np.full(201, 256), np.r_[400, np.ones(200, int)])
    _, records = run(scenario(profile, shape, engine=EngineRules(chunk_tokens=4096)), trace)
    assert (records["prefill_finished_s"] >= records["prefill_started_s"]).all()
    assert (records["first_token_s"] >= records["arrival_s"]).all()


def test_prompts_below_the_first_sample_are_not_free():
    profile = profile_of([128.0, 256.0, 1024.0], [0.020, 0.030, 0.090])
    trace = ArrayTrace(np.zeros(65), np.r_[10, np.full(64, 32)], np.r_[300, np.ones(64, int)])
    alone = ArrayTrace(np.zeros(1), np.array([10]), np.array([300]))
    setting = scenario(profile, {Role.MIXED: 1}, engine=EngineRules(chunk_tokens=4096, max_batch_size=128))
    _, shared = run(setting, trace)
    _, quiet = run(setting, alone)
    empty_s = min(0.010, profile.decode.samples.itl_s.min())
    work_s = 64 * 32 * (0.020 - empty_s) / 128
    assert shared["finished_s"][0] - quiet["finished_s"][0] == pytest.approx(work_s, rel=1e-6)
