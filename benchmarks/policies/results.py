"""What lies in the output directory, finished or not, and how the policies compare.

A contender counts in a cell once its search there has ended: the least position of each knob that holds is
known, all others widest, or that not even the widest does. A family stands at its cheapest contender. One
setting everywhere is the cheapest of those that were run in all cells and hold in each.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, log
from statistics import fmean

from benchmarks.policies.cells import Base, Cell
from benchmarks.policies.contenders import Contender
from benchmarks.policies.jobs import Place
from benchmarks.policies.loaded_base import Figures
from benchmarks.policies.run_files import BaseFacts, RunFile
from benchmarks.policies.search import Knobs

MAIN_FAMILIES = ("headway", "reference")
"""The comparison at one setting everywhere covers the cells that all of these can hold."""

RunFiles = Mapping[tuple[str, Cell], RunFile]
"""By contender's name and cell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """A family's cheapest run on a cell that holds the goal."""

    contender: str
    values: Sequence[float]
    figures: Figures


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """Cost over another's: the geometric mean over `cells` cells, the worst, and where that is."""

    cells: int
    mean: float
    worst: float
    where: str


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
    """One setting on all `cells`; `knobs` and `gpu_hours` are None where no setting run holds them all."""

    contender: str
    cells: int
    holds: int
    knobs: Knobs | None = None
    gpu_hours: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """Facts per base and each contender's runs per cell; bases that are `missing` have no facts yet."""

    cells: Sequence[Cell]
    contenders: Sequence[Contender]
    facts: Mapping[Base, BaseFacts]
    runs: RunFiles
    missing: Sequence[Base] = ()

    @property
    def families(self) -> list[str]:
        """In the order of the contenders."""
        return list(dict.fromkeys(contender.family for contender in self.contenders))

    def covered(self, family: str) -> list[Cell]:
        """The cells in which the searches of all its contenders that count there have ended."""
        own = [each for each in self.contenders if each.family == family and each.each]
        return [cell for cell in self.cells if all(searched(self.runs[one.name, cell], one) for one in own)]

    def bests(self, family: str) -> dict[Cell, Best]:
        """Its cheapest run that holds, per cell that it covers."""
        found: dict[Cell, Best] = {}
        for cell in self.covered(family):
            for contender in self.contenders:
                run = self.runs[contender.name, cell].cheapest()
                if contender.family != family or not contender.each or run is None:
                    continue
                if cell not in found or run[1].gpu_hours < found[cell].figures.gpu_hours:
                    values = contender.values(run[0])
                    found[cell] = Best(contender=contender.name, values=values, figures=run[1])
        return found

    def costs(self, family: str) -> dict[Cell, float]:
        """GPU-hours of its cheapest run, per cell that it can hold."""
        return {cell: best.figures.gpu_hours for cell, best in self.bests(family).items()}

    def static(self, *, days: bool) -> dict[Cell, float]:
        """GPU-hours of the best fixed fleet in hindsight, on traces of days or of hours."""
        found = {cell: self.facts[cell.base].static_figures for cell in self.cells if cell.base.days == days}
        return {cell: figures.gpu_hours for cell, figures in found.items() if figures}

    def fluid(self) -> dict[Cell, float]:
        """The fluid bound of the work that the static fleet does, in GPU-hours."""
        found = {cell: self.facts[cell.base].static_figures for cell in self.cells}
        return {cell: figures.fluid_gpu_hours for cell, figures in found.items() if figures}

    def common(self) -> list[Cell]:
        """The cells that each main family can hold, with the one of its contenders that can hold most.

        A family without a finished search says nothing.
        """
        common = list(self.cells)
        for family in MAIN_FAMILIES:
            rivals = [each for each in self.contenders if each.family == family and each.everywhere]
            if any(searched(self.runs[each.name, cell], each) for each in rivals for cell in self.cells):
                held = [
                    [cell for cell in self.cells if self.runs[one.name, cell].cheapest()] for one in rivals
                ]
                common = [cell for cell in common if cell in max(held, key=len)]
        return common

    def everywhere(self, family: str) -> Everywhere | None:
        """At one setting its cheapest contender; without one that holds, the one that holds most."""
        common = self.common()
        own = [each for each in self.contenders if each.family == family and each.everywhere]
        found = [
            one_for_all(each.name, [self.runs[each.name, cell] for cell in common]) for each in own if common
        ]
        return min(found, key=_order, default=None)


def _order(entry: Everywhere) -> tuple[bool, float]:
    return (True, -float(entry.holds)) if entry.gpu_hours is None else (False, entry.gpu_hours)


def gathered(place: Place, cells: Sequence[Cell], contenders: Sequence[Contender]) -> Results:
    """The results of these cells, of those that are possible: a budget needs a static fleet that holds."""
    bases = dict.fromkeys(cell.base for cell in cells)
    facts = {base: BaseFacts.load(place.facts(base)) for base in bases if place.facts(base).is_file()}
    known = [cell for cell in cells if cell.base in facts]
    possible = [cell for cell in known if not cell.budgeted or facts[cell.base].budget]
    return Results(
        cells=possible,
        contenders=contenders,
        facts=facts,
        runs={
            (one.name, cell): RunFile(place.run_file(one, cell)) for one in contenders for cell in possible
        },
        missing=[base for base in bases if base not in facts],
    )


def searched(run_file: RunFile, contender: Contender) -> bool:
    """True if the contender's search in this cell has ended."""

    def ended(knob: int) -> bool:
        runs = [run_file.runs.get(contender.alone(knob, position)) for position in range(len(contender.grid))]
        known = [run and run.held for run in runs]
        edges = zip([False, *known], known, strict=False)
        return known[-1] is False or any(edge == (False, True) for edge in edges)

    return all(ended(knob) for knob in range(contender.knobs))


def one_for_all(contender: str, own: Sequence[RunFile]) -> Everywhere:
    """The cheapest setting that was run in all cells and holds in each."""
    holds = sum(run_file.cheapest() is not None for run_file in own)
    tried = set[Knobs]().union(*(run_file.runs for run_file in own))
    totals = [(total.gpu_hours, knobs) for knobs in tried if (total := total_of(own, knobs)) and total.held]
    gpu_hours, knobs = min(totals, default=(None, None))
    return Everywhere(contender=contender, cells=len(own), holds=holds, knobs=knobs, gpu_hours=gpu_hours)


def total_of(own: Sequence[RunFile], knobs: Knobs) -> Total | None:
    """All cells at one setting; None where it was not run in each."""
    runs = [run_file.runs[knobs] for run_file in own if knobs in run_file.runs]
    if len(runs) < len(own):
        return None
    return Total(gpu_hours=sum(run.gpu_hours for run in runs), failed=sum(not run.held for run in runs))


def ratio(costs: Mapping[Cell, float], others: Mapping[Cell, float]) -> Ratio | None:
    """Over the cells that both have; None where there is none."""
    pairs = {cell: costs[cell] / others[cell] for cell in costs if others.get(cell)}
    if not pairs:
        return None
    worst = max(pairs, key=lambda cell: pairs[cell])
    mean = exp(fmean(log(value) for value in pairs.values()))
    return Ratio(cells=len(pairs), mean=mean, worst=pairs[worst], where=worst.name)
