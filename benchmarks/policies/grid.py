"""All jobs of a grid, in waves over one pool of processes, with progress on standard error."""

import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median

from benchmarks.policies.cells import Cell
from benchmarks.policies.contenders import Contender
from benchmarks.policies.jobs import BaseJob, CellJob, FutureJob, Job, Leasts, Place, execute
from benchmarks.policies.results import Total, common_cells, gathered, possible_cells, total_of
from benchmarks.policies.run_files import BaseFacts, RunFile
from benchmarks.policies.search import Knobs, cheapest_corner, corner
from headway_cli.job import sheltered, workers


@dataclass(slots=True)
class Pool:
    """Processes at work, and how long jobs took so far, by trace."""

    executor: ProcessPoolExecutor
    count: int
    took_s: dict[str, list[float]] = field(default_factory=dict)

    def run(self, jobs: Sequence[Job]) -> list[Leasts | None]:
        """All results in order; a line on standard error for each job that ends."""
        begun_s = time.monotonic()
        with sheltered():
            futures = {self.executor.submit(timed, job): place for place, job in enumerate(jobs)}
        results: list[Leasts | None] = [None] * len(jobs)
        left = dict(enumerate(jobs))
        for future in as_completed(futures):
            place = futures[future]
            seconds, results[place] = future.result()
            self.took_s.setdefault(_trace(left.pop(place)), []).append(seconds)
            elapsed_s = time.monotonic() - begun_s
            say(
                f"[{len(jobs) - len(left)}/{len(jobs)}] {jobs[place].name}: {seconds:.0f} s,"
                f" {duration(elapsed_s)} passed, about {duration(self.remaining_s(left.values()))} left"
            )
        return results

    def remaining_s(self, jobs: Iterable[Job]) -> float:
        """As long as jobs on the same trace usually took, or on any."""
        everything = median(seconds for of_trace in self.took_s.values() for seconds in of_trace)
        usual = {trace: median(seconds) for trace, seconds in self.took_s.items()}
        return sum(usual.get(_trace(job), everything) for job in jobs) / self.count


def timed(job: Job) -> tuple[float, Leasts | None]:
    """A job's result and its seconds."""
    begun_s = time.monotonic()
    result = execute(job)
    return time.monotonic() - begun_s, result


def _trace(job: Job) -> str:
    return job.cell.base.trace if isinstance(job, CellJob) else job.base.trace


def duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60:02d} min" if minutes >= 60 else f"{minutes} min"


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@contextmanager
def pool_of(count: int) -> Iterator[Pool]:
    """So many processes, gone when the block ends."""
    with workers(count) as executor:
        yield Pool(executor, count)


def run_grid(place: Place, cells: Sequence[Cell], contenders: Sequence[Contender], processes: int) -> None:
    """Everything that is not on disk yet."""
    bases = list(dict.fromkeys(cell.base for cell in cells))
    with pool_of(processes) as pool:
        pool.run([BaseJob(place=place, base=base) for base in bases])
        possible = possible_cells(cells, {base: BaseFacts.load(place.facts(base)) for base in bases})
        if any(contender.family == "clairvoyant" for contender in contenders):
            pool.run([FutureJob(place=place, base=base) for base in bases])
        leasts = _search(pool, place, possible, contenders)
        known = gathered(place, possible, contenders)
        common = common_cells(possible, contenders, known.books)
        for contender in contenders:
            if contender.everywhere:
                _everywhere(pool, place, contender, {cell: leasts[contender.name, cell] for cell in common})


def _search(
    pool: Pool, place: Place, cells: Sequence[Cell], contenders: Sequence[Contender]
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
        found = zip(jobs, pool.run(jobs), strict=True)
        leasts |= {(job.contender_name, job.cell): positions or (None,) for job, positions in found}
    return leasts


def _everywhere(pool: Pool, place: Place, contender: Contender, leasts: Mapping[Cell, Leasts]) -> None:
    """Run what shows the cheapest setting that holds in all these cells."""
    start = corner(list(leasts.values()))
    if start is None:
        return

    def measure(knobs: Knobs) -> Total:
        name = contender.name
        pool.run([CellJob(place=place, cell=cell, contender_name=name, positions=knobs) for cell in leasts])
        total = total_of([RunFile(place.run_file(contender, cell)) for cell in leasts], knobs)
        if total is None:
            raise AssertionError(f"{name} was run at {knobs} in every cell")
        return total

    cheapest_corner(measure, start, len(contender.grid))
