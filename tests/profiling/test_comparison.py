import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.config import resolve_profile
from headway.planning.types import Slo
from headway.profiling import RequestError
from headway.profiling.comparison import TargetLoad, compare_profiles, recommend
from interp import DecodeSamples, PrefillSamples, Profile, build_profile, load_profile, scaled

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


CAPACITY = 100_000.0


def engine(tp: int, speed: float) -> Profile:
    """`speed` times as fast as one GPU: TTFT 10 ms + 0.1 ms a token, ITL 5 ms + 0.2 ms a request."""
    isl = np.array([100.0, 1000.0, 10_000.0])
    ttft_s = (0.010 + 1e-4 * isl) / speed
    context, batch = (grid.ravel() for grid in np.meshgrid([500.0, 4000.0], [1.0, 5.0, 20.0]))
    itl_s = (0.005 + 2e-4 * batch) / speed
    return build_profile(
        PrefillSamples(isl_tokens=isl, ttft_s=ttft_s, throughput_per_gpu=isl / ttft_s / tp),
        DecodeSamples(
            max_kv_tokens=CAPACITY,
            kv_usage=batch * context / CAPACITY,
            context_tokens=context,
            itl_s=itl_s,
            throughput_per_gpu=batch / itl_s / tp,
        ),
        {"tp": tp},
    )


ENGINES = {1: engine(1, 1.0), 2: engine(2, 1.8), 4: engine(4, 3.0)}


def load(ttft_ms: float, itl_ms: float, isl: float = 1000.0, osl: float = 200.0) -> TargetLoad:
    return TargetLoad(isl_tokens=isl, osl_tokens=osl, slo=Slo(ttft_s=ttft_ms / 1e3, itl_s=itl_ms / 1e3))


def test_loose_targets_take_the_smallest_size_for_its_throughput_per_gpu() -> None:
    found = recommend(ENGINES, load(ttft_ms=500, itl_ms=20))
    assert (found.prefill.tp, found.decode.tp) == (1, 1)
    assert found.prefill.feasible
    assert found.decode.feasible
    assert found.prefill.latency_s == pytest.approx(0.110)


def test_tight_targets_take_the_smallest_size_that_meets_them_for_each_phase_alone() -> None:
    found = recommend(ENGINES, load(ttft_ms=70, itl_ms=2.0))
    assert (found.prefill.tp, found.decode.tp) == (2, 4)
    assert found.decode.latency_s <= 0.002


def test_where_nothing_meets_them_the_fastest_is_taken_and_said_not_to() -> None:
    found = recommend(ENGINES, load(ttft_ms=1, itl_ms=0.1))
    assert (found.prefill.tp, found.decode.tp) == (4, 4)
    assert not found.prefill.feasible
    assert not found.decode.feasible


def test_thresholds_follow_the_published_formulas() -> None:
    found = recommend({1: ENGINES[1]}, load(ttft_ms=220, itl_ms=7))
    assert found.prefill.scale_up_above == pytest.approx(1.2 * 220 / 110 - 1)
    assert found.prefill.scale_down_below == pytest.approx(0.8 * 220 / 110 - 1)
    usage = found.decode.kv_usage
    assert usage is not None
    assert found.decode.latency_s <= 0.007
    assert found.decode.scale_up_above == pytest.approx(usage + 0.2)
    assert found.decode.scale_down_below == 0.1


def test_a_load_outside_the_samples_is_said_to_be() -> None:
    found = recommend(ENGINES, load(ttft_ms=5000, itl_ms=20, isl=20_000.0))
    assert found.prefill.extrapolated
    assert found.decode.extrapolated


@given(st.floats(1.0, 1e4), st.floats(0.5, 1e3))
def test_a_recommended_size_is_never_beaten_by_another_that_meets_the_targets(
    ttft_ms: float, itl_ms: float
) -> None:
    wanted = load(ttft_ms, itl_ms)
    found = recommend(ENGINES, wanted)
    for tp, profile in ENGINES.items():
        alone = recommend({tp: profile}, wanted)
        for chosen, other in ((found.prefill, alone.prefill), (found.decode, alone.decode)):
            assert chosen.feasible >= other.feasible
            if chosen.feasible and other.feasible:
                assert chosen.throughput_per_gpu >= other.throughput_per_gpu
        assert 0.1 <= found.decode.scale_down_below <= found.decode.scale_up_above <= 1.0


@pytest.mark.parametrize(("field", "value"), [("isl", 0.0), ("osl", -1.0), ("isl", float("nan"))])
def test_a_load_without_tokens_is_refused(field: str, value: float) -> None:
    with pytest.raises(RequestError, match=f"^{field}: expected a number above 0"):
        load(100, 10, **{field: value})
