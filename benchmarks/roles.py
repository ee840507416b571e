"""Policy `headway` with replicas that change their role and without, on cells of the grid of `policies`.

    python -m benchmarks roles --data DIR [--cells 'burst_8b_tight_*'] [--output DIR] [--workers N]

Both have the same loss budgets; rows show attainment (of what is attainable, all rotations, in brackets the
least and the most of them) and GPU-hours. Below stand the GPU-hours at the same attainment, interpolated
between runs: at 99 %, and where not both reach it at the most that both reach. Facts and runs lie where those
of `policies` do, in the same form.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from benchmarks.policies import OUTPUT
from benchmarks.policies.cells import Cell
from benchmarks.policies.cells import cells as matching
from benchmarks.policies.contenders import CONTENDERS, LOSS_BUDGETS, ROLE_CHANGES, Contender
from benchmarks.policies.grid import pool_of
from benchmarks.policies.jobs import BaseJob, CellJob, Place
from benchmarks.policies.loaded_base import GOAL, ROLE_CHANGE_S, Figures
from benchmarks.policies.run_files import BaseFacts, RunFile

WITHOUT = next(contender for contender in CONTENDERS if contender.name == "headway")
BOTH = (WITHOUT, ROLE_CHANGES)
POSITIONS = (6, 8, 10)
"""Of the loss budgets: about 2.7, 1.4 and 0.7 %."""

CELLS = ("burst_8b_tight_*", "mooncake4_8b_tight_*", "azure10_8b_tight_*")

Runs = Mapping[str, Sequence[Figures]]


def main(data: Path, *, cells: str | None = None, output: Path = OUTPUT, workers: int | None = None) -> int:
    """Run what is missing, print the table."""
    chosen = [cell for pattern in ([cells] if cells else CELLS) for cell in matching(pattern) if cell.delay_s]
    place = Place(data=data.resolve(), output=output)
    print(f"A change of role takes {ROLE_CHANGE_S:g} s after the drain.")
    for cell in _measured(place, chosen, workers or os.cpu_count() or 1):
        runs = {each.name: _runs(place, each, cell) for each in BOTH}
        print("\n".join(_lines(cell, runs)), flush=True)
    return 0


def _measured(place: Place, cells: Sequence[Cell], processes: int) -> Sequence[Cell]:
    """The cells whose runs are all on disk now; two jobs at a time never write to one book."""
    with pool_of(processes) as pool:
        pool.run([BaseJob(place=place, base=base) for base in sorted({cell.base for cell in cells})])
        possible = [
            cell for cell in cells if not cell.budgeted or BaseFacts.load(place.facts(cell.base)).budget
        ]
        for position in POSITIONS:
            pool.run([_job(place, cell, each, position) for cell in possible for each in BOTH])
        return possible


def _job(place: Place, cell: Cell, contender: Contender, position: int) -> CellJob:
    return CellJob(place=place, cell=cell, contender_name=contender.name, positions=(position,))


def _runs(place: Place, contender: Contender, cell: Cell) -> Sequence[Figures]:
    book = RunFile(place.run_file(contender, cell))
    return [book.runs[position,] for position in POSITIONS]


def _lines(cell: Cell, runs: Runs) -> Iterator[str]:
    yield f"\n| {cell.name}: loss budget | without | with changes of role |\n|---|---|---|"
    for place, position in enumerate(POSITIONS):
        shown = " | ".join(_shown(runs[each.name][place]) for each in BOTH)
        yield f"| {LOSS_BUDGETS[position]:.2%} | {shown} |"
    level = min(GOAL, *(max(run.attainment for run in runs[each.name]) for each in BOTH))
    hours = [cost_at(level, runs[each.name]) for each in BOTH]
    yield f"| at {level:.2%} | {hours[0]:.2f} | {hours[1]:.2f} ({hours[1] / hours[0] - 1:+.1%}) |"


def _shown(run: Figures) -> str:
    shares = [share for share, _ in run.spread]
    return f"{run.attainment:.2%} ({min(shares):.1%} to {max(shares):.1%}), {run.gpu_hours:.2f}"


def cost_at(attainment: float, runs: Sequence[Figures]) -> float:
    """GPU-hours at that attainment, between the runs beside it; of the nearest one outside of all."""
    line = sorted((run.attainment, run.gpu_hours) for run in runs)
    known, hours = np.array(line).T
    return float(np.interp(attainment, known, hours))
