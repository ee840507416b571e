"""The adapter against the real library, which is an optional extra."""

import importlib.resources
import importlib.util
import logging
import os
import pathlib
import subprocess
import sys
import warnings

import pytest

from headway.profiling import RequestError
from headway_studies.estimator import library
from headway_studies.estimator.aiconfigurator import AiConfigurator
from headway_studies.estimator.estimate import estimate
from headway_studies.estimator.library import known_models, supported
from headway_studies.estimator.request import (
    DoesNotFitError,
    EngineSpec,
    EstimateRequest,
    ExtraNotInstalledError,
    NotMeasuredError,
    UnknownNameError,
)

INSTALLED = importlib.util.find_spec("aiconfigurator") is not None
LLAMA_8B = "meta-llama/Meta-Llama-3.1-8B"

needs_library = pytest.mark.skipif(
    not INSTALLED and not os.environ.get("CI"),
    reason="the extra headway[estimate] (aiconfigurator) is not installed",
)


def spec(**options: object) -> EngineSpec:
    return EngineSpec(**{"model": LLAMA_8B, "system": "h100_sxm", "backend": "vllm", "tp": 1} | options)  # type: ignore[arg-type]


def test_a_missing_library_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "DISTRIBUTION", "a-distribution-that-is-not-there")
    with pytest.raises(ExtraNotInstalledError, match=r"pip install 'headway\[estimate\]'"):
        estimate(EstimateRequest(model=LLAMA_8B, system="h100_sxm"))


@needs_library
@pytest.mark.slow
def test_the_engines_sizes_are_those_of_the_model_and_the_gpu() -> None:
    facts = AiConfigurator(spec()).facts
    assert facts.max_context_tokens == 131_072
    assert facts.kv_bytes_per_token == 2 * 32 * 8 * 128 * 2  # K and V, layers, KV heads, head size, bytes
    assert (facts.weights_dtype, facts.kv_cache_dtype) == ("bfloat16", "bfloat16")
    # 0.9 x 80 GiB less 16 GB of weights less buffers, over 128 KiB a token
    assert 350_000 < facts.max_kv_tokens < 460_000


def test_importing_the_adapter_loads_no_library() -> None:
    check = (
        "import sys, headway_studies.estimator.aiconfigurator; "
        "print([m for m in sys.modules if m.startswith('aic')])"
    )
    result = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


@needs_library
@pytest.mark.slow
def test_kv_bytes_do_not_depend_on_tensor_parallelism() -> None:
    one, two = AiConfigurator(spec()).facts, AiConfigurator(spec(tp=2)).facts
    assert one.kv_bytes_per_token == two.kv_bytes_per_token
    assert two.max_kv_tokens > 2 * one.max_kv_tokens


@needs_library
@pytest.mark.slow
def test_latencies_follow_load() -> None:
    engine = AiConfigurator(spec())
    assert (
        0
        < engine.prefill_ms(1)
        < engine.prefill_ms(256)
        < engine.prefill_ms(2_048)
        < engine.prefill_ms(16_384)
    )
    assert engine.prefill_ms(2_048) == engine.prefill_ms(2_048)
    assert 0 < engine.decode_ms(1, 1) < engine.decode_ms(1, 8_192) < engine.prefill_ms(8_192)
    assert engine.decode_ms(1, 1_024) < engine.decode_ms(64, 1_024) < engine.decode_ms(64, 4_096)
    assert AiConfigurator(spec(quantization="fp8")).decode_ms(1, 1_024) < engine.decode_ms(1, 1_024)


@needs_library
@pytest.mark.slow
def test_notes_say_what_was_not_measured() -> None:
    engine = AiConfigurator(spec())
    engine.prefill_ms(1_024)
    assert not any("extrapolated" in note for note in engine.provenance().notes)
    engine.prefill_ms(100_000)
    engine.decode_ms(256, 60_000)
    notes = " | ".join(engine.provenance().notes)
    assert "prefill: 1 of 2 points lie beyond the measured attention" in notes
    assert "decode: 1 of 1 points lie beyond the measured attention" in notes
    assert "empirical" in notes
    assert "site-packages" not in notes


@needs_library
@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"system": "abacus"}, UnknownNameError, "unknown system 'abacus'; known: .*h100_sxm"),
        (
            {"backend": "ollama"},
            UnknownNameError,
            "unknown backend 'ollama' on h100_sxm; known: sglang, trtllm, vllm",
        ),
        ({"quantization": "int1"}, UnknownNameError, "unknown quantization 'int1'; known: bf16, fp8"),
        (
            {"backend_version": "9"},
            UnknownNameError,
            "unknown backend version '9' of vllm on h100_sxm; known: ",
        ),
        (
            {"model": "llama-3.1-8b"},
            UnknownNameError,
            "unknown model 'llama-3.1-8b'; .*meta-llama/Meta-Llama-3.1-8B",
        ),
        (
            {"model": "meta-llama/Meta-Llama-3.1-70B"},
            DoesNotFitError,
            "does not fit; weights and buffers take 13\\d\\.\\d GiB",
        ),
        ({"tp": 3}, NotMeasuredError, "3 x h100_sxm with vllm: .*divisible"),
        ({"system": "a100_sxm", "quantization": "fp8"}, NotMeasuredError, "a100_sxm with vllm: .*fp8"),
    ],
)
def test_what_cannot_be_estimated_is_one_line(
    options: dict[str, object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message) as raised:
        AiConfigurator(spec(**options)).prefill_ms(128)
    assert "\n" not in str(raised.value)


@needs_library
def test_the_catalogue_names_what_the_readme_uses() -> None:
    assert LLAMA_8B in known_models()
    assert not any(name.endswith("_hf_quant") for name in known_models())
    assert {"vllm", "sglang", "trtllm"} <= set(supported()["a100_sxm"])


@needs_library
def test_the_library_stays_silent(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    filters = list(warnings.filters)
    profiles = estimate(
        EstimateRequest(model="Qwen/Qwen3-32B", system="h100_sxm", tps=(1, 2), isl_points=3, context_points=2)
    )
    assert [profile.name for profile in profiles] == ["qwen3-32b_h100_tp1", "qwen3-32b_h100_tp2"]
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("", "")
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert list(warnings.filters) == filters


@needs_library
def test_a_model_may_be_a_local_directory(tmp_path: pathlib.Path) -> None:
    carried = importlib.resources.files("aiconfigurator_core") / "model_configs"
    text = (carried / "meta-llama--Meta-Llama-3.1-8B_config.json").read_text()
    (tmp_path / "config.json").write_text(text)
    assert AiConfigurator(spec(model=str(tmp_path))).facts.kv_bytes_per_token == 131_072


@needs_library
@pytest.mark.parametrize("text", ["{}", "not json", "[]", '{"architectures": "Llama"}'])
def test_a_broken_model_configuration_is_one_line(tmp_path: pathlib.Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(RequestError, match=r"config\.json: not a") as raised:
        AiConfigurator(spec(model=str(tmp_path)))
    assert "\n" not in str(raised.value)
