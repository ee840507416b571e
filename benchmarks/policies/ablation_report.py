"""The ablation's table: GPU-hours and attainment with one idea off, over those of the whole policy."""

from collections.abc import Mapping, Sequence
from math import exp, log
from statistics import fmean

from benchmarks.policies.ablation import IDEAS
from benchmarks.policies.cells import Cell
from benchmarks.policies.contenders import LOSS_BUDGETS, ONE_PERCENT
from benchmarks.policies.loaded_base import GOAL, Figures
from benchmarks.policies.report import table
from benchmarks.policies.results import Results, searched
from benchmarks.policies.summary import bests, costs, ratio

HEAD = (
    "off",
    "cells",
    "GPU-hours ×",
    "attainment",
    "least",
    "reversals",
    "cells held",
    "GPU-hours × (worst)",
)


def ablation_markdown(results: Results) -> str:
    """Of `results` with the whole policy and the ones with an idea off."""
    rows = [_row(results, "headway", "nothing"), *(_row(results, each.contender, each.off) for each in IDEAS)]
    return "\n".join(
        [
            "# Ablation of the policy headway\n",
            f"First at a loss budget of {LOSS_BUDGETS[ONE_PERCENT]:g}, over the cells where that was run;"
            f" then each cell at the cheapest loss budget that holds {GOAL:.0%}, over those that both hold."
            " Ratios are geometric means over the whole policy's GPU-hours; attainment is the mean over cells"
            " and the least; reversals are changes of direction per hour and pool.\n",
            table(HEAD, rows),
        ]
    )


def _row(results: Results, name: str, off: str) -> Sequence[str]:
    own, whole = _fixed(results, name), _fixed(results, "headway")
    both = [cell for cell in own if cell in whole]
    if not both:
        return [off, "0", *["–"] * (len(HEAD) - 2)]
    hours = exp(fmean(log(own[cell].gpu_hours / whole[cell].gpu_hours) for cell in both))
    shares = [own[cell].attainment for cell in both]
    moved = fmean(own[cell].reversals for cell in both)
    at_one = [f"{hours:.3f}", f"{fmean(shares):.2%}", f"{min(shares):.2%}", f"{moved:.1f}"]
    return [off, str(len(both)), *at_one, *_at_best(results, name)]


def _fixed(results: Results, name: str) -> Mapping[Cell, Figures]:
    books = {cell: results.books[name, cell] for cell in results.cells}
    return {
        cell: run_file.runs[ONE_PERCENT,]
        for cell, run_file in books.items()
        if (ONE_PERCENT,) in run_file.runs
    }


def _at_best(results: Results, name: str) -> Sequence[str]:
    found = bests(results)
    known = ratio(costs(found[name]), costs(found["headway"]))
    contender = next(each for each in results.contenders if each.name == name)
    tried = sum(searched(results.books[name, cell], contender) for cell in results.cells)
    held = f"{len(found[name])} of {tried}"
    return [held, f"{known.mean:.3f} ({known.worst:.2f} at {known.where})" if known else "–"]
