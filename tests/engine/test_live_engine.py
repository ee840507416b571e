"""The engine model on a driver's clock: the compiled kernel's times, and what a driver relies on."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.engine import EngineRules, IterationTimes, LiveEngine
from headway.planning.types import Role
from tests.engine.stepping import Seen, drive, jobs_of, steps_of
from tests.memory import grown_bytes
from tests.simulation.worlds import (
    ArrayTrace,
    constant_profile,
    growing_prompts,
    poisson_trace,
    roofline_profile,
    run,
    scenario,
)

REACHED_S = 1e-6
BLOCK = 128
TRANSFER = {"transfer_latency_s": 0.003, "kv_bytes_per_token": 1.0, "transfer_bytes_per_s": 1e6}


def split(profile, trace, rules) -> tuple[Seen, Seen]:
    """One prefill and one decode replica with a transfer between them."""
    jobs = jobs_of(trace)
    prefill = drive(LiveEngine(profile, rules, Role.PREFILL), jobs, prompts=trace.prompts)
    ready = [
        (number, prefill.prefilled_s[str(number)] + rules.transfer_s(isl), isl, osl)
        for number, _, isl, osl in jobs
    ]
    return prefill, drive(LiveEngine(profile, rules, Role.DECODE), ready)


def column(seen: dict[str, float], count: int):
    return np.array([seen[str(number)] for number in range(count)])


def assert_as_compiled(profile, trace, rules, mixed) -> None:
    initial = {Role.MIXED: 1} if mixed else {Role.PREFILL: 1, Role.DECODE: 1}
    _, records = run(scenario(profile, initial, engine=rules), trace)
    if mixed:
        prefill = decode = drive(
            LiveEngine(profile, rules, Role.MIXED), jobs_of(trace), prompts=trace.prompts
        )
    else:
        prefill, decode = split(profile, trace, rules)
    count = len(trace.arrival_s)
    assert len(records) == count
    for name, seen in (
        ("prefill_finished_s", prefill.prefilled_s),
        ("first_token_s", decode.first_s),
        ("finished_s", decode.finished_s),
    ):
        assert np.abs(records[name] - column(seen, count)).max() < REACHED_S, name
    assert decode.tokens == {str(n): osl for n, osl in enumerate(trace.output_tokens.tolist())}


@pytest.mark.parametrize("mixed", [False, True], ids=["disaggregated", "mixed"])
@pytest.mark.parametrize("chunk_tokens", [0, 256, 2048], ids=["whole", "256", "2048"])
@pytest.mark.parametrize(
    ("rate_rps", "max_batch", "capacity"),
    [(2.0, 64, 100_000), (14.0, 64, 100_000), (30.0, 6, 100_000), (14.0, 64, 9_000)],
    ids=["light", "busy", "small batch", "little KV"],
)
def test_times_equal_the_compiled_kernel(rate_rps, max_batch, capacity, chunk_tokens, mixed):
    trace = poisson_trace(seed=11, count=200, rate_rps=rate_rps)
    trace.input_tokens = np.minimum(trace.input_tokens, 4_000)
    trace.output_tokens = np.minimum(trace.output_tokens, 2_000)
    rules = EngineRules(max_batch_size=max_batch, chunk_tokens=chunk_tokens, **TRANSFER)
    assert_as_compiled(roofline_profile(capacity=capacity), trace, rules, mixed)


@given(
    seed=st.integers(0, 2**32 - 1),
    count=st.integers(1, 25),
    rate_rps=st.floats(0.5, 60.0),
    max_batch=st.integers(1, 12),
    chunk_tokens=st.sampled_from([0, 64, 300, 2048]),
    capacity=st.integers(3_000, 50_000),
    mixed=st.booleans(),
)
def test_small_random_traces_equal_the_compiled_kernel(
    seed, count, rate_rps, max_batch, chunk_tokens, capacity, mixed
):
    trace = poisson_trace(seed, count, rate_rps, isl_mean=400, osl_mean=40)
    trace.input_tokens = np.minimum(trace.input_tokens, 2_000)
    trace.output_tokens = np.minimum(trace.output_tokens, 900)
    rules = EngineRules(max_batch_size=max_batch, chunk_tokens=chunk_tokens, **TRANSFER)
    assert_as_compiled(roofline_profile(capacity=capacity), trace, rules, mixed)


def test_simultaneous_arrivals_equal_the_compiled_kernel():
    trace = ArrayTrace(np.repeat([0.0, 3.0], 20), np.full(40, 100), np.full(40, 50))
    assert_as_compiled(roofline_profile(), trace, EngineRules(**TRANSFER), mixed=False)
    assert_as_compiled(roofline_profile(), trace, EngineRules(chunk_tokens=512), mixed=True)


def conversations(seed: int, count: int, rate_rps: float) -> ArrayTrace:
    """Prompts that go on from earlier ones, and arrive while those may still be under way."""
    generator = np.random.default_rng(seed)
    prompts = growing_prompts(generator, count)
    tokens = [BLOCK * len(prompt) - int(generator.integers(0, BLOCK)) for prompt in prompts]
    arrival_s = np.cumsum(generator.exponential(1 / rate_rps, count))
    return ArrayTrace(arrival_s, np.array(tokens), 1 + generator.integers(0, 80, count), prompts)


@pytest.mark.parametrize("mixed", [False, True], ids=["disaggregated", "mixed"])
@pytest.mark.parametrize("chunk_tokens", [0, 300], ids=["whole", "300"])
@pytest.mark.parametrize("cached_blocks", [0, 1, 9, 1000])
def test_cached_prompts_take_the_compiled_kernels_times(cached_blocks, chunk_tokens, mixed):
    trace = conversations(seed=cached_blocks, count=300, rate_rps=30.0)
    rules = EngineRules(
        max_batch_size=16,
        chunk_tokens=chunk_tokens,
        prefix_cache_tokens=cached_blocks * BLOCK,
        block_tokens=BLOCK,
        **TRANSFER,
    )
    assert_as_compiled(roofline_profile(), trace, rules, mixed)


def test_hits_equal_the_compiled_kernels():
    trace, rules = (
        conversations(seed=3, count=200, rate_rps=10.0),
        EngineRules(prefix_cache_tokens=40 * BLOCK, block_tokens=BLOCK),
    )
    _, records = run(scenario(roofline_profile(), {Role.MIXED: 1}, engine=rules), trace)
    engine = LiveEngine(roofline_profile(), rules, Role.MIXED)
    drive(engine, jobs_of(trace), prompts=trace.prompts)
    assert 0 < engine.cached_tokens == records["cached_tokens"].sum()
    assert engine.prompt_tokens == trace.input_tokens.sum()
    assert engine.external_tokens == 0


@pytest.mark.parametrize("late_s", [0.004, 0.3, 60.0])
@pytest.mark.parametrize("role", [Role.PREFILL, Role.DECODE, Role.MIXED])
def test_a_late_driver_does_not_slow_the_engine_down(role, late_s):
    profile, jobs = roofline_profile(), jobs_of(poisson_trace(seed=2, count=60, rate_rps=10.0))
    rules = EngineRules(max_batch_size=8, chunk_tokens=512)
    on_time, late = (drive(LiveEngine(profile, rules, role), jobs, late) for late in (0.0, late_s))
    assert late == on_time


def test_requests_may_be_announced_before_they_come_in():
    profile, jobs = roofline_profile(), jobs_of(poisson_trace(seed=4, count=50, rate_rps=10.0))
    engine, seen = LiveEngine(profile, EngineRules(), Role.DECODE), Seen()
    for number, at_s, isl, osl in jobs:
        engine.submit(str(number), isl, osl, prefilled=True, at_s=at_s)
    assert (engine.running, engine.waiting) == (0, 50)
    seen.take(engine.advance(1e9))
    assert seen == drive(LiveEngine(profile, EngineRules(), Role.DECODE), jobs)


def test_a_time_that_is_past_means_now():
    engine, seen = LiveEngine(constant_profile(0.01, 1e-4), EngineRules(), Role.DECODE), Seen()
    engine.advance(5.0)
    engine.submit("a", 10, 3, prefilled=True, at_s=1.0)
    assert engine.next_boundary_s() == 5.0
    seen.take(engine.advance(6.0))
    assert seen.first_s["a"] == pytest.approx(5.01)
    assert seen.finished_s["a"] == pytest.approx(5.03)


def test_counts_follow_the_requests():
    engine = steps_of(max_batch_size=1)
    engine.submit("a", 100, 4, prefilled=True, at_s=0.0)
    engine.submit("b", 200, 4, prefilled=True, at_s=0.0)
    engine.advance(0.0)
    assert (engine.running, engine.waiting, engine.kv_tokens) == (1, 1, 100)
    engine.advance(engine.next_boundary_s())
    assert engine.kv_tokens == 101
    assert engine.kv_usage == pytest.approx(0.101)
    engine.advance(1e9)
    assert (engine.running, engine.waiting, engine.kv_tokens) == (0, 0, 0)
    assert engine.next_boundary_s() is None


def test_prompts_under_way_count_as_running():
    engine = steps_of(role=Role.PREFILL)
    for name in "abc":
        engine.submit(name, 100, 4, prefilled=False, at_s=0.0)
    engine.advance(0.0)
    assert (engine.running, engine.waiting) == (1, 2)


@pytest.mark.parametrize("moment", ["coming", "queued", "running"])
def test_abort_frees_what_a_decode_holds(moment):
    engine = steps_of(max_batch_size=1)
    if moment == "queued":
        engine.submit("other", 100, 5, prefilled=True, at_s=0.0)
    engine.submit("a", 100, 5, prefilled=True, at_s=1.0)
    engine.advance(0.5 if moment == "coming" else 1.0)
    assert engine.abort("a")
    assert not engine.abort("a")
    seen = Seen()
    engine.submit("b", 900, 100, prefilled=True, at_s=1.0)
    seen.take(engine.advance(1e9))
    assert "a" not in seen.tokens
    assert seen.tokens["b"] == 100
    assert (engine.running, engine.waiting, engine.kv_tokens) == (0, 0, 0)


@pytest.mark.parametrize("role", [Role.PREFILL, Role.MIXED])
@pytest.mark.parametrize("victim", ["a", "b", "c"])
def test_abort_of_a_prompt_under_way_leaves_the_others(role, victim):
    engine, seen = steps_of(role=role, chunk_tokens=150), Seen()
    for name in "abc":
        engine.submit(name, 100, 5, prefilled=False, at_s=0.0)
    engine.advance(0.0)
    engine.abort(victim)
    seen.take(engine.advance(1e9))
    assert set(seen.prefilled_s) == set("abc") - {victim}
    assert (engine.running, engine.waiting, engine.kv_tokens) == (0, 0, 0)
    assert engine.next_boundary_s() is None


@given(seed=st.integers(0, 2**32 - 1), role=st.sampled_from(list(Role)), max_batch=st.integers(1, 6))
def test_aborts_at_any_time_leave_nothing_behind(seed, role, max_batch):
    random = np.random.default_rng(seed)
    engine = LiveEngine(
        roofline_profile(capacity=3_000), EngineRules(max_batch_size=max_batch, chunk_tokens=200), role
    )
    seen, aborted = Seen(), set()
    for number in range(40):
        name, at_s = str(number), number * 0.01
        isl, osl = random.integers(1, 400), random.integers(1, 60)
        engine.submit(name, int(isl), int(osl), prefilled=role is Role.DECODE, at_s=at_s)
        if random.random() < 0.5:
            victim = str(random.integers(0, number + 1))
            aborted |= {victim} if engine.abort(victim) else set()
        seen.take(engine.advance(at_s))
        assert 0 <= engine.kv_tokens <= 3_000
        assert engine.running <= max_batch or role is Role.PREFILL
    seen.take(engine.advance(1e9))
    assert (engine.running, engine.waiting, engine.kv_tokens) == (0, 0, 0)
    ended = set(seen.prefilled_s if role is Role.PREFILL else seen.finished_s)
    assert ended == {str(n) for n in range(40)} - aborted


def test_many_aborts_do_not_pile_up():
    engine = steps_of()

    def come_and_go() -> None:
        for number in range(1_000):
            at_s = engine.next_boundary_s() or 0.0
            engine.submit(str(number), 1, 900, prefilled=True, at_s=at_s)
            engine.advance(at_s)
            engine.advance(engine.next_boundary_s())
            assert engine.running == 1
            assert engine.abort(str(number))

    assert grown_bytes(come_and_go) < 50_000


@pytest.mark.parametrize(
    ("isl", "osl", "prefilled", "fault"),
    [(10, 5, False, "not what a decode"), (0, 5, True, "never fit"), (600, 401, True, "never fit")],
)
def test_what_never_fits_is_refused(isl, osl, prefilled, fault):
    with pytest.raises(ValueError, match=fault):
        steps_of().submit("a", isl, osl, prefilled=prefilled, at_s=0.0)


def test_a_request_that_is_here_is_refused():
    engine = steps_of()
    engine.submit("a", 10, 5, prefilled=True, at_s=0.0)
    with pytest.raises(ValueError, match="already here"):
        engine.submit("a", 10, 5, prefilled=True, at_s=0.0)


def test_look_ups_equal_the_profile_surfaces():
    profile, random = roofline_profile(), np.random.default_rng(1)
    times, capacity = IterationTimes(profile), profile.decode.table.max_kv_tokens
    for tokens in [1, 16, 17, 128, 8192, 8193, 50_000, *random.integers(1, 20_000, 50).tolist()]:
        assert times.ttft_s(tokens) == pytest.approx(profile.prefill.ttft_s(tokens), rel=1e-12)
    for batch, context in random.integers(1, [80, 6_000], (200, 2)).tolist():
        kv_tokens = min(batch * context, 100_000)
        expected = profile.decode.itl_s(kv_tokens / capacity, kv_tokens / batch)
        assert times.itl_s(batch, kv_tokens) == pytest.approx(expected, rel=1e-12)
