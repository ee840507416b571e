"""A simulated fleet as text and as an HTML page."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from rich.console import Console

from headway.words import percent, plural
from headway_cli.fleet import BudgetUse, DeploymentUse, FleetReport
from headway_cli.page.charts import Board, Figure, Style, colour, plain
from headway_cli.page.series import gpus_over_time, interval_columns, steps
from headway_cli.page.template import charts, figures, heading, named, notes, page
from headway_cli.result_view import COMPARED, common_notes
from headway_cli.terminal import bold, print_facts, print_notes, table

OVER_TIME = {"shared": "GPUs, shared", "split": "GPUs, split in fixed parts", "each alone": "GPUs"}


def headline(report: FleetReport) -> str:
    """The number of deployments, and the budget."""
    count = plural(len(report.whole.deployments), "deployment")
    return count if report.gpus is None else f"{count} share {plural(report.gpus, 'GPU')}"


def totals(report: FleetReport) -> dict[str, str]:
    """The sums of each way to use the budget, as sentences."""
    return {
        (name if use.file else name.capitalize()): f"{use.lost:,} of {use.requests:,} requests lost "
        f"({percent(use.lost / use.requests if use.requests else None)}), "
        f"{use.gpu_hours:.4g} GPU-hours, at most {use.most_gpus():.0f} GPUs asked for at once"
        for name, use in _ways(report).items()
    }


def _ways(report: FleetReport) -> dict[str, BudgetUse]:
    name = "each alone" if report.gpus is None else "shared"
    beside = report.beside
    return {name: report.whole} | ({} if beside is None else {beside.file or "split": beside})


def rows(report: FleetReport) -> list[list[str]]:
    """Cells of the table; with two ways to use the budget, each deployment has two rows."""
    found = [["shared" if report.gpus else "none", *_cells(one)] for one in report.whole.deployments]
    if (beside := report.beside) is not None:
        parts = beside.parts or {}
        found += [[beside.file or f"{parts[one.name]} alone", *_cells(one)] for one in beside.deployments]
    return sorted(found, key=lambda cells: cells[1])


def _cells(one: DeploymentUse) -> list[str]:
    return [one.name, *(show(one) for show in SHOWN.values())]


def _asked(one: DeploymentUse) -> str:
    _, counts = gpus_over_time(one.report)
    return f"{min(counts[:-1], default=0):.0f} to {max(counts):.0f}"


def _compared(name: str) -> Callable[[DeploymentUse], str]:
    return lambda one: COMPARED[name](one.report)


SHOWN: Mapping[str, Callable[[DeploymentUse], str]] = {
    "priority": lambda one: f"{one.priority}",
    "requests": lambda one: f"{one.report.requests:,}",
    "target": lambda one: percent(one.report.slo.attainment),
    "attained": _compared("attained"),
    "attainable": lambda one: percent(one.report.attainable),
    "GPU-hours": _compared("GPU-hours"),
    "GPUs": _asked,
    "reversals": _compared("reversals"),
    "TTFT p99": _compared("TTFT p99"),
    "ITL p99": _compared("ITL p99"),
}
HEAD: Sequence[str] = ("budget", "deployment", *SHOWN)


def all_notes(report: FleetReport) -> list[str]:
    """The notes that each deployment alone has, under its name, then those of all."""
    uses = report.whole.deployments
    common = common_notes([one.report for one in uses])
    own = [f"{one.name}: {note}" for one in uses for note in one.report.notes if note not in common]
    return [*report.least, *own, *common]


def print_fleet(report: FleetReport, out: Console) -> None:
    """The whole report."""
    out.print(bold(headline(report)))
    print_facts(totals(report), out)
    out.print(table(HEAD, rows(report), names=2, whole=range(2, len(HEAD))))
    print_notes(all_notes(report), out)


def render(report: FleetReport) -> str:
    """The page: GPUs held over time, load, attainment; the same report gives the same text."""
    body = (
        named(totals(report)),
        figures(HEAD, rows(report)),
        heading("Over time"),
        charts(_draw(report)),
        notes(all_notes(report)),
    )
    subtitle = (
        "Each plans by itself."
        if report.gpus is None
        else "A higher priority comes first; inside a tier the fewest requests are lost that can be."
    )
    return page(*body, title=headline(report), subtitle=subtitle)


def _draw(report: FleetReport) -> Figure:
    ways, first = _ways(report), report.whole.deployments
    titles = (
        *(OVER_TIME.get(way, f"GPUs, {way}") for way in ways),
        "Load",
        *(f"Attainment, {way}" for way in ways),
    )
    board = Board(max(one.report.simulated_s for one in first), titles)
    for row, use in enumerate(ways.values(), start=1):
        _draw_gpus(board, row, use.deployments)
        if report.gpus is not None and use.file is None:
            board.target(row, f"budget {report.gpus}", report.gpus)
        board.axis(row, whole=True)
    for at, one in enumerate(first):
        columns = interval_columns(one.report.intervals)
        board.line(
            len(ways) + 1, one.name, *steps(columns, columns.load_rps), {**_style(one, at), "step": True}
        )
    board.axis(len(ways) + 1, title="requests/s")
    for row, use in enumerate(ways.values(), start=len(ways) + 2):
        for at, one in enumerate(use.deployments):
            columns = interval_columns(one.report.intervals)
            board.share(row, one.name, *steps(columns, columns.attainment), {**_style(one, at), "step": True})
        shares = [each.attainment for one in use.deployments for each in one.report.intervals]
        for aim in sorted({one.report.slo.attainment for one in use.deployments}):
            board.attainment_target(
                row, aim, [*shares, *(one.report.slo.attainment for one in use.deployments)]
            )
    return board.finish()


def _draw_gpus(board: Board, row: int, uses: Sequence[DeploymentUse]) -> None:
    """Stacked, the first one at the bottom."""
    held = [gpus_over_time(one.report) for one in uses]
    times = np.unique(np.concatenate([time_s for time_s, _ in held]))
    below = np.zeros(len(times))
    for at, (one, (time_s, counts)) in enumerate(zip(uses, held, strict=True)):
        own = counts[np.searchsorted(time_s, times, side="right") - 1]
        words = [f"{count:.0f}" for count in own]
        style: Style = {**_style(one, at), "step": True, "base": plain(below), "told": words}
        below = below + own
        board.line(row, one.name, times, below, style)


def _style(one: DeploymentUse, at: int) -> Style:
    return {"group": one.name, "colour": colour(at)}
