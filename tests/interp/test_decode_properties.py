"""What holds for the decode surface through any samples."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from interp_cases import build, grid_samples, points, roofline_itl, shuffled, sweeps

from interp import DecodeSamples
from interp.kernels import bilinear

CLOSE = 1e-12


@given(samples=sweeps())
def test_exact_at_the_samples_and_inside_their_domain(samples: DecodeSamples) -> None:
    decode = build(samples).decode
    at = (samples.kv_usage, samples.context_tokens)
    np.testing.assert_allclose(decode.itl_s(*at), samples.itl_s, rtol=CLOSE)
    np.testing.assert_allclose(decode.throughput_per_gpu(*at), samples.throughput_per_gpu, rtol=CLOSE)
    assert not decode.extrapolated(*at).any()


@given(samples=sweeps())
def test_never_negative_never_nan_anywhere(samples: DecodeSamples) -> None:
    decode = build(samples).decode
    kv, context = points()
    assert (decode.itl_s(kv, context) > 0).all()
    assert (decode.throughput_per_gpu(kv, context) >= 0).all()


def points_inside(samples: DecodeSamples, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Points of the sampled domain, many of them on its very edges and close to a line."""
    domain = build(samples).decode.domain
    rng = np.random.default_rng(seed)
    known = domain.context_tokens
    near = np.clip(rng.choice(known, 300) * (1 + 10.0 ** rng.uniform(-9, 0, 300)), known[0], known[-1])
    context = np.concatenate([rng.uniform(known[0], known[-1], 300), near, known])
    low, high = (np.interp(context, known, edge) for edge in (domain.first_kv, domain.last_kv))
    return low + (high - low) * rng.choice([0.0, 1e-6, rng.random(), 0.999, 1.0], len(context)), context


@given(samples=sweeps(), seed=st.integers(0, 100))
def test_never_beyond_the_samples_inside_their_domain(samples: DecodeSamples, seed: int) -> None:
    decode = build(samples).decode
    kv, context = points_inside(samples, seed)
    assert not decode.extrapolated(kv, context).any()
    for answer, known in (
        (decode.itl_s(kv, context), samples.itl_s),
        (decode.throughput_per_gpu(kv, context), samples.throughput_per_gpu),
    ):
        assert answer.max() <= known.max() * (1 + CLOSE)
        assert answer.min() >= known.min() * (1 - CLOSE)


@given(samples=sweeps(rising=True))
def test_itl_rises_with_kv_usage_where_every_line_does(samples: DecodeSamples) -> None:
    decode = build(samples).decode
    _, contexts = points(30)
    kv = np.linspace(0, 1, 301)
    itl = decode.itl_s(kv, contexts[:, None])
    assert (np.diff(itl, axis=1) >= -CLOSE * itl.max()).all()


def with_itl_of_context(samples: DecodeSamples, descending: bool) -> DecodeSamples:
    """Full-grid `samples` with ITLs re-dealt, per KV usage, in order of context."""
    itl = samples.itl_s.copy()
    for kv in np.unique(samples.kv_usage):
        column = np.flatnonzero(samples.kv_usage == kv)
        by_context = column[np.argsort(samples.context_tokens[column])]
        values = np.sort(itl[column])
        itl[by_context] = values[::-1] if descending else values
    return DecodeSamples(
        max_kv_tokens=samples.max_kv_tokens,
        kv_usage=samples.kv_usage,
        context_tokens=samples.context_tokens,
        itl_s=itl,
        throughput_per_gpu=samples.throughput_per_gpu,
    )


@given(samples=sweeps(grid=True))
def test_itl_falls_with_context_everywhere_where_a_full_grid_does(samples: DecodeSamples) -> None:
    decode = build(with_itl_of_context(samples, descending=True)).decode
    context = np.geomspace(1, 60_000, 200)
    for kv in np.linspace(0, 1, 21):
        itl = decode.itl_s(float(kv), context)
        assert (np.diff(itl) <= CLOSE * itl.max()).all()


@given(samples=sweeps(grid=True))
def test_itl_rises_with_context_between_samples_where_a_full_grid_does(samples: DecodeSamples) -> None:
    decode = build(with_itl_of_context(samples, descending=False)).decode
    known = decode.domain
    context = np.linspace(known.context_tokens[0], known.context_tokens[-1], 200)
    for kv in np.linspace(known.first_kv[0], known.last_kv[0], 15):
        itl = decode.itl_s(float(kv), context)
        assert (np.diff(itl) >= -CLOSE * itl.max()).all()


@given(samples=sweeps(), seed=st.integers(0, 1000))
def test_the_order_of_samples_does_not_matter(samples: DecodeSamples, seed: int) -> None:
    one, other = build(samples).decode, build(shuffled(samples, seed)).decode
    np.testing.assert_array_equal(one.table.itl_s, other.table.itl_s)
    np.testing.assert_array_equal(one.table.throughput_per_gpu, other.table.throughput_per_gpu)
    np.testing.assert_array_equal(one.table.kv, other.table.kv)


@given(samples=sweeps())
def test_the_table_says_what_the_surface_says(samples: DecodeSamples) -> None:
    decode = build(samples).decode
    table = decode.table
    kv, context = points(20)
    expected = decode.itl_s(kv, context)
    for i in range(len(kv)):
        found = bilinear(kv[i], 1 / context[i], table.kv, table.inv_context, table.itl_s)
        assert found == expected[i]
    assert (np.diff(table.kv) > 0).all()
    assert (np.diff(table.inv_context) > 0).all()


def test_a_roofline_is_reproduced_between_its_samples_and_beyond() -> None:
    decode = build(grid_samples()).decode
    kv, context = points()
    inside = (kv >= 0.02) & (context <= 8192)
    np.testing.assert_allclose(
        decode.itl_s(kv[inside], context[inside]), roofline_itl(kv[inside], context[inside]), rtol=1e-9
    )
