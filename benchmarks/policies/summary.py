"""Ratios between policies over cells, from the runs of a grid."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import exp, log
from statistics import fmean

from benchmarks.policies.cells import Cell
from benchmarks.policies.loaded_base import Figures
from benchmarks.policies.results import Everywhere, Results, searched
from benchmarks.policies.search import Knobs

CLAIRVOYANT_DELAY_S = 60
"""Start-up delays up to this one count in the comparison with the clairvoyant plan."""


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


Bests = Mapping[str, Mapping[Cell, Best]]
"""By family, of the cells that it can hold."""


def families(results: Results) -> list[str]:
    """In the order of the contenders."""
    return list(dict.fromkeys(contender.family for contender in results.contenders))


def covered(results: Results) -> Mapping[str, Sequence[Cell]]:
    """Per family the cells in which the searches of all that count there have ended."""
    return {
        family: [
            cell
            for cell in results.cells
            if all(
                searched(results.books[contender.name, cell], contender)
                for contender in results.contenders
                if contender.family == family and contender.each
            )
        ]
        for family in families(results)
    }


def bests(results: Results) -> Bests:
    """Each family's cheapest run that holds, per cell that it covers."""
    found: dict[str, dict[Cell, Best]] = {family: {} for family in families(results)}
    cells = covered(results)
    for contender in results.contenders:
        for cell in cells[contender.family] if contender.each else ():
            run = results.books[contender.name, cell].cheapest()
            known = found[contender.family].get(cell)
            if run and (known is None or run[1].gpu_hours < known.figures.gpu_hours):
                best = Best(contender=contender.name, values=contender.values(run[0]), figures=run[1])
                found[contender.family][cell] = best
    return found


def ratio(costs: Mapping[Cell, float], others: Mapping[Cell, float]) -> Ratio | None:
    """Over the cells that both have; None where there is none."""
    pairs = {cell: costs[cell] / others[cell] for cell in costs if others.get(cell)}
    if not pairs:
        return None
    worst = max(pairs, key=lambda cell: pairs[cell])
    mean = exp(fmean(log(value) for value in pairs.values()))
    return Ratio(cells=len(pairs), mean=mean, worst=pairs[worst], where=worst.name)


def costs(of_family: Mapping[Cell, Best]) -> dict[Cell, float]:
    return {cell: best.figures.gpu_hours for cell, best in of_family.items()}


def static_costs(results: Results, wanted: Callable[[Cell], bool]) -> dict[Cell, float]:
    """The best fixed fleet in hindsight, on the cells wanted."""
    found = {cell: results.facts[cell.base].static_figures for cell in results.cells if wanted(cell)}
    return {cell: figures.gpu_hours for cell, figures in found.items() if figures}


def fluid_costs(results: Results) -> dict[Cell, float]:
    """The fluid bound of the work that the static fleet does."""
    found = {cell: results.facts[cell.base].static_figures for cell in results.cells}
    return {cell: figures.fluid_gpu_hours for cell, figures in found.items() if figures}


def against(results: Results, found: Bests, family: str) -> dict[str, Ratio | None]:
    """A family against every yardstick."""
    own = costs(found[family])
    clairvoyant = costs(found.get("clairvoyant", {}))
    near = {cell: cost for cell, cost in clairvoyant.items() if cell.delay_s <= CLAIRVOYANT_DELAY_S}
    return {
        "reference": ratio(own, costs(found.get("reference", {}))),
        "static, hours": ratio(own, static_costs(results, lambda cell: not cell.base.days)),
        "static, days": ratio(own, static_costs(results, lambda cell: cell.base.days)),
        f"clairvoyant, delay ≤ {CLAIRVOYANT_DELAY_S} s": ratio(own, near),
        "fluid bound": ratio(own, fluid_costs(results)),
    }


def reversals(found: Mapping[Cell, Best]) -> tuple[float, float, str] | None:
    """Mean and most over the cells, per hour and pool, and where the most is."""
    moved = {cell: best.figures.reversals for cell, best in found.items()}
    if not moved:
        return None
    most = max(moved, key=lambda cell: moved[cell])
    return fmean(moved.values()), moved[most], most.name


def one_setting(results: Results) -> dict[str, tuple[str, Everywhere]]:
    """Per family the contender that is cheapest at one setting; without one, the one that holds most."""
    found: dict[str, tuple[str, Everywhere]] = {}
    for contender in results.contenders:
        entry = results.everywhere.get(contender.name)
        if entry is None:
            continue
        known = found.get(contender.family)
        if known is None or _order(entry) < _order(known[1]):
            found[contender.family] = (contender.name, entry)
    return found


def _order(entry: Everywhere) -> tuple[int, float]:
    return (0, entry.total.gpu_hours) if entry.total else (1, -float(entry.holds))


def frontier(runs: Iterable[tuple[Knobs, Figures]], levels: Sequence[float]) -> list[float | None]:
    """GPU-hours of the cheapest run with at least each attainment; None where there is none."""
    known = [figures for _, figures in runs]
    return [
        min((run.gpu_hours for run in known if run.attainment >= level), default=None) for level in levels
    ]
