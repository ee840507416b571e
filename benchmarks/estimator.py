"""Distance of estimated latencies from measured ones.

For each measured profile under DIR/profiles the estimator is asked at exactly the measured input lengths and
(batch, context) points. Printed are the median of |estimate / measurement - 1| and the median of
estimate / measurement - 1 (the bias; negative means that the estimate is too fast). Measurements hold
the overheads of the engines of their day; estimates hold none. There is no target: the figures say how far to
trust an estimate.
"""

import pathlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headway.profiling import ProfilingError
from headway.studies.estimator import EngineSpec, LatencyEstimator
from headway.studies.estimator.aiconfigurator import AiConfigurator

FloatArray = npt.NDArray[np.float64]
LLAMA_8B = "meta-llama/Meta-Llama-3.1-8B"
LLAMA_70B = "meta-llama/Meta-Llama-3.1-70B"
SAME_SHAPE_70B = "as Llama 3.1 70B: same layers and heads, larger vocabulary"
SAME_SHAPE_8B = "as Llama 3.1 8B: same shape"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A measured profile, the engine that comes closest to it, and what differs."""

    folder: str
    engine: EngineSpec
    remark: str = ""


CASES = (
    Case(
        folder="dynamo_h200_llama31-8b-fp8_tp1",
        engine=EngineSpec(model=LLAMA_8B, system="h200_sxm", backend="vllm", tp=1, quantization="fp8"),
    ),
    Case(
        folder="dynamo_h200_llama31-8b-fp8_tp1",
        engine=EngineSpec(model=LLAMA_8B, system="h200_sxm", backend="trtllm", tp=1, quantization="fp8"),
    ),
    Case(
        folder="splitwise_llama2-70b_a100_tp4",
        engine=EngineSpec(model=LLAMA_70B, system="a100_sxm", backend="vllm", tp=4),
        remark=SAME_SHAPE_70B,
    ),
    Case(
        folder="splitwise_llama2-70b_h100_tp8",
        engine=EngineSpec(model=LLAMA_70B, system="h100_sxm", backend="vllm", tp=8),
        remark=SAME_SHAPE_70B,
    ),
    Case(
        folder="vidur_llama-2-70b_a100_tp4",
        engine=EngineSpec(model=LLAMA_70B, system="a100_sxm", backend="vllm", tp=4),
        remark=SAME_SHAPE_70B,
    ),
    Case(
        folder="vidur_llama-3-8b_a100_tp1",
        engine=EngineSpec(model=LLAMA_8B, system="a100_sxm", backend="vllm", tp=1),
        remark=SAME_SHAPE_8B,
    ),
    Case(
        folder="vidur_llama-3-8b_a100_tp2",
        engine=EngineSpec(model=LLAMA_8B, system="a100_sxm", backend="vllm", tp=2),
        remark=SAME_SHAPE_8B,
    ),
)


def main(data: pathlib.Path | None) -> int:
    """Print the table of errors for the measured profiles under `data`."""
    print("estimator: median |error| and median error (bias) against measured profiles")
    if data is None or not (data / "profiles").is_dir():
        where = "no data directory was given" if data is None else f"{data / 'profiles'} is not there"
        print(f"  {where}: nothing to compare with")
        return 0
    header = f"{'profile':32} {'estimator':26} {'TTFT |err|':>10} {'bias':>7} {'ITL |err|':>10} {'bias':>7}"
    print(f"  {header}  points (TTFT+ITL)")
    for case in CASES:
        print("  " + _line(data / "profiles" / case.folder, case))
    return 0


def _line(folder: pathlib.Path, case: Case) -> str:
    engine = case.engine
    label, name = f"{case.folder:32}", f"{engine.system}/{engine.backend}"
    if not folder.is_dir():
        return f"{label} {name:26} not available: no such profile"
    try:
        estimator = AiConfigurator(engine)
        ttft, itl = prefill_errors(folder, estimator), decode_errors(folder, estimator)
    except ProfilingError as error:
        return f"{label} {name:26} not available: {error}"
    name += f" {estimator.provenance().backend_version}"
    points = f"{len(ttft)}+{len(itl)}"
    return f"{label} {name:26} {_figures(ttft)} {_figures(itl)}  {points:6} {case.remark}".rstrip()


def _figures(errors: FloatArray) -> str:
    return f"{np.median(np.abs(errors)):10.1%} {np.median(errors):+7.1%}"


def prefill_errors(folder: pathlib.Path, estimator: LatencyEstimator) -> FloatArray:
    """Relative errors of TTFT at the measured input lengths."""
    with np.load(folder / "selected_prefill_interpolation" / "raw_data.npz") as table:
        estimated = [estimator.prefill_ms(int(isl)) for isl in table["prefill_isl"]]
        return np.asarray(estimated / table["prefill_ttft"] - 1.0, dtype=np.float64)


def decode_errors(folder: pathlib.Path, estimator: LatencyEstimator) -> FloatArray:
    """Relative errors of ITL at the measured (batch, context) points, batches rounded to whole requests."""
    with np.load(folder / "selected_decode_interpolation" / "raw_data.npz") as table:
        capacity = float(table["max_kv_tokens"].ravel()[0])
        points = _points(table["x_kv_usage"] * capacity, table["y_context_length"])
        estimated = [estimator.decode_ms(batch, context) for batch, context in points]
        return np.asarray(estimated / table["z_itl"] - 1.0, dtype=np.float64)


def _points(kv_tokens: FloatArray, context_tokens: FloatArray) -> Iterator[tuple[int, int]]:
    for total, context in zip(kv_tokens, context_tokens, strict=True):
        yield max(1, round(total / context)), int(context)
