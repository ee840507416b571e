"""The aims of the policy `headway`, and what was measured."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from benchmarks.policies.cells import DELAYS_S, Cell
from benchmarks.policies.results import Results
from benchmarks.policies.summary import (
    CLAIRVOYANT_DELAY_S,
    Best,
    Bests,
    Ratio,
    costs,
    one_setting,
    ratio,
    reversals,
    static_costs,
)

OWN = "headway"
HEAD = ("figure", "asked", "measured", "cells", "above the most asked")
ONE_SETTING = 0.55
MEAN_REVERSALS, MOST_REVERSALS = 4.0, 8.0
NONE = "–"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """Cost over another's: the geometric mean and the ratio of each cell that are asked for at most."""

    name: str
    mean: float
    most: float
    others: Callable[[Results, Bests], Mapping[Cell, float]]


def _family(name: str, wanted: Callable[[Cell], bool]) -> Callable[[Results, Bests], Mapping[Cell, float]]:
    def others(results: Results, found: Bests) -> Mapping[Cell, float]:
        del results
        return {cell: cost for cell, cost in costs(found.get(name, {})).items() if wanted(cell)}

    return others


BOUNDS: Sequence[Bound] = (
    Bound(
        name="each cell at its best, × `reference`",
        mean=0.85,
        most=1.05,
        others=_family("reference", lambda _: True),
    ),
    Bound(
        name="× the best static fleet, traces of hours",
        mean=0.95,
        most=1.10,
        others=lambda results, _: static_costs(results, lambda cell: not cell.base.days),
    ),
    Bound(
        name="× the best static fleet, traces of days",
        mean=0.85,
        most=1.10,
        others=lambda results, _: static_costs(results, lambda cell: cell.base.days),
    ),
    Bound(
        name=f"× the clairvoyant plan, delay ≤ {CLAIRVOYANT_DELAY_S} s",
        mean=1.15,
        most=1.30,
        others=_family("clairvoyant", lambda cell: cell.delay_s <= CLAIRVOYANT_DELAY_S),
    ),
)


def asked_rows(results: Results, found: Bests) -> Iterator[Sequence[str]]:
    """Rows under HEAD."""
    yield _one_setting(results)
    own = costs(found.get(OWN, {}))
    for bound in BOUNDS:
        others = bound.others(results, found)
        above = [
            f"{cell.name} {cost / others[cell]:.2f}"
            for cell, cost in own.items()
            if cell in others and cost > bound.most * others[cell]
        ]
        asked = f"mean ≤ {bound.mean:g}, each ≤ {bound.most:g}"
        yield [bound.name, asked, *_mean(ratio(own, others)), ", ".join(above) or NONE]
    yield _reversals(found.get(OWN, {}))


def _one_setting(results: Results) -> Sequence[str]:
    name, asked = "one setting everywhere, GPU-hours × `reference`", f"≤ {ONE_SETTING:g}"
    chosen = one_setting(results)
    entries = [chosen[family] for family in (OWN, "reference") if family in chosen]
    totals = [entry.total.gpu_hours for _, entry in entries if entry.total]
    if len(totals) < 2:
        return [name, asked, NONE, NONE, NONE]
    (_, own), (contender, _) = entries
    measured = f"{totals[0] / totals[1]:.2f} ({totals[0]:,.1f} over {totals[1]:,.1f} of {contender})"
    return [name, asked, measured, str(own.cells), NONE]


def _reversals(own: Mapping[Cell, Best]) -> Sequence[str]:
    asked = f"mean ≤ {MEAN_REVERSALS:g}, each ≤ {MOST_REVERSALS:g}"
    moved = reversals(own)
    measured = f"mean {moved[0]:.1f}, most {moved[1]:.1f} at {moved[2]}" if moved else NONE
    many = {cell: best.figures.reversals for cell, best in own.items()}
    above = [f"{cell.name} {each:.1f}" for cell, each in many.items() if each > MOST_REVERSALS]
    return [
        "changes of direction per hour and pool",
        asked,
        measured,
        str(len(own)),
        ", ".join(above) or NONE,
    ]


def _mean(known: Ratio | None) -> tuple[str, str]:
    if known is None:
        return NONE, NONE
    return f"mean {known.mean:.2f}, worst {known.worst:.2f} at {known.where}", str(known.cells)


def _short(known: Ratio | None) -> str:
    return f"{known.mean:.2f} (worst {known.worst:.2f}, {known.cells})" if known else NONE


def delay_rows(results: Results, found: Bests) -> Iterator[Sequence[str]]:
    """Of each start-up delay the mean and the worst ratio to reference, static and clairvoyant."""
    own = costs(found.get(OWN, {}))
    others = [
        costs(found.get("reference", {})),
        static_costs(results, lambda _: True),
        costs(found.get("clairvoyant", {})),
    ]
    for delay_s in DELAYS_S:
        near = {cell: cost for cell, cost in own.items() if cell.delay_s == delay_s}
        moved = [found[OWN][cell].figures.reversals for cell in near]
        ratios = [ratio(near, each) for each in others]
        yield [f"{delay_s} s", *(_short(each) for each in ratios), f"{fmean(moved):.1f}" if moved else NONE]
