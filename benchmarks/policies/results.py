"""The results in the output directory, finished or not.

A contender counts in a cell once its search there has ended: the least position of each knob that holds is
known, all others widest, or that not even the widest does. One setting everywhere is the cheapest of those
that were run in all cells and hold in each.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.policies.cells import Base, Cell
from benchmarks.policies.contenders import Contender
from benchmarks.policies.jobs import Place
from benchmarks.policies.run_files import BaseFacts, RunFile
from benchmarks.policies.search import Knobs

MAIN_FAMILIES = ("headway", "reference")
"""The comparison at one setting everywhere covers the cells that all of these can hold."""

Books = Mapping[tuple[str, Cell], RunFile]
"""By contender's name and cell."""


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
    """One setting on all `cells`; `knobs` and `total` are None where no setting run holds them all."""

    cells: int
    holds: int
    knobs: Knobs | None = None
    total: Total | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """Facts per base, each contender's runs per cell, one setting everywhere; `missing` has no facts yet."""

    cells: Sequence[Cell]
    contenders: Sequence[Contender]
    facts: Mapping[Base, BaseFacts]
    books: Books
    everywhere: Mapping[str, Everywhere]
    missing: Sequence[Base] = ()


def gathered(place: Place, cells: Sequence[Cell], contenders: Sequence[Contender]) -> Results:
    """The results of these cells."""
    bases = dict.fromkeys(cell.base for cell in cells)
    facts = {base: BaseFacts.load(place.facts(base)) for base in bases if place.facts(base).is_file()}
    possible = possible_cells(cells, facts)
    books = {
        (each.name, cell): RunFile(place.run_file(each, cell)) for each in contenders for cell in possible
    }
    common = common_cells(possible, contenders, books)
    return Results(
        cells=possible,
        contenders=contenders,
        facts=facts,
        books=books,
        everywhere={each.name: one_for_all(each, common, books) for each in contenders if each.everywhere},
        missing=[base for base in bases if base not in facts],
    )


def possible_cells(cells: Sequence[Cell], facts: Mapping[Base, BaseFacts]) -> list[Cell]:
    """Those of known bases; a budget needs a static fleet that holds."""
    known = [cell for cell in cells if cell.base in facts]
    return [cell for cell in known if not cell.budgeted or facts[cell.base].budget]


def searched(run_file: RunFile, contender: Contender) -> bool:
    """True if the contender's search in this cell has ended."""

    def ended(knob: int) -> bool:
        runs = [run_file.runs.get(contender.alone(knob, position)) for position in range(len(contender.grid))]
        known = [run and run.held for run in runs]
        edges = zip([False, *known], known, strict=False)
        return known[-1] is False or any(edge == (False, True) for edge in edges)

    return all(ended(knob) for knob in range(contender.knobs))


def common_cells(cells: Sequence[Cell], contenders: Sequence[Contender], books: Books) -> list[Cell]:
    """The cells that each main family can hold, with the one of its contenders that can hold most.

    A family without a finished search says nothing.
    """
    common = list(cells)
    for family in MAIN_FAMILIES:
        rivals = [each for each in contenders if each.family == family and each.everywhere]
        if any(searched(books[each.name, cell], each) for each in rivals for cell in cells):
            held = [[cell for cell in cells if books[each.name, cell].cheapest()] for each in rivals]
            most = max(held, key=len)
            common = [cell for cell in common if cell in most]
    return common


def one_for_all(contender: Contender, cells: Sequence[Cell], books: Books) -> Everywhere:
    """The cheapest setting that was run in all cells and holds in each."""
    own = [books[contender.name, cell] for cell in cells]
    holds = sum(run_file.cheapest() is not None for run_file in own)
    everywhere = set[Knobs]().union(*(run_file.runs for run_file in own))
    totals = {
        knobs: total
        for knobs in sorted(everywhere)
        if (total := total_of(own, knobs)) is not None and total.held
    }
    if not totals:
        return Everywhere(cells=len(cells), holds=holds)
    best = min(totals, key=lambda knobs: totals[knobs].gpu_hours)
    return Everywhere(cells=len(cells), holds=holds, knobs=best, total=totals[best])


def total_of(books: Sequence[RunFile], knobs: Knobs) -> Total | None:
    """All cells at one setting; None where it was not run in each."""
    runs = [run_file.runs[knobs] for run_file in books if knobs in run_file.runs]
    if len(runs) < len(books):
        return None
    return Total(gpu_hours=sum(run.gpu_hours for run in runs), failed=sum(not run.held for run in runs))
