"""The best point: brute force never finds a better one, whatever the curves look like."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from interp_cases import build, decode_samples, grid_profile, itls, points, sweeps

from interp import DecodeSamples, DecodeSurface

CLOSE = 1e-9
questions = st.tuples(itls, st.floats(0, 11).map(lambda power: float(np.exp(power))))


def dense(decode: DecodeSurface, context: float) -> np.ndarray:
    """Every node in reach at `context`, its ends, and 500 points between."""
    end = decode.domain_end_kv(context)
    start = min(float(decode.samples.kv_usage.min()), end)
    kv = np.concatenate([np.linspace(start, end, 500), decode.table.kv, [start, end]])
    return np.unique(kv[(kv >= start) & (kv <= end)])


@given(samples=sweeps(), question=questions)
def test_brute_force_finds_nothing_better(samples: DecodeSamples, question: tuple[float, float]) -> None:
    target, context = question
    decode = build(samples).decode
    best = decode.best_throughput_per_gpu(target, context)
    kv = dense(decode, context)
    itl, throughput = decode.itl_s(kv, context), decode.throughput_per_gpu(kv, context)
    meets = itl <= target
    assert best.feasible or not meets.any()
    if best.feasible:
        assert best.itl_s <= target
        clearly = itl <= target * (1 - 1e-12)
        assert throughput[clearly].max(initial=0.0) <= best.throughput_per_gpu * (1 + CLOSE)
    else:
        assert itl.min() >= best.itl_s * (1 - CLOSE)
        assert throughput[itl == best.itl_s].max(initial=0.0) <= best.throughput_per_gpu * (1 + CLOSE)


@given(samples=sweeps(), question=questions)
def test_the_point_lies_on_the_surface(samples: DecodeSamples, question: tuple[float, float]) -> None:
    target, context = question
    decode = build(samples).decode
    best = decode.best_throughput_per_gpu(target, context)
    assert 0 <= best.kv_usage <= decode.domain_end_kv(context)
    assert decode.itl_s(best.kv_usage, context) == best.itl_s
    assert decode.throughput_per_gpu(best.kv_usage, context) == best.throughput_per_gpu
    assert decode.extrapolated(best.kv_usage, context) == best.extrapolated


@given(samples=sweeps())
def test_a_sample_s_own_itl_is_always_feasible(samples: DecodeSamples) -> None:
    best = build(samples).decode.best_throughput_per_gpu(samples.itl_s, samples.context_tokens)
    assert best.feasible.all()
    assert (best.throughput_per_gpu >= samples.throughput_per_gpu * (1 - CLOSE)).all()


@given(samples=sweeps())
def test_a_looser_target_never_lowers_the_throughput(samples: DecodeSamples) -> None:
    decode = build(samples).decode
    _, contexts = points(10)
    best = decode.best_throughput_per_gpu(np.linspace(1e-4, 0.2, 200), contexts[:, None])
    feasible = np.where(best.feasible, best.throughput_per_gpu, -1.0)
    assert (np.diff(feasible, axis=1) >= -CLOSE * feasible.max()).all()


def line(kv: list[float], itl_ms: list[float], throughput: list[float]) -> DecodeSurface:
    """One context line of 1000 tokens with the given curves."""
    samples = DecodeSamples(
        max_kv_tokens=100_000.0,
        kv_usage=np.array(kv),
        context_tokens=np.full(len(kv), 1000.0),
        itl_s=np.array(itl_ms) / 1000,
        throughput_per_gpu=np.array(throughput),
    )
    return build(samples).decode


def test_among_equals_the_smallest_kv_usage() -> None:
    best = line([0.1, 0.2, 0.3], [10, 20, 30], [100, 300, 300]).best_throughput_per_gpu(0.1, 1000)
    assert best.kv_usage == 0.2


def test_infeasible_gives_the_least_itl_and_among_equals_the_higher_throughput() -> None:
    decode = line([0.1, 0.2, 0.3, 0.4], [20, 10, 10, 30], [100, 200, 300, 400])
    best = decode.best_throughput_per_gpu(0.005, 1000)
    assert not best.feasible
    assert (best.itl_s, best.kv_usage, best.throughput_per_gpu) == (0.01, 0.3, 300)
    assert not best.extrapolated


def test_the_search_begins_at_the_first_sampled_usage_so_that_no_answer_is_an_empty_engine() -> None:
    best = grid_profile().decode.best_throughput_per_gpu(1e-6, np.array([1.0, 16.0, 1024.0, 50_000.0]))
    assert not best.feasible.any()
    assert best.kv_usage.tolist() == [pytest.approx(0.9 / 256), *[0.02] * 3]
    assert (best.throughput_per_gpu > 0).all()


def test_the_search_ends_at_the_largest_batch() -> None:
    decode = line([0.1, 0.4], [40, 70], [100, 400])
    assert decode.domain_end_kv(1000) == pytest.approx(0.4)
    assert decode.domain_end_kv(500) == pytest.approx(0.2)
    assert decode.domain_end_kv(2000) == pytest.approx(0.8)
    assert decode.domain_end_kv(10_000) == 1.0
    assert decode.best_throughput_per_gpu(1.0, 2000).kv_usage == pytest.approx(0.8)
    assert decode.best_throughput_per_gpu(1.0, 2000).extrapolated


def test_a_smaller_batch_limit_ends_it_sooner_but_not_before_the_samples() -> None:
    kv = np.array([0.1, 0.4])
    samples = decode_samples(kv, np.array([1000.0, 1000.0]), np.array([0.01, 0.02]))
    decode = DecodeSurface.through(samples, 1, max_batch_size=10)
    assert decode.domain_end_kv(1000) == pytest.approx(0.4)
    assert decode.domain_end_kv(5000) == pytest.approx(0.5)


def test_no_limit_is_a_question_too() -> None:
    assert grid_profile().decode.best_throughput_per_gpu(np.inf, 1024).feasible
    assert not grid_profile().decode.best_throughput_per_gpu(-1.0, 1024).feasible
