"""Results of benchmarks and the mocker's profile: read as far as they hold a profile, else named."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headway.profiling import ForeignProfileError
from headway.profiling.result_files import import_mocker, import_results
from interp import build_profile

CONTEXT, RATE, TPOT_S = 1024 + 256 / 2, 2.0, 0.02


def vllm(isl: int, ttft_ms: float, **changes: Any) -> dict[str, Any]:
    result = {
        "completed": 100,
        "request_throughput": RATE,
        "total_input_tokens": isl * 100,
        "total_output_tokens": 25_600,
        "mean_ttft_ms": 2 * ttft_ms,
        "median_ttft_ms": ttft_ms,
        "mean_tpot_ms": 1e3 * TPOT_S,
    }
    return {key: value for key, value in (result | changes).items() if value is not None}


def guidellm(*loads: tuple[int, float]) -> dict[str, Any]:
    def benchmark(isl: int, ttft_ms: float) -> dict[str, Any]:
        means = {
            "requests_per_second": RATE,
            "prompt_token_count": isl,
            "output_token_count": 256,
            "time_to_first_token_ms": ttft_ms,
            "inter_token_latency_ms": 1e3 * TPOT_S,
        }
        return {"metrics": {key: {"successful": {"mean": mean}} for key, mean in means.items()}}

    return {"metadata": {"guidellm_version": "0.8.1"}, "benchmarks": [benchmark(*load) for load in loads]}


def folder(place: Path, *results: dict[str, Any]) -> Path:
    for number, result in enumerate(results):
        (place / f"{number}.json").write_text(json.dumps(result))
    (place / "notes.txt").write_text("another file")
    return place


@pytest.mark.parametrize(
    "results",
    [
        (vllm(1024, 60.0), vllm(4096, 200.0), vllm(1024, 90.0)),
        (guidellm((1024, 60.0), (4096, 200.0), (1024, 90.0)),),
        (guidellm((1024, 90.0)), guidellm((1024, 60.0), (4096, 200.0))),
    ],
)
def test_results_at_two_prompt_lengths_are_a_profile(
    tmp_path: Path, results: tuple[dict[str, Any], ...]
) -> None:
    found = import_results(folder(tmp_path, *results), max_kv_tokens=100_000, gpus=2)
    assert found.prefill.isl_tokens.tolist() == [1024, 4096]
    assert found.prefill.ttft_s.tolist() == pytest.approx([0.06, 0.2])
    assert set(np.round(found.decode.batch_size, 6)) == {round(RATE * 255 * TPOT_S, 6)}
    assert CONTEXT in found.decode.context_tokens
    assert build_profile(found.prefill, found.decode, found.meta).gpus_per_engine == 2


@pytest.mark.parametrize(
    ("results", "says"),
    [
        ((vllm(1024, 60.0),), r"vllm bench serve: prompt lengths 1024, .* --random-input-len"),
        ((guidellm((512, 60.0)),), r"GuideLLM: prompt lengths 512, .* headway profile --engine URL"),
        (
            (vllm(1024, 60.0), vllm(4096, 90.0, mean_tpot_ms=None)),
            r"1\.json: taken for .*'mean_tpot_ms' is missing",
        ),
        ((vllm(1024, 60.0), vllm(4096, 90.0, completed=0)), r"1\.json: taken for .*division"),
        ((), "neither a profile nor results"),
    ],
)
def test_what_results_lack_is_said(tmp_path: Path, results: tuple[dict[str, Any], ...], says: str) -> None:
    with pytest.raises(ForeignProfileError, match=says) as caught:
        import_results(folder(tmp_path, *results), max_kv_tokens=100_000, gpus=1)
    assert "\n" not in str(caught.value)


def test_the_size_of_the_cache_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(ForeignProfileError, match="--max-kv-tokens: needed"):
        import_results(folder(tmp_path, vllm(1024, 60.0), vllm(4096, 200.0)), max_kv_tokens=None, gpus=1)


def mocker(path: Path, **changes: Any) -> Path:
    arrays = {
        "prefill_isl": [0.0, 128.0, 4096.0],
        "prefill_ttft_ms": [0.0, 8.0, 90.0],
        "decode_active_kv_tokens": [0.0, 1000.0, 100_000.0],
        "decode_context_length": [500.0, 2000.0],
        "decode_itl": [[6.0, 6.0], [7.0, 7.0], [15.0, 16.0]],
    }
    np.savez(path, **{key: np.array(value) for key, value in (arrays | changes).items() if value is not None})
    return path


def test_a_profile_of_the_mocker_is_read(tmp_path: Path) -> None:
    found = import_mocker(mocker(tmp_path / "m.npz"), max_kv_tokens=None, gpus=2)
    assert found.prefill.isl_tokens.tolist() == [128, 4096]
    assert found.prefill.ttft_s.tolist() == [0.008, 0.09]
    assert found.decode.max_kv_tokens == 100_000
    assert found.decode.batch_size.tolist() == pytest.approx([2, 200, 50])
    assert found.decode.itl_s.tolist() == [0.007, 0.015, 0.016]
    assert build_profile(found.prefill, found.decode, found.meta).gpus_per_engine == 2


@pytest.mark.parametrize("changes", [{"decode_itl": [[6.0, 6.0]]}, {"prefill_ttft_ms": [0.0, -1.0, 2.0]}])
def test_a_broken_profile_of_the_mocker_is_one_line(tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(ForeignProfileError, match=r"m\.npz: taken for a profile of Dynamo's mocker: "):
        import_mocker(mocker(tmp_path / "m.npz", **changes), max_kv_tokens=None, gpus=1)
