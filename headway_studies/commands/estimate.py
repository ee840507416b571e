"""`headway estimate`: profile directories without a GPU."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from headway_cli.errors import CliError
from headway_cli.flags import option, spread, switch
from headway_cli.terminal import bar
from headway_studies.estimator import estimate as estimator
from headway_studies.estimator.request import EstimateRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """The fields of an `EstimateRequest` that have defaults; None leaves the default to it."""

    backend: Annotated[str | None, option("NAME", "vllm, sglang or trtllm.")] = None
    quantization: Annotated[str | None, option("NAME", "Else the model's own.")] = None
    backend_version: Annotated[str | None, option("V", "Else the current one.")] = None
    name: Annotated[str | None, option("NAME", "Of the directories, before _tpN.")] = None
    max_isl_tokens: Annotated[int | None, option("N", "Longest input in tokens.", "--max-isl")] = None
    max_batch: Annotated[int | None, option("N", "Requests that run at once.")] = None
    memory_fraction: Annotated[float | None, option("F", "Share of GPU memory for the engine.")] = None
    isl_points: Annotated[int | None, option("N", "Input lengths sampled.")] = None
    context_points: Annotated[int | None, option("N", "Contexts sampled.")] = None
    batch_points: Annotated[int | None, option("N", "Batches sampled per context.")] = None


@spread(Sampling)
def estimate(
    *,
    sampling: Sampling,
    model: Annotated[str, option("NAME", "Such as meta-llama/Meta-Llama-3.1-8B.")],
    system: Annotated[str, option("NAME", "GPU system, such as h100_sxm.")],
    output: Annotated[str, option("DIR", "One profile directory per --tp goes in here.")],
    tp: Annotated[str, option("LIST", "Tensor-parallel sizes, such as 1,2,4.")] = "1",
    overwrite: Annotated[bool, switch("--overwrite", "Replace profiles that exist.")] = False,
) -> None:
    """Estimate performance profiles with AI Configurator (optional extra `estimate`), no GPU needed."""
    given = {name: value for name, value in asdict(sampling).items() if value is not None}
    sizes = [part.strip() for part in tp.split(",")]
    if not all(size.isdecimal() for size in sizes):
        raise CliError(f"--tp: expected sizes such as 1,2,4, got {tp!r}")
    request = EstimateRequest(model=model, system=system, tps=tuple(map(int, sizes)), **given)
    estimator.check_output(request, Path(output), overwrite=overwrite)
    with bar("estimating") as show:
        found = estimator.estimate(request, lambda done, total, _: show(done, total) if show else None)
    for place in estimator.write_estimates(found, Path(output), overwrite=overwrite):
        print(f"wrote {place}")
    for size, reason in found.skipped.items():
        print(f"skipped tp {size}: {reason}")
