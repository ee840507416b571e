"""The benchmark's tables, in Markdown."""

from collections.abc import Iterator, Sequence

from benchmarks.policies.asked import HEAD, asked_rows, delay_rows
from benchmarks.policies.cells import Cell
from benchmarks.policies.contenders import CONTENDERS
from benchmarks.policies.loaded_base import GOAL
from benchmarks.policies.results import Results
from benchmarks.policies.run_files import BUDGET_FACTOR, MOST_FACTOR
from benchmarks.policies.summary import Best, Bests, Ratio, against, bests, covered, one_setting, reversals

INTRODUCTION = f"""\
# Policies at equal attainment

Attainment is requests within both SLOs over those that an idle fleet could serve within them. A policy's cost
in a cell is that of its cheapest setting with at least {GOAL:.0%}. Every policy begins a cell with the same
fleet: the cheapest fixed one that holds {GOAL:.0%} of the first five minutes, chosen in hindsight. With a
budget, all pools together have {BUDGET_FACTOR:g} × the GPUs of the best static fleet; without, each pool has
at most {MOST_FACTOR} × its replicas. Hours are pooled over rotations of the trace; differences below 5 % are
noise.
"""


def markdown(results: Results) -> str:
    """The whole report."""
    found = bests(results)
    parts = [
        INTRODUCTION,
        *_covered(results),
        *_asked(results, found),
        *_everywhere(results),
        *_ratios(results, found),
        *_reversals(found),
        *_bases(results),
        *_cells(results, found),
    ]
    return "\n".join(parts) + "\n"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _covered(results: Results) -> Iterator[str]:
    """Sentences on missing results, if there are any."""
    cells = covered(results)
    absent = dict.fromkeys(each.family for each in CONTENDERS if each.family not in cells)
    if absent:
        yield f"Not in this run: {', '.join(absent)}.\n"
    partly = {family: len(own) for family, own in cells.items() if len(own) < len(results.cells)}
    if partly:
        counts = ", ".join(f"{family} {count}" for family, count in partly.items())
        yield f"Not finished: of {len(results.cells)} cells {counts}. Ratios cover cells that both have.\n"
    if results.missing:
        yield f"Without facts yet, and left out: {', '.join(base.name for base in results.missing)}.\n"


def _asked(results: Results, found: Bests) -> Iterator[str]:
    if not found.get("headway"):
        return
    yield "## Asked and measured\n"
    yield table(HEAD, list(asked_rows(results, found)))
    yield "By start-up delay: geometric mean of the ratios, the worst, and the number of cells.\n"
    head = ["delay", "× reference", "× static", "× clairvoyant", "changes of direction"]
    yield table(head, list(delay_rows(results, found)))


def _everywhere(results: Results) -> Iterator[str]:
    chosen = one_setting(results)
    contenders = {contender.name: contender for contender in results.contenders}
    reference = chosen["reference"][1].total if "reference" in chosen else None
    rows = []
    for family, (name, entry) in chosen.items():
        if entry.total is None or entry.knobs is None:
            rows.append(
                [family, name, "none of those run", f"each alone: {entry.holds} of {entry.cells}", "–", "–"]
            )
            continue
        values = contenders[name].values(entry.knobs)
        share = f"{entry.total.gpu_hours / reference.gpu_hours:.2f}" if reference else "–"
        total = f"{entry.total.gpu_hours:,.1f}"
        rows.append([family, name, _setting(values), str(entry.cells), total, share])
    yield "## One setting everywhere\n"
    yield (
        "GPU-hours in all, at the cheapest single setting with which every cell holds the goal; the cells are"
        " those that `headway` and `reference` can hold at all.\n"
    )
    yield table(["policy", "contender", "setting", "cells", "GPU-hours", "× reference"], rows)


