"""The decode surface on small examples: how it is continued, and what its questions and answers look like."""

import pickle

import numpy as np
import pytest
from interp_cases import (
    BASE_S,
    MAX_KV_TOKENS,
    PER_SEQUENCE_S,
    build,
    decode_samples,
    grid_profile,
    grid_samples,
    roofline_itl,
)

from interp import DecodeSurface, ProfileError


def cross() -> DecodeSurface:
    """One well-sampled line and single samples on the others: what published end-to-end tables look like."""
    kv = np.array([0.01, 0.02, 0.05, 0.1, 0.2, 0.02, 0.05, 0.1])
    context = np.array([576.0, 576, 576, 576, 576, 1088, 2112, 4160])
    return build(decode_samples(kv, context, roofline_itl(kv, context))).decode


def test_a_cross_of_samples_recovers_the_engine_it_was_measured_on() -> None:
    kv, context = np.meshgrid(np.linspace(0.1, 0.2, 9), np.geomspace(576, 4160, 9))
    np.testing.assert_allclose(cross().itl_s(kv, context), roofline_itl(kv, context), rtol=1e-6)


def test_above_the_longest_context_itl_is_held_and_throughput_falls_with_the_batch() -> None:
    decode = grid_profile().decode
    assert decode.itl_s(0.5, 80_000) == pytest.approx(decode.itl_s(0.5, 8192), rel=1e-12)
    assert decode.throughput_per_gpu(0.5, 81_920) == pytest.approx(decode.throughput_per_gpu(0.5, 8192) / 10)


def test_below_the_shortest_context_itl_grows_by_the_batch_term() -> None:
    decode = grid_profile().decode
    batch_term = PER_SEQUENCE_S * 0.5 * MAX_KV_TOKENS * (1 / 16 - 1 / 256)
    assert decode.itl_s(0.5, 16) == pytest.approx(decode.itl_s(0.5, 256) + batch_term)
    assert decode.throughput_per_gpu(0.2, 1) == pytest.approx(20_000 / decode.itl_s(0.2, 1))


def test_before_the_first_usage_itl_is_held_and_throughput_goes_to_zero() -> None:
    decode = grid_profile().decode
    assert decode.itl_s(0.0, 1024) == decode.itl_s(0.02, 1024)
    assert decode.throughput_per_gpu(0.01, 1024) == pytest.approx(decode.throughput_per_gpu(0.02, 1024) / 2)
    assert decode.throughput_per_gpu(0.0, 1024) == 0.0


def test_kv_usage_is_clamped_and_said_to_be_outside() -> None:
    decode = grid_profile().decode
    assert decode.itl_s(1.5, 1024) == decode.itl_s(1.0, 1024)
    assert decode.itl_s(-0.5, 1024) == decode.itl_s(0.0, 1024)
    assert decode.extrapolated(np.array([-0.5, 0.01, 0.02, 0.9, 0.91, 1.5]), 1024).tolist() == [
        *(True, True, False),
        *(False, True, True),
    ]


def test_the_domain_of_a_sweep_limited_by_batch_size_ends_at_that_batch() -> None:
    context, batch = (part.ravel() for part in np.meshgrid([200.0, 500.0, 800.0], [1.0, 10.0, 100.0]))
    kv = context * batch / MAX_KV_TOKENS
    decode = build(decode_samples(kv / 3, context, roofline_itl(kv, context))).decode
    for context_tokens in (200.0, 317.0, 640.0, 800.0):
        edge = 100 * context_tokens / MAX_KV_TOKENS / 3
        assert not decode.extrapolated(edge, context_tokens)
        assert decode.extrapolated(edge * 1.001, context_tokens)
        assert decode.domain_end_kv(context_tokens) == pytest.approx(edge)


def test_outside_the_sampled_contexts_is_extrapolated() -> None:
    context = np.array([255.0, 256.0, 8192.0, 8193.0, np.nan])
    assert grid_profile().decode.extrapolated(0.5, context).tolist() == [True, False, False, True, True]


def test_a_line_that_ran_out_of_samples_is_continued_as_the_roofline_says_where_nothing_is_measured() -> None:
    kv = np.array([0.1, 0.2, 0.1, 0.2])
    context = np.array([500.0, 500.0, 1000.0, 1000.0])
    decode = build(decode_samples(kv, context, roofline_itl(kv, context))).decode
    assert decode.itl_s(0.8, 500) == pytest.approx(float(roofline_itl(np.array(0.8), np.array(500.0))))


def test_usages_that_differ_by_rounding_are_one_node() -> None:
    kv, context = np.array([0.3, 0.1 + 0.2, 1e-15, 0.6]), np.array([500.0, 1000.0, 500.0, 1000.0])
    decode = build(decode_samples(kv, context, roofline_itl(kv, context))).decode
    assert decode.table.kv.tolist() == [0.0, 0.3, 0.6, 1.0]
    np.testing.assert_allclose(decode.itl_s(kv, context), roofline_itl(kv, context), rtol=1e-9)


def test_thousands_of_scattered_samples_are_refused_before_memory_runs_out() -> None:
    part = np.linspace(0.01, 1, 2000)
    with pytest.raises(ProfileError, match="2000 different contexts and 2001 different KV usages"):
        build(decode_samples(part, 10_000 * part, part))


def test_samples_of_an_empty_cache_do_not_divide_by_zero() -> None:
    samples = decode_samples(np.array([0.0]), np.array([1000.0]), np.array([BASE_S]))
    decode = build(samples).decode
    assert decode.throughput_per_gpu(0.0, 1000) == samples.throughput_per_gpu[0]
    assert np.isfinite(decode.throughput_per_gpu(0.5, 1000))


def test_a_profile_can_be_pickled() -> None:
    profile = grid_profile()
    copy = pickle.loads(pickle.dumps(profile))
    kv, context = np.linspace(0, 1, 50), np.geomspace(1, 60_000, 50)
    np.testing.assert_array_equal(copy.decode.itl_s(kv, context), profile.decode.itl_s(kv, context))
    assert copy.notes == profile.notes


def test_the_caller_s_arrays_are_not_shared() -> None:
    kv = np.array([0.1, 0.2])
    samples = decode_samples(kv, np.array([1000.0, 1000.0]), np.array([0.01, 0.02]))
    kv[:] = 0.9
    assert samples.kv_usage.tolist() == [0.1, 0.2]
    assert grid_samples().kv_usage.flags.c_contiguous
