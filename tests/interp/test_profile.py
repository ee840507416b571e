"""What a profile says of itself: GPUs, notes, coverage."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from interp_cases import build, decode_samples, grid_profile, grid_samples, prefill_samples, roofline_itl

from interp import Coverage, PrefillSamples, ProfileError, build_profile

KV, CONTEXT = np.array([0.1, 0.2, 0.4]), np.full(3, 1000.0)


@pytest.mark.parametrize("gpus", [1, 2, 8])
def test_gpus_per_engine_follow_from_the_tables(gpus: int) -> None:
    decode = decode_samples(KV, CONTEXT, roofline_itl(KV, CONTEXT), gpus=gpus * 1.05)
    profile = build_profile(prefill_samples(gpus=gpus), decode)
    assert profile.prefill.gpus_per_engine == profile.decode.gpus_per_engine == gpus
    assert profile.gpus_per_engine == gpus
    assert profile.notes == ()


def test_roles_that_differ_are_noted() -> None:
    decode = decode_samples(KV, CONTEXT, roofline_itl(KV, CONTEXT), gpus=4)
    profile = build_profile(prefill_samples(gpus=2), decode)
    assert (profile.prefill.gpus_per_engine, profile.decode.gpus_per_engine) == (2, 4)
    assert profile.gpus_per_engine == 4
    assert profile.notes == ("prefill has 2 GPUs per engine, decode has 4",)


def test_tables_far_from_a_whole_count_are_noted() -> None:
    profile = build_profile(prefill_samples(gpus=0.6), grid_samples())
    assert profile.notes == ("prefill tables look like 0.6 GPUs per engine, taken as 1",)


@pytest.mark.parametrize("meta", [{"gpus_per_engine": 4, "tp": 2}, {"tp": 4}, {"tp": 4.0}])
def test_meta_wins_and_a_disagreement_is_noted(meta: dict[str, float]) -> None:
    profile = build_profile(prefill_samples(), grid_samples(), meta)
    assert profile.prefill.gpus_per_engine == profile.decode.gpus_per_engine == 4
    assert profile.notes[0] == "prefill tables look like 1 GPUs per engine, taken as 4"


@pytest.mark.parametrize("value", ["4", 0, -1, 2.5, True, float("nan"), [4]])
def test_meta_that_is_not_a_count_is_refused_by_name(value: object) -> None:
    with pytest.raises(ProfileError, match=r"meta.json: tp: must be a "):
        build_profile(prefill_samples(), grid_samples(), {"tp": value})


def test_meta_may_limit_the_batch() -> None:
    profile = build_profile(prefill_samples(), grid_samples(), {"max_batch_size": 8})
    assert profile.decode.largest_batch == 8
    assert grid_profile().decode.largest_batch == pytest.approx(0.9 * 100_000 / 256)


def test_samples_that_fall_are_kept_and_noted_once_per_curve() -> None:
    itl = np.array([0.010, 0.012, 0.009, 0.0085, 0.020])
    kv, context = np.array([0.1, 0.2, 0.3, 0.4, 0.5]), np.full(5, 1000.0)
    profile = build(decode_samples(kv, context, itl))
    assert profile.notes == (
        "decode ITL at context 1000 falls 2 times, most between kv 0.2 and 0.3: from 12 to 9 ms (-25.0 %)",
    )
    np.testing.assert_allclose(profile.decode.itl_s(kv, 1000), itl)


def test_ttft_that_falls_is_noted() -> None:
    prefill = PrefillSamples(
        isl_tokens=np.array([200, 100]),
        ttft_s=np.array([0.05, 0.1]),
        throughput_per_gpu=np.array([4000, 1000]),
    )
    assert build_profile(prefill, grid_samples()).notes == (
        "prefill TTFT falls 1 time, most between ISL 100 and 200: from 100 to 50 ms (-50.0 %)",
    )


def test_repeated_samples_are_merged_to_their_median_and_noted() -> None:
    kv, itl = np.array([0.2, 0.1, 0.2, 0.2]), np.array([0.03, 0.01, 0.02, 0.09])
    decode = build(decode_samples(kv, np.full(4, 1000.0), itl))
    assert decode.notes == ("decode context 1000, kv 0.2: 3 samples merged to their median",)
    assert decode.decode.itl_s(0.2, 1000) == 0.03
    prefill = PrefillSamples(
        isl_tokens=np.array([100, 200, 100]),
        ttft_s=np.array([0.1, 0.4, 0.2]),
        throughput_per_gpu=np.array([1000, 500, 500]),
    )
    profile = build_profile(prefill, grid_samples())
    assert profile.notes == ("prefill ISL 100: 2 samples merged to their median",)
    assert profile.prefill.ttft_s(100) == pytest.approx(0.15)


def test_a_cache_that_no_simulation_could_count_is_refused() -> None:
    with pytest.raises(ProfileError, match=r"max_kv_tokens: must be at most 1e\+12, is 1e\+15"):
        replace(grid_samples(), max_kv_tokens=1e15)


def test_importing_loads_neither_numba_nor_scipy() -> None:
    code = "import sys, interp; print(sorted({'numba', 'scipy'} & set(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_coverage_gives_the_shares_outside() -> None:
    isl = np.array([100, 128, 8000, 8192, 9000, np.nan])
    osl = np.array([500, 10, 384, 400, 10, 10])
    assert grid_profile().coverage(isl, osl) == Coverage(
        requests=6, isl_outside=pytest.approx(3 / 6), context_outside=pytest.approx(4 / 6)
    )
    assert grid_profile().coverage(np.array([]), np.array([])).isl_outside == 0.0
    assert grid_profile().coverage(0, 10).isl_outside == 1.0
