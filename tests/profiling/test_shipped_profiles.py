"""The profiles that the project ships: loadable, with their provenance, and plausible."""

import pathlib

import numpy as np
import pytest

import headway
from interp import load_profile

PROFILES = pathlib.Path(headway.__file__).parent / "profiles"
# Parameters without embeddings, rounded down.
LAYER_PARAMETERS = {
    "llama-3.1-8b_h100_tp1": 6.9e9,
    "qwen3-32b_h100_tp2": 31.0e9,
    "llama-3.1-70b_h100_tp4": 68.4e9,
}
SHIPPED = {"llama-3.1-8b_h100_tp1": 1, "qwen3-32b_h100_tp2": 2, "llama-3.1-70b_h100_tp4": 4}


def test_these_profiles_are_shipped_and_small() -> None:
    assert {path.name for path in PROFILES.iterdir() if path.is_dir()} == set(SHIPPED)
    for name in SHIPPED:
        assert sum(path.stat().st_size for path in (PROFILES / name).rglob("*") if path.is_file()) < 16_000


@pytest.mark.parametrize(("name", "gpus"), SHIPPED.items())
def test_provenance(name: str, gpus: int) -> None:
    profile = load_profile(PROFILES / name)
    meta = profile.meta
    assert profile.gpus_per_engine == gpus == meta["tp"]
    assert meta["tool"] == "AI Configurator"
    assert meta["database_mode"] == "SILICON"
    assert meta["command"].startswith(f"headway estimate --model {meta['model']} --system h100_sxm")
    assert "not measured end to end" in meta["source"]
    assert any("extrapolated" in note for note in meta["notes"])
    assert "/" not in meta["model"].partition("/")[2]
    assert not any("GPUs per engine" in note for note in profile.notes)


@pytest.mark.parametrize("name", SHIPPED)
def test_prefill_grows_with_the_input_and_fits_known_bounds(name: str) -> None:
    profile = load_profile(PROFILES / name)
    table = profile.prefill.table
    assert table.isl_tokens[0] == 128
    assert table.isl_tokens[-1] >= 32_768
    assert np.all(np.diff(table.ttft_s) > 0)
    # Two operations per layer parameter and token cannot beat the GPUs' peak of 989 dense bf16 TFLOP/s.
    fastest_s = 2 * LAYER_PARAMETERS[name] * table.isl_tokens / (profile.gpus_per_engine * 989e12)
    assert np.all(table.ttft_s > fastest_s)


@pytest.mark.parametrize("name", SHIPPED)
def test_decode_grows_with_batch_and_context_and_fits_known_bounds(name: str) -> None:
    profile = load_profile(PROFILES / name)
    meta, itl = profile.meta, profile.decode.itl_s
    # Measured kernels dip a little between neighbouring batch sizes, but not over a factor of eight.
    batches = np.array([1, 8, 64])
    at_1k = itl(batches * 1024 / meta["max_kv_tokens"], 1024)
    assert np.all(np.diff(at_1k) > 0)
    assert itl(8 * 8192 / meta["max_kv_tokens"], 8192) > itl(8 * 1024 / meta["max_kv_tokens"], 1024)
    # A step reads all weights, two bytes each, once: the memory's 3.35 TB/s bounds it from below.
    assert at_1k[0] > 2 * LAYER_PARAMETERS[name] / (profile.gpus_per_engine * 3.35e12)


@pytest.mark.parametrize("name", SHIPPED)
def test_the_sampled_range_reaches_the_full_cache(name: str) -> None:
    profile = load_profile(PROFILES / name)
    assert not profile.decode.extrapolated(0.9, 8192)
    assert not profile.prefill.extrapolated(20_000)
    best = profile.decode.best_throughput_per_gpu(0.025, 2048)
    assert best.feasible
    assert best.itl_s <= 0.025
