"""An engine that is k times as fast: every time divided, every throughput multiplied, all else as it was."""

from collections.abc import Callable

import numpy as np
import pytest
from interp_cases import decode_samples, grid_profile, prefill_samples, roofline_itl

from interp import Profile, ProfileError, build_profile, scaled

SPEEDS = [0.1, 3.0, 1000.0]
ISL = np.array([1.0, 128.0, 700.0, 8192.0, 50_000.0])
KV, CONTEXT = (part.ravel() for part in np.meshgrid([0.0, 0.01, 0.3, 0.77, 1.0], [1.0, 200.0, 5000.0, 2e4]))


def scattered_profile() -> Profile:
    random = np.random.default_rng(5)
    kv, context = random.uniform(0.01, 1.0, 60), random.uniform(100, 9000, 60)
    itl = roofline_itl(kv, context) * random.uniform(0.8, 1.2, 60)
    return build_profile(
        prefill_samples(gpus=2), decode_samples(kv, context, itl, gpus=2), {"tp": 2, "a": "b"}
    )


@pytest.mark.parametrize("speed", SPEEDS)
@pytest.mark.parametrize("make", [grid_profile, scattered_profile])
def test_times_are_divided_and_throughputs_multiplied(make: Callable[[], Profile], speed: float) -> None:
    profile = make()
    fast = scaled(profile, speed)
    pairs = (
        (fast.prefill.ttft_s(ISL), profile.prefill.ttft_s(ISL) / speed),
        (fast.prefill.throughput_per_gpu(ISL), profile.prefill.throughput_per_gpu(ISL) * speed),
        (fast.decode.itl_s(KV, CONTEXT), profile.decode.itl_s(KV, CONTEXT) / speed),
        (fast.decode.throughput_per_gpu(KV, CONTEXT), profile.decode.throughput_per_gpu(KV, CONTEXT) * speed),
        (fast.prefill.samples.ttft_s, profile.prefill.samples.ttft_s / speed),
        (fast.decode.samples.itl_s, profile.decode.samples.itl_s / speed),
    )
    for found, expected in pairs:
        np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("speed", SPEEDS)
def test_the_best_point_moves_with_the_speed(speed: float) -> None:
    profile = scattered_profile()
    fast = scaled(profile, speed)
    for context in (300.0, 2000.0):
        slow_best = profile.decode.best_throughput_per_gpu(0.03, context)
        best = fast.decode.best_throughput_per_gpu(0.03 / speed, context)
        assert best.kv_usage == pytest.approx(slow_best.kv_usage, rel=1e-9)
        assert best.throughput_per_gpu == pytest.approx(slow_best.throughput_per_gpu * speed, rel=1e-9)
        assert best.feasible == slow_best.feasible


def test_everything_else_stays_and_a_note_says_so() -> None:
    profile = scattered_profile()
    fast = scaled(profile, 4.0)
    assert fast.meta == profile.meta
    assert fast.gpus_per_engine == profile.gpus_per_engine
    assert fast.decode.table.max_kv_tokens == profile.decode.table.max_kv_tokens
    assert fast.decode.largest_batch == profile.decode.largest_batch
    *kept, said = fast.notes
    assert tuple(kept) == profile.notes
    assert said == "all times scaled: an engine 4 times as fast as the one profiled"


def test_speed_one_is_the_profile_itself() -> None:
    profile = grid_profile()
    assert scaled(profile, 1.0) is profile


@pytest.mark.parametrize("speed", [0.0, -1.0, float("inf"), float("nan")])
def test_a_speed_that_is_none_is_refused(speed: float) -> None:
    with pytest.raises(ProfileError, match="speed: must be positive and finite"):
        scaled(grid_profile(), speed)
