"""All jobs of a grid, in waves over one pool of processes, with progress on standard error."""

import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, as_completed

from benchmarks.policies.cells import Cell
from benchmarks.policies.contenders import Contender
from benchmarks.policies.jobs import BaseJob, CellJob, Leasts, Place
from benchmarks.policies.results import Total, gathered, total_of
from benchmarks.policies.run_files import RunFile
from benchmarks.policies.search import Knobs, cheapest_corner, corner
from headway_cli.job import sheltered, workers


def run_grid(place: Place, cells: Sequence[Cell], contenders: Sequence[Contender], processes: int) -> None:
    """Everything that is not on disk yet."""
    with workers(processes) as pool:
        _run(pool, [BaseJob(place=place, base=base) for base in dict.fromkeys(cell.base for cell in cells)])
        possible = gathered(place, cells, contenders).cells
        leasts = _search(pool, place, possible, contenders)
        common = gathered(place, possible, contenders).common()
        for contender in contenders:
            if contender.everywhere:
                _everywhere(pool, place, contender, {cell: leasts[contender.name, cell] for cell in common})


def _run(pool: Executor, jobs: Sequence[BaseJob | CellJob]) -> list[Leasts | None]:
    """All results in order; a line on standard error for each job that ends."""
    with sheltered():
        futures = {pool.submit(job.run): job for job in jobs}
    for number, future in enumerate(as_completed(futures), 1):
        future.result()
        print(f"[{number}/{len(jobs)}] {futures[future].name}", file=sys.stderr, flush=True)
    return [future.result() for future in futures]


def _search(
    pool: Executor, place: Place, cells: Sequence[Cell], contenders: Sequence[Contender]
) -> Mapping[tuple[str, Cell], Leasts]:
    """Each knob's least position, of one cell of each base first: the others are searched from there."""
    alike = [[cell for cell in cells if cell.base == base] for base in dict.fromkeys(c.base for c in cells)]
    leaders = {group[0].base: group[(len(group) - 1) // 2] for group in alike}
    leasts: dict[tuple[str, Cell], Leasts] = {}
    for wave in (list(leaders.values()), [cell for cell in cells if cell != leaders[cell.base]]):
        jobs = [
            CellJob(
                place=place,
                cell=cell,
                contender_name=contender.name,
                near=leasts.get((contender.name, leaders[cell.base]), ()),
            )
            for cell in wave
            for contender in contenders
        ]
        found = zip(jobs, _run(pool, jobs), strict=True)
        leasts |= {(job.contender_name, job.cell): positions or (None,) for job, positions in found}
    return leasts


def _everywhere(pool: Executor, place: Place, contender: Contender, leasts: Mapping[Cell, Leasts]) -> None:
    """Run what shows the cheapest setting that holds in all these cells."""
    start = corner(list(leasts.values()))
    if start is None:
        return

    def measure(knobs: Knobs) -> Total:
        name = contender.name
        _run(pool, [CellJob(place=place, cell=cell, contender_name=name, positions=knobs) for cell in leasts])
        total = total_of([RunFile(place.run_file(contender, cell)) for cell in leasts], knobs)
        if total is None:
            raise AssertionError(f"{name} was run at {knobs} in every cell")
        return total

    cheapest_corner(measure, start, len(contender.grid))
