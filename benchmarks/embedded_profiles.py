"""The embedded profiles, made again by the estimator.

    python -m benchmarks embedded_profiles                              where the project's ones differ
    python -m benchmarks embedded_profiles --output headway/profiles    writes them

`ENGINES` is what the project embeds. Beside what `headway estimate` writes, meta.json gets the day, which
stays where nothing else has changed, and the distances of estimates from measured profiles of the same GPU,
as `python -m benchmarks estimator` finds them. LEFT_OUT says what the estimator answers and we do not ship.
"""

import json
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np

import headway
from headway.profiling import ProfilingError
from headway_studies.estimator.estimate import estimate, write_estimates
from headway_studies.estimator.request import EstimatedProfile, EstimateRequest
from interp import ProfileError, load_profile

LLAMA_8B, LLAMA_70B = "meta-llama/Meta-Llama-3.1-8B", "meta-llama/Meta-Llama-3.1-70B"
QWEN_32B, QWEN_MOE = "Qwen/Qwen3-32B", "Qwen/Qwen3-30B-A3B"
GPT_OSS = "openai/gpt-oss-120b"

ENGINES: Mapping[tuple[str, str], Sequence[int]] = {
    (LLAMA_8B, "h100_sxm"): (1,),
    (LLAMA_8B, "h200_sxm"): (1,),
    (LLAMA_8B, "a100_sxm"): (1,),
    (LLAMA_8B, "b200_sxm"): (1,),
    (LLAMA_8B, "l40s"): (1,),
    (QWEN_32B, "h100_sxm"): (2,),
    (QWEN_32B, "h200_sxm"): (1, 2),
    (QWEN_32B, "a100_sxm"): (2,),
    (QWEN_32B, "b200_sxm"): (1,),
    (QWEN_32B, "l40s"): (2,),
    (LLAMA_70B, "h100_sxm"): (4,),
    (LLAMA_70B, "h200_sxm"): (2, 4),
    (LLAMA_70B, "a100_sxm"): (4,),
    (LLAMA_70B, "b200_sxm"): (2,),
    (QWEN_MOE, "h100_sxm"): (1, 2),
    (QWEN_MOE, "h200_sxm"): (1,),
    (QWEN_MOE, "a100_sxm"): (2,),
    (QWEN_MOE, "b200_sxm"): (1,),
    (QWEN_MOE, "l40s"): (2,),
    (GPT_OSS, "h100_sxm"): (2,),
    (GPT_OSS, "h200_sxm"): (1,),
    (GPT_OSS, "b200_sxm"): (1,),
    (GPT_OSS, "l40s"): (2,),
}
"""Model and GPU system → tensor-parallel sizes, vLLM, each model in its own data type."""

LEFT_OUT: Mapping[str, str] = {
    "70B on L40S": "does not fit on 2; on 4 and 8 the collectives in the database make more GPUs slower "
    "(1,024 tokens: TTFT 1,249 ms on 4, 2,647 ms on 8)",
    "32B on 4 L40S": "likewise: TTFT 233 ms on 2, 630 ms on 4",
    "gpt-oss on A100": "its attention is not measured there",
}

KNOWN_ERRORS: Mapping[str, Sequence[str]] = {
    "a100_sxm": (
        "8B on 1 A100 (Vidur): TTFT 21 % too short, ITL 10 % too long",
        "8B on 2 A100 (Vidur): TTFT 22 %, ITL 34 % too short",
        "70B on 4 A100 (Vidur): TTFT 20 %, ITL 20 % too short",
        "70B on 4 A100 (Splitwise): TTFT 29 %, ITL 39 % too short",
    ),
    "h100_sxm": ("70B on 8 H100 (Splitwise): TTFT 57 %, ITL 67 % too short, at some points 3 to 8 times",),
    "h200_sxm": ("8B in fp8 on 1 H200 (Dynamo): TTFT 20 %, ITL 11 % too short",),
}
"""Medians over the points of measured profiles: `python -m benchmarks estimator`, AI Configurator 0.12.0."""

NO_KNOWN_ERROR = (
    "no measured profile of this GPU is known; on others estimates were mostly 10 to 67 % too short",
)
PROJECT = pathlib.Path(headway.__file__).parent / "profiles"


def main(data: pathlib.Path | None, output: pathlib.Path | None = None) -> int:
    """Make them; print what each is like, and 1 where an embedded one differs or is missing."""
    del data
    different = 0
    for found in made():
        says = _difference(PROJECT / found.name, found)
        different += says != "the same"
        print(f"  {found.name:28} {says}")
        if output is not None:
            write_estimates([_with_day(output, found)], output, overwrite=True)
    for what, why in LEFT_OUT.items():
        print(f"  left out: {what}: {why}")
    return int(different > 0 and output is None)


def made() -> Iterator[EstimatedProfile]:
    """Every profile of `ENGINES`. Raises ProfilingError where the estimator has no answer."""
    for (model, system), tps in ENGINES.items():
        estimates = estimate(EstimateRequest(model=model, system=system, tps=tuple(tps)))
        if estimates.skipped:
            raise ProfilingError(f"{model} on {system}: {estimates.skipped}")
        for one in estimates:
            errors = list(KNOWN_ERRORS.get(system, NO_KNOWN_ERROR))
            yield EstimatedProfile(
                name=one.name,
                prefill=one.prefill,
                decode=one.decode,
                meta={**one.meta, "known_errors": errors},
            )


def _with_day(output: pathlib.Path, found: EstimatedProfile) -> EstimatedProfile:
    day = datetime.now(UTC).date().isoformat()
    if _difference(output / found.name, found) == "the same":
        day = str(load_profile(output / found.name).meta.get("estimated_on", day))
    meta: dict[str, Any] = {**found.meta, "estimated_on": day}
    return EstimatedProfile(name=found.name, prefill=found.prefill, decode=found.decode, meta=meta)


def _difference(place: pathlib.Path, found: EstimatedProfile) -> str:
    try:
        there = load_profile(place)
    except ProfileError:
        return "not there"
    pairs = (
        (there.prefill.samples.ttft_s, found.prefill.ttft_s),
        (there.decode.samples.itl_s, found.decode.itl_s),
    )
    if any(one.shape != other.shape for one, other in pairs):
        return "another grid"
    largest = max(float(np.abs(one / other - 1.0).max()) for one, other in pairs)
    # Files hold milliseconds, so the last bit may differ.
    if largest > 1e-12:
        return f"differs by up to {largest:.1%}"
    meta = {key: value for key, value in there.meta.items() if key != "estimated_on"}
    return "the same" if meta == json.loads(json.dumps(found.meta)) else "another meta.json"