def _ratios(results: Results, found: Bests) -> Iterator[str]:
    yield "## Each cell at its best setting\n"
    yield "Geometric mean of the cost ratios, the worst ratio, and the number of cells that both hold.\n"
    rows, cells = [], covered(results)
    for family in found:
        ratios = against(results, found, family)
        held = f"{len(found[family])} of {len(cells[family])}"
        rows.append([family, held, *(_ratio(each) for each in ratios.values())])
        head = ["policy", "cells held", *(f"× {name}" for name in ratios)]
    yield table(head, rows)
    for family in ("headway", "clairvoyant", "reference"):
        for name, each in against(results, found, family).items() if found.get(family) else ():
            if each and not name.startswith(family):
                yield f"- worst of {family} × {name}: {each.worst:.2f} at {each.where}"
    yield ""


def _ratio(known: Ratio | None) -> str:
    return f"{known.mean:.2f} (worst {known.worst:.2f}, {known.cells})" if known else "–"


def _reversals(found: Bests) -> Iterator[str]:
    yield "## Changes of direction, per hour and pool\n"
    known = {family: reversals(of_family) for family, of_family in found.items()}
    rows = [
        [family, f"{moved[0]:.1f}", f"{moved[1]:.1f}", moved[2]] for family, moved in known.items() if moved
    ]
    yield table(["policy", "mean", "most", "where"], rows)


def _bases(results: Results) -> Iterator[str]:
    yield "## Traces and promises\n"
    yield "Multiples are of the mean request's latency on an idle engine.\n"
    rows = []
    for base, facts in results.facts.items():
        ttft_s, itl_s = base.slo_s
        static = facts.static_figures
        rows.append(
            [
                base.name,
                f"{ttft_s:g} s ({ttft_s / facts.idle_ttft_s:.1f} ×)",
                f"{1e3 * itl_s:g} ms ({itl_s / facts.idle_itl_s:.1f} ×)",
                f"{facts.requests:,}",
                f"{facts.attainable:,} ({facts.attainable / facts.requests:.2%})",
                f"{facts.static[0]} + {facts.static[1]}" if facts.static else "none",
                f"{static.gpu_hours:.1f}" if static else "–",
                f"{static.fluid_gpu_hours:.1f}" if static else "–",
            ]
        )
    head = ["trace, profile, SLO", "TTFT", "ITL", "requests", "attainable"]
    yield table([*head, "best static fleet", "GPU-hours", "fluid bound"], rows)


def _cells(results: Results, found: Bests) -> Iterator[str]:
    yield "## Cells\n"
    yield (
        "GPU-hours at the cheapest setting that holds; in brackets the setting, the least and most attainment"
        " of the rotations, and changes of direction per hour and pool. Where none holds, the best"
        " attainment.\n"
    )
    rows = []
    for cell in results.cells:
        static = results.facts[cell.base].static_figures
        own = [
            _best(found[family][cell]) if cell in found[family] else _missed(results, family, cell)
            for family in found
        ]
        rows.append([cell.name, f"{static.gpu_hours:.1f}" if static else "–", *own])
    yield table(["cell", "static", *found], rows)


def _best(best: Best) -> str:
    run = best.figures
    shares = [100 * share for share, _ in run.spread]
    spread = f"{min(shares):.1f}…{max(shares):.1f} %" if len(shares) > 1 else f"{shares[0]:.1f} %"
    variant = best.contender.partition("-")[2] if best.contender != "slo-ratio" else ""
    setting = f"{variant} {_setting(best.values)}".strip()
    return f"{run.gpu_hours:.1f} ({setting}, {spread}, {run.reversals:.1f})"


def _missed(results: Results, family: str, cell: Cell) -> str:
    books = [results.books[each.name, cell] for each in results.contenders if each.family == family]
    shares = [run.attainment for run_file in books for run in run_file.runs.values()]
    return f"{max(shares):.1%}" if cell in covered(results)[family] else "not finished"


def _setting(values: Sequence[float]) -> str:
    return " / ".join(f"{value:g}" for value in values)
