"""The benchmark's tables, in Markdown."""

from collections.abc import Iterator, Sequence
from statistics import fmean

from benchmarks.policies.cells import DELAYS_S, Cell
from benchmarks.policies.loaded_base import GOAL
from benchmarks.policies.results import Best, Ratio, Results, ratio
from benchmarks.policies.run_files import BUDGET_FACTOR, MOST_FACTOR

INTRODUCTION = f"""\
# Policies at equal attainment

Attainment is requests within both SLOs over those that an idle fleet could serve within them. A policy's cost
in a cell is that of its cheapest setting with at least {GOAL:.0%}. Every policy begins a cell with the same
fleet: the cheapest fixed one that holds {GOAL:.0%} of the first five minutes, chosen in hindsight. With a
budget, all pools together have {BUDGET_FACTOR:g} × the GPUs of the best static fleet; without, each pool has
at most {MOST_FACTOR} × its replicas. Hours are pooled over rotations of the trace; differences below 5 % are
noise.
"""
NONE = "–"


def markdown(results: Results) -> str:
    """The whole report."""
    parts = [
        INTRODUCTION,
        *_unfinished(results),
        *_everywhere(results),
        *_ratios(results),
        *_bases(results),
        *_cells(results),
    ]
    return "\n".join(parts) + "\n"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _unfinished(results: Results) -> Iterator[str]:
    """Sentences on missing results, if there are any."""
    counts = {family: len(results.covered(family)) for family in results.families}
    partly = [f"{family} {count}" for family, count in counts.items() if count < len(results.cells)]
    if partly:
        yield (
            f"Not finished: of {len(results.cells)} cells {', '.join(partly)}. Ratios cover cells that both"
            " have.\n"
        )
    if results.missing:
        yield f"Without facts yet, and left out: {', '.join(base.name for base in results.missing)}.\n"


def _everywhere(results: Results) -> Iterator[str]:
    yield "## One setting everywhere\n"
    yield (
        "GPU-hours in all, at the cheapest single setting with which every cell holds the goal; the cells are"
        " those that `headway` and `reference` can hold at all.\n"
    )
    reference = results.everywhere("reference")
    contenders = {contender.name: contender for contender in results.contenders}
    rows = []
    for family in results.families:
        one = results.everywhere(family)
        if one is None:
            continue
        row = [family, one.contender, "none of those run", f"each alone: {one.holds} of {one.cells}"]
        if one.knobs is None or one.gpu_hours is None:
            rows.append([*row, NONE, NONE])
            continue
        setting = _setting(contenders[one.contender].values(one.knobs))
        known = reference and reference.gpu_hours
        share = f"{one.gpu_hours / known:.2f}" if known else NONE
        rows.append([family, one.contender, setting, str(one.cells), f"{one.gpu_hours:,.1f}", share])
    yield table(["policy", "contender", "setting", "cells", "GPU-hours", "× reference"], rows)


def _ratios(results: Results) -> Iterator[str]:
    yield "## Each cell at its best setting\n"
    yield (
        "Geometric mean of the cost ratios, the worst and where it is, and the number of cells that both"
        " hold: of all start-up delays and of each. Changes of direction are mean and most, per hour and"
        " pool. The fluid bound is the least GPU-hours imaginable: all work at the best throughput within"
        " the targets, on GPUs that come in fractions.\n"
    )
    others = {
        "reference": results.costs("reference") if "reference" in results.families else {},
        "static, hours": results.static(days=False),
        "static, days": results.static(days=True),
        "fluid bound": results.fluid(),
    }
    rows = []
    for family in results.families:
        covered, found = results.covered(family), results.bests(family)
        for delay_s in (None, *DELAYS_S):
            near = {cell: best.figures for cell, best in found.items() if delay_s in {None, cell.delay_s}}
            of = sum(delay_s in {None, cell.delay_s} for cell in covered)
            own = {cell: run.gpu_hours for cell, run in near.items()}
            moved = [run.reversals for run in near.values()]
            ratios = [_ratio(ratio(own, other)) for other in others.values()]
            delay = "all" if delay_s is None else f"{delay_s} s"
            turned = f"{fmean(moved):.1f}, {max(moved):.1f}" if moved else NONE
            rows.append([family, delay, f"{len(near)} of {of}", *ratios, turned])
    head = ["policy", "delay", "cells held", *(f"× {name}" for name in others), "changes of direction"]
    yield table(head, rows)


def _ratio(known: Ratio | None) -> str:
    return f"{known.mean:.2f} (worst {known.worst:.2f} at {known.where}, {known.cells})" if known else NONE


def _bases(results: Results) -> Iterator[str]:
    yield "## Traces and promises\n"
    rows = []
    for base, facts in results.facts.items():
        (ttft_s, itl_s), static = base.slo_s, facts.static_figures
        rows.append(
            [
                base.name,
                f"{ttft_s:g} s",
                f"{1e3 * itl_s:g} ms",
                f"{facts.requests:,}",
                f"{facts.attainable:,} ({facts.attainable / facts.requests:.2%})",
                f"{facts.static[0]} + {facts.static[1]}" if facts.static else "none",
                f"{static.gpu_hours:.1f}" if static else NONE,
                f"{static.fluid_gpu_hours:.1f}" if static else NONE,
            ]
        )
    head = ["trace, profile, SLO", "TTFT", "ITL", "requests", "attainable"]
    yield table([*head, "best static fleet", "GPU-hours", "fluid bound"], rows)


def _cells(results: Results) -> Iterator[str]:
    yield "## Cells\n"
    yield (
        "GPU-hours at the cheapest setting that holds; in brackets the setting, the least and most attainment"
        " of the rotations, and changes of direction per hour and pool. Where none holds, the best"
        " attainment.\n"
    )
    found = {family: results.bests(family) for family in results.families}
    covered = {family: set(results.covered(family)) for family in results.families}

    def of(family: str, cell: Cell) -> str:
        if cell not in covered[family]:
            return "not finished"
        best = found[family].get(cell)
        return _best(best) if best else _missed(results, family, cell)

    rows = []
    for cell in results.cells:
        static = results.facts[cell.base].static_figures
        own = [of(family, cell) for family in found]
        rows.append([cell.name, f"{static.gpu_hours:.1f}" if static else NONE, *own])
    yield table(["cell", "static", *found], rows)


def _best(best: Best) -> str:
    run = best.figures
    shares = [100 * share for share, _ in run.spread]
    spread = f"{min(shares):.1f}…{max(shares):.1f} %" if len(shares) > 1 else f"{shares[0]:.1f} %"
    setting = f"{best.contender.partition('-')[2]} {_setting(best.values)}".strip()
    return f"{run.gpu_hours:.1f} ({setting}, {spread}, {run.reversals:.1f})"


def _missed(results: Results, family: str, cell: Cell) -> str:
    files = [results.runs[each.name, cell] for each in results.contenders if each.family == family]
    return f"{max(run.attainment for run_file in files for run in run_file.runs.values()):.1%}"


def _setting(values: Sequence[float]) -> str:
    return " / ".join(f"{value:g}" for value in values)
