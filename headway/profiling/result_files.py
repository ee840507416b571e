"""Results of `vllm bench serve` and GuideLLM → points; the one-file profile of Dynamo's mocker → a profile.

A result of `vllm bench serve` is one point, a report of GuideLLM one for each of its loads. Those of a folder
belong together. The mocker's file has prefill_isl, prefill_ttft_ms [points]; decode_active_kv_tokens [kv],
decode_context_length [context], decode_itl (ms) [kv, context].
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from headway.profiling import ForeignProfileError
from headway.profiling.foreign_profiles import MS_PER_S, content_of, npz_arrays
from headway.profiling.points import ForeignProfile, Point, profile_of
from headway.workload.known_files import GUIDELLM, MOCKER, VLLM, known_file
from interp import DecodeSamples, PrefillSamples, ProfileError


def import_results(path: Path, *, max_kv_tokens: int | None, gpus: int) -> ForeignProfile:
    """The profile in a result file, or in a folder of them, of engines on `gpus` GPUs.

    Raises ForeignProfileError, which says what the files are taken for and what they lack.
    """
    files = sorted(each for each in path.iterdir() if each.is_file()) if path.is_dir() else [path]
    kinds = {each: kind for each in files if (kind := known_file(each)) in (VLLM, GUIDELLM)}
    if not kinds:
        raise ForeignProfileError(
            f"{path}: holds neither a profile nor results of a benchmark that are known"
        )
    points: list[Point] = []
    for each, kind in kinds.items():
        try:
            points += _points(content_of(each))
        except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
            what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            raise ForeignProfileError(f"{each}: taken for {kind.name}: {what}") from error
    return profile_of(points, path, kinds[next(iter(kinds))], max_kv_tokens=max_kv_tokens, gpus=gpus)


def _points(content: Any) -> Iterator[Point]:  # noqa: ANN401 - whatever the file holds
    if "benchmarks" not in content:
        count = content["completed"]
        yield _point(
            content["total_input_tokens"] / count,
            content["total_output_tokens"] / count,
            content["request_throughput"],
            content.get("median_ttft_ms") or content["mean_ttft_ms"],
            content["mean_tpot_ms"],
        )
        return
    for benchmark in content["benchmarks"]:
        mean = _Means(benchmark["metrics"])
        yield _point(
            mean["prompt_token_count"],
            mean["output_token_count"],
            mean["requests_per_second"],
            mean["time_to_first_token_ms"],
            mean["inter_token_latency_ms"],
        )


class _Means(dict[str, Mapping[str, Any]]):
    """The means of GuideLLM's metrics over the requests that were served."""

    def __getitem__(self, key: str) -> Any:  # noqa: ANN401
        return super().__getitem__(key)["successful"]["mean"]


def _point(isl: float, osl: float, rate_rps: float, ttft_ms: float, tpot_ms: float) -> Point:
    # Lengths that differ by sampling alone are the same.
    return Point.by_rate(round(isl), osl, rate_rps, ttft_ms / MS_PER_S, tpot_ms / MS_PER_S)


def import_mocker(path: Path, *, max_kv_tokens: int | None, gpus: int) -> ForeignProfile:
    """The profile in a file of the mocker; its KV cache is as large as its largest sample, if not said.

    Raises ForeignProfileError, one line: file, key and fault.
    """
    arrays = npz_arrays(path)
    try:
        kv_tokens, prompts = arrays["decode_active_kv_tokens"], arrays["prefill_isl"] > 0
        context, kv = (each.ravel() for each in np.meshgrid(arrays["decode_context_length"], kv_tokens))
        # Fewer tokens than a context are no batch.
        real = kv >= np.maximum(context, 1.0)
        return ForeignProfile(
            tp=gpus,
            prefill=PrefillSamples.timed(
                arrays["prefill_isl"][prompts], arrays["prefill_ttft_ms"][prompts] / MS_PER_S, gpus
            ),
            decode=DecodeSamples.timed(
                kv[real] / context[real],
                context[real],
                arrays["decode_itl"].ravel()[real] / MS_PER_S,
                max_kv_tokens=float(max_kv_tokens or kv_tokens.max()),
                gpus=gpus,
            ),
            meta={"source": f"{MOCKER.name} {path.name}", "tp": gpus},
        )
    except (ProfileError, KeyError, IndexError, ValueError) as error:
        raise ForeignProfileError(f"{path}: taken for {MOCKER.name}: {error}") from error
