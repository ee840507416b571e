"""The models that continue the samples: recovered where samples decide, modest where they cannot."""

import numpy as np
import pytest
from interp_cases import (
    BASE_S,
    MAX_KV_TOKENS,
    PER_KV_TOKEN_S,
    PER_SEQUENCE_S,
    build,
    decode_samples,
    grid_samples,
    prefill_samples,
    roofline_itl,
)

from interp import PrefillSamples
from interp.fit import fit_decode, fit_prefill


def test_engines_that_are_what_the_models_say_are_recovered() -> None:
    decode = fit_decode(grid_samples())
    assert decode.base_s == pytest.approx(BASE_S, rel=1e-9)
    assert decode.per_kv_token_s == pytest.approx(PER_KV_TOKEN_S, rel=1e-9)
    assert decode.per_sequence_s == pytest.approx(PER_SEQUENCE_S, rel=1e-9)
    prefill = fit_prefill(prefill_samples())
    assert prefill.base_s == pytest.approx(0.01, rel=1e-9)
    assert prefill.linear_s_per_token == pytest.approx(2e-5, rel=1e-9)
    assert prefill.quadratic_s_per_token2 == pytest.approx(1e-9, rel=1e-9)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("batch", [1.0, 37.0])
@pytest.mark.parametrize("rounding", [0.0, 1e-9, 1e-6, 1e-4])
def test_at_one_batch_size_nothing_is_charged_per_sequence(seed: int, batch: float, rounding: float) -> None:
    context = np.array([200.0, 500.0, 1100.0, 2400.0])
    noise = 1 + rounding * np.random.default_rng(seed).standard_normal(4)
    kv = context * batch / MAX_KV_TOKENS * noise
    model = fit_decode(decode_samples(kv, context, 0.04 + 1e-7 * kv * MAX_KV_TOKENS))
    assert model.base_s == pytest.approx(0.04, rel=1e-3)
    assert model.per_sequence_s * batch < 1e-3 * model.base_s


@pytest.mark.parametrize("seed", range(10))
def test_on_a_single_context_growth_is_charged_to_the_cache(seed: int) -> None:
    kv = np.random.default_rng(seed).random(6)
    samples = decode_samples(kv, np.full(6, 700.0), roofline_itl(kv, np.full(6, 700.0)))
    assert fit_decode(samples).per_sequence_s == 0.0
    decode = build(samples).decode
    assert decode.itl_s(0.5, 10) == pytest.approx(decode.itl_s(0.5, 700))


def test_two_prefills_make_a_line() -> None:
    samples = PrefillSamples(
        isl_tokens=np.array([100, 1000]),
        ttft_s=np.array([0.02, 0.11]),
        throughput_per_gpu=np.array([1e4, 1e4]),
    )
    model = fit_prefill(samples)
    assert model.quadratic_s_per_token2 == 0.0
    assert model.linear_s_per_token == pytest.approx(1e-4, rel=1e-3)


def test_a_falling_curve_is_continued_flat() -> None:
    kv, context = np.array([0.1, 0.2, 0.3]), np.full(3, 1000.0)
    model = fit_decode(decode_samples(kv, context, np.array([0.03, 0.02, 0.01])))
    assert (model.base_s, model.per_kv_token_s, model.per_sequence_s) == (pytest.approx(0.02), 0.0, 0.0)
