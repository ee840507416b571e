"""The prefill surface: exact, monotone where the samples are, honest outside them."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from interp_cases import grid_samples, prefill_samples

from interp import PrefillSamples, PrefillSurface, build_profile
from interp.kernels import ttft_at

values = st.integers(1, 100_000).map(lambda n: n / 1000)


@st.composite
def sweeps(draw: st.DrawFn) -> PrefillSamples:
    isl = draw(st.lists(st.integers(1, 100_000), min_size=2, max_size=12, unique=True))
    columns = [draw(st.lists(values, min_size=len(isl), max_size=len(isl))) for _ in range(2)]
    return PrefillSamples(
        isl_tokens=np.array(isl), ttft_s=np.array(columns[0]), throughput_per_gpu=np.array(columns[1])
    )


def surface(samples: PrefillSamples) -> PrefillSurface:
    return build_profile(samples, grid_samples()).prefill


@given(samples=sweeps())
def test_exact_at_the_samples_and_never_beyond_them_between(samples: PrefillSamples) -> None:
    prefill = surface(samples)
    np.testing.assert_allclose(prefill.ttft_s(samples.isl_tokens), samples.ttft_s, rtol=1e-12)
    np.testing.assert_allclose(
        prefill.throughput_per_gpu(samples.isl_tokens), samples.throughput_per_gpu, rtol=1e-12
    )
    isl = np.linspace(samples.isl_tokens.min(), samples.isl_tokens.max(), 333)
    for answer, known in (
        (prefill.ttft_s(isl), samples.ttft_s),
        (prefill.throughput_per_gpu(isl), samples.throughput_per_gpu),
    ):
        assert known.min() * (1 - 1e-12) <= answer.min()
        assert answer.max() <= known.max() * (1 + 1e-12)


@given(samples=sweeps())
def test_monotone_between_neighbours_and_never_falling_above_the_last(samples: PrefillSamples) -> None:
    prefill = surface(samples)
    isl, ttft = prefill.table.isl_tokens, prefill.table.ttft_s
    for i in range(len(isl) - 1):
        between = np.diff(prefill.ttft_s(np.linspace(isl[i], isl[i + 1], 20)))
        assert (between * np.sign(ttft[i + 1] - ttft[i]) >= -1e-12 * ttft.max()).all()
    above = prefill.ttft_s(np.linspace(isl[-1], 10 * isl[-1], 50))
    assert (np.diff(above) >= -1e-12 * above[-1]).all()


@given(samples=sweeps(), seed=st.integers(0, 100))
def test_order_does_not_matter_and_the_table_says_it_all(samples: PrefillSamples, seed: int) -> None:
    order = np.random.default_rng(seed).permutation(len(samples.isl_tokens))
    fields = {name: getattr(samples, name)[order] for name in samples.__slots__}
    table, other = surface(samples).table, surface(PrefillSamples(**fields)).table
    isl = np.geomspace(0.5, 1e6, 60)
    expected = surface(samples).ttft_s(isl)
    growth = (other.linear_s_per_token, other.quadratic_s_per_token2)
    np.testing.assert_array_equal(
        [ttft_at(one, other.isl_tokens, other.ttft_s, *growth) for one in isl], expected
    )
    np.testing.assert_array_equal(table.ttft_s, other.ttft_s)


def test_a_quadratic_engine_is_continued_exactly() -> None:
    prefill = surface(prefill_samples())
    isl = np.array([10_000.0, 50_000.0, 200_000.0])
    ttft = 0.01 + 2e-5 * isl + 1e-9 * isl**2
    np.testing.assert_allclose(prefill.ttft_s(isl), ttft, rtol=1e-6)
    np.testing.assert_allclose(prefill.throughput_per_gpu(isl), isl / ttft, rtol=1e-6)


def test_below_the_first_sample_ttft_is_held_and_throughput_goes_to_zero() -> None:
    prefill = surface(prefill_samples())
    assert prefill.ttft_s(1.0) == prefill.ttft_s(128.0)
    assert prefill.throughput_per_gpu(64.0) == pytest.approx(prefill.throughput_per_gpu(128.0) / 2)


def test_extrapolated_outside_the_samples_and_for_nan() -> None:
    isl = np.array([127.9, 128.0, 8192.0, 8192.1, np.nan])
    assert surface(prefill_samples()).extrapolated(isl).tolist() == [True, False, False, True, True]


TOKENS = np.array([100, 104, 150, 200, 400])


def iteration_s(ttft_s: np.ndarray, itl_s: float) -> float:
    """What an iteration without work costs."""
    grid = grid_samples()
    decode = replace(grid, itl_s=np.full_like(grid.itl_s, itl_s))
    samples = PrefillSamples(isl_tokens=TOKENS, ttft_s=ttft_s, throughput_per_gpu=TOKENS / ttft_s)
    return float(build_profile(samples, decode).prefill.table.work_nodes()[1][0])


def test_noise_between_neighbours_does_not_decide_what_an_iteration_costs_without_work() -> None:
    seconds = 0.003 + 2e-5 * TOKENS
    assert iteration_s(seconds, 1.0) == pytest.approx(0.003)
    assert iteration_s(seconds + np.array([0.0, 0.0004, 0.0, 0.0, 0.0]), 1.0) == pytest.approx(0.003)


def test_an_iteration_without_work_takes_no_longer_than_the_shortest_itl() -> None:
    assert iteration_s(0.003 + 2e-5 * TOKENS, 0.002) == pytest.approx(0.002)
    assert iteration_s(2e-5 * TOKENS - 0.001, 0.002) == pytest.approx(0.0)
