"""The profiles that the project ships: loadable, with their provenance, and plausible."""

import numpy as np
import pytest

from benchmarks.embedded_profiles import ENGINES, PROJECT
from headway.config import embedded_profiles
from headway_studies.estimator.request import EstimateRequest
from interp import Profile, load_profile

GPUS = {
    "h100": (989e12, 3.35e12),
    "h200": (989e12, 4.8e12),
    "a100": (312e12, 2.04e12),
    "b200": (2250e12, 8.0e12),
    "l40s": (362e12, 0.864e12),
}
"""By GPU: dense bf16 operations per second at its peak, and bytes per second of its memory."""
MODELS = {
    "llama-3.1-8b": (6.9e9, 13.9e9),
    "qwen3-32b": (31.0e9, 62.0e9),
    "llama-3.1-70b": (68.4e9, 136.9e9),
    "qwen3-30b-a3b": (2.9e9, 5.8e9),
    "gpt-oss-120b": (4.5e9, 2.2e9),
}
"""By model, without embeddings: parameters and bytes that a token takes; of an MoE its chosen experts."""
SHIPPED = {
    EstimateRequest(model=model, system=system).directory_name(tp): tp
    for (model, system), tps in ENGINES.items()
    for tp in tps
}


@pytest.fixture(scope="module")
def profiles() -> dict[str, Profile]:
    return {name: load_profile(PROJECT / name) for name in SHIPPED}


def parts(name: str) -> tuple[str, str]:
    """Model and GPU of a directory's name."""
    model, gpu, _ = name.rsplit("_", 2)
    return model, gpu


def test_these_profiles_are_shipped_and_small() -> None:
    assert set(embedded_profiles()) == set(SHIPPED)
    for name in SHIPPED:
        assert sum(path.stat().st_size for path in (PROJECT / name).rglob("*") if path.is_file()) < 16_000


@pytest.mark.parametrize(("name", "gpus"), SHIPPED.items())
def test_provenance(profiles: dict[str, Profile], name: str, gpus: int) -> None:
    profile = profiles[name]
    meta = profile.meta
    assert profile.gpus_per_engine == gpus == meta["tp"]
    assert (meta["tool"], meta["tool_version"]) == ("AI Configurator", "0.12.0")
    assert meta["database_mode"] == "SILICON"
    assert meta["command"].startswith(f"headway estimate --model {meta['model']} --system {meta['system']}")
    assert "not measured end to end" in meta["source"]
    assert meta["estimated_on"] >= "2026-11-22"
    assert meta["known_errors"]
    assert "/" not in meta["model"].partition("/")[2]
    assert not any("GPUs per engine" in note for note in profile.notes)


@pytest.mark.parametrize("name", SHIPPED)
def test_prefill_grows_with_the_input_and_fits_known_bounds(profiles: dict[str, Profile], name: str) -> None:
    profile, (model, gpu) = profiles[name], parts(name)
    table = profile.prefill.table
    assert table.isl_tokens[0] == 128
    assert table.isl_tokens[-1] >= 32_768
    # Where measured kernels change, a longer prompt may be a little faster; never over an octave.
    octaves = profile.prefill.ttft_s(2.0 ** np.arange(7, 16))
    assert np.all(np.diff(octaves) > 0)
    # Two operations per parameter of the layers and token cannot beat the GPUs' peak.
    fastest_s = 2 * MODELS[model][0] * table.isl_tokens / (profile.gpus_per_engine * GPUS[gpu][0])
    assert np.all(table.ttft_s > fastest_s)


@pytest.mark.parametrize("name", SHIPPED)
def test_decode_grows_with_batch_and_context_and_fits_known_bounds(
    profiles: dict[str, Profile], name: str
) -> None:
    profile, (model, gpu) = profiles[name], parts(name)
    meta, itl = profile.meta, profile.decode.itl_s
    # Measured kernels dip a little between neighbouring batch sizes, by 3 % over a factor of eight at most.
    batches = np.array([1, 8, min(64, meta["max_kv_tokens"] // 1024)])
    at_1k = itl(batches * 1024 / meta["max_kv_tokens"], 1024)
    assert at_1k[0] < 1.03 * at_1k[1] < 1.03 * at_1k[2]
    assert itl(4 * 8192 / meta["max_kv_tokens"], 8192) > itl(4 * 1024 / meta["max_kv_tokens"], 1024)
    # A step reads all weights of one token once: the memory bounds it from below.
    assert at_1k[0] > MODELS[model][1] / (profile.gpus_per_engine * GPUS[gpu][1])


@pytest.mark.parametrize("name", SHIPPED)
def test_the_sampled_range_reaches_the_full_cache(profiles: dict[str, Profile], name: str) -> None:
    profile = profiles[name]
    capacity = profile.meta["max_kv_tokens"]
    context = min(8192, capacity // 8)
    assert not profile.decode.extrapolated(min(0.8, 250 * context / capacity), context)
    assert not profile.prefill.extrapolated(20_000)
    best = profile.decode.best_throughput_per_gpu(0.06, 2048)
    assert best.feasible
    assert best.itl_s <= 0.06


@pytest.mark.parametrize(("faster", "slower"), [("h100", "a100"), ("h200", "h100"), ("b200", "h200")])
def test_a_newer_gpu_is_not_slower(profiles: dict[str, Profile], faster: str, slower: str) -> None:
    """At the same model and number of GPUs; 5 % for kernels of other versions."""
    pairs = [
        (profile, profiles[name.replace(f"_{faster}_", f"_{slower}_")])
        for name, profile in profiles.items()
        if f"_{faster}_" in name and name.replace(f"_{faster}_", f"_{slower}_") in profiles
    ]
    assert pairs
    isl = np.array([512.0, 2048.0, 8192.0, 32_768.0])
    for new, old in pairs:
        assert np.all(new.prefill.ttft_s(isl) < 1.05 * old.prefill.ttft_s(isl))
        for batch in (1.0, 8.0, 16.0):
            usages = [batch * 2048.0 / one.decode.table.max_kv_tokens for one in (new, old)]
            times = [one.decode.itl_s(usage, 2048.0) for one, usage in zip((new, old), usages, strict=True)]
            assert times[0] < 1.05 * times[1]
        assert new.decode.table.max_kv_tokens >= old.decode.table.max_kv_tokens
