"""All jobs of a grid, in waves over one pool of processes, with progress on standard error."""

import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median

from benchmarks.policies.book import BaseFacts, Book
from benchmarks.policies.cells import Base, Cell
from benchmarks.policies.contenders import Contender
from benchmarks.policies.jobs import BaseJob, CellJob, FutureJob, Job, Place, execute
from benchmarks.policies.search import Knobs, cheapest_corner, corner
from headway_cli.pool import sheltered, workers

Leasts = tuple[int | None, ...]
MAIN_FAMILIES = ("headway", "reference")
"""The comparison at one setting everywhere covers the cells that all of these can hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Total:
    """A contender at one setting on several cells."""

    gpu_hours: float
    failed: int

    @property
    def held(self) -> bool:
        return self.failed == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Everywhere:
    """One setting on all `cells`; `knobs` and `total` are None where no setting holds them all."""

    cells: int
    holds: int
    knobs: Knobs | None = None
    total: Total | None = None


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """What the grid gave: facts per base, each contender's runs per cell, one setting everywhere."""

    cells: Sequence[Cell]
    contenders: Sequence[Contender]
    facts: Mapping[Base, BaseFacts]
    books: Mapping[tuple[str, Cell], Book]
    everywhere: Mapping[str, Everywhere]


def run_grid(place: Place, cells: Sequence[Cell], contenders: Sequence[Contender], processes: int) -> Results:
    """Everything that is not on disk yet."""
    bases = sorted({cell.base: None for cell in cells}, key=[cell.base for cell in cells].index)
    with pool_of(processes) as pool:
        pool.run([BaseJob(place=place, base=base) for base in bases])
        facts = {base: BaseFacts.load(place.facts(base)) for base in bases}
        possible = [cell for cell in cells if not cell.budgeted or facts[cell.base].budget]
        if any(contender.family == "clairvoyant" for contender in contenders):
            pool.run([FutureJob(place=place, base=base) for base in bases])
        jobs = [
            CellJob(place=place, cell=cell, contender_name=contender.name)
            for cell in possible
            for contender in contenders
        ]
        leasts = dict(zip([(job.contender_name, job.cell) for job in jobs], pool.run(jobs), strict=True))
        common = common_cells(possible, contenders, leasts)
        everywhere = {
            contender.name: _everywhere(pool, place, contender, common, leasts)
            for contender in contenders
            if contender.everywhere
        }
    books = {
        (contender.name, cell): Book(place.book(contender, cell))
        for contender in contenders
        for cell in possible
    }
    return Results(cells=possible, contenders=contenders, facts=facts, books=books, everywhere=everywhere)


def common_cells(
    cells: Sequence[Cell],
    contenders: Sequence[Contender],
    leasts: Mapping[tuple[str, Cell], Leasts | None],
) -> list[Cell]:
    """The cells that each main family can hold, with the one of its contenders that can hold most."""
    common = list(cells)
    for family in MAIN_FAMILIES:
        held = [
            [cell for cell in cells if corner([leasts[contender.name, cell] or (None,)]) is not None]
            for contender in contenders
            if contender.family == family and contender.everywhere
        ]
        if held:
            most = max(held, key=len)
            common = [cell for cell in common if cell in most]
    return common


def _everywhere(
    pool: Pool,
    place: Place,
    contender: Contender,
    cells: Sequence[Cell],
    leasts: Mapping[tuple[str, Cell], Leasts | None],
) -> Everywhere:
    own = [leasts[contender.name, cell] or (None,) for cell in cells]
    holds = sum(corner([positions]) is not None for positions in own)
    start = corner(own)
    if start is None:
        return Everywhere(cells=len(cells), holds=holds)

    def measure(knobs: Knobs) -> Total:
        name = contender.name
        pool.run([CellJob(place=place, cell=cell, contender_name=name, positions=knobs) for cell in cells])
        runs = [Book(place.book(contender, cell)).runs[knobs] for cell in cells]
        total = sum(run.gpu_hours for run in runs)
        return Total(gpu_hours=total, failed=sum(not run.held for run in runs))

    found = cheapest_corner(measure, start, len(contender.grid))
    if found is None:
        return Everywhere(cells=len(cells), holds=holds)
    return Everywhere(cells=len(cells), holds=holds, knobs=found[0], total=found[1])
