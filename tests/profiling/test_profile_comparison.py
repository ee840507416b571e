import pytest

from headway.config import resolve_profile
from headway.profiling.comparison import compare_profiles
from interp import PrefillSamples, build_profile, load_profile, scaled

PROFILE = load_profile(resolve_profile("llama-3.1-8b_h100_tp1"))


def test_a_profile_is_like_itself() -> None:
    for ratios in compare_profiles(PROFILE, PROFILE).values():
        assert ratios.outside == 0
        assert ratios.least == pytest.approx(1.0)
        assert ratios.most == pytest.approx(1.0)


def test_one_that_is_twice_as_fast_has_half_the_latencies_and_twice_the_throughput() -> None:
    found = compare_profiles(PROFILE, scaled(PROFILE, 2.0))
    assert found["TTFT"].median == pytest.approx(0.5)
    assert found["ITL"].most == pytest.approx(0.5)
    assert found["decode throughput per GPU"].least == pytest.approx(2.0)


def test_samples_that_the_other_does_not_cover_are_counted_apart() -> None:
    samples = PROFILE.prefill.samples
    shorter = PrefillSamples(
        isl_tokens=samples.isl_tokens[:10],
        ttft_s=samples.ttft_s[:10],
        throughput_per_gpu=samples.throughput_per_gpu[:10],
    )
    found = compare_profiles(PROFILE, build_profile(shorter, PROFILE.decode.samples))
    assert (found["TTFT"].points, found["TTFT"].outside) == (10, len(samples.isl_tokens) - 10)
    assert found["ITL"].outside == 0
