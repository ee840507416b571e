"""The document of `headway share` as text and as an HTML page: one row a deployment, shared and split."""

from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from headway_cli.page.charts import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, Board
from headway_cli.page.series import Floats, gpus_over_time, interval_columns
from headway_cli.page.template import charts, figures, notes, page
from headway_cli.tables import COMPARED, print_facts, print_notes
from headway_cli.words import Document, percent, plural

COLOURS = (BLUE, ORANGE, GREEN, PURPLE, SKY, GREY)
WAYS = {"shared": "GPUs, shared", "split": "GPUs, split in fixed parts"}


def headline(document: Document) -> str:
    """What was simulated, in one line."""
    return f"{plural(len(document['deployments']), 'deployment')} share {plural(document['gpus'], 'GPU')}"


def totals(document: Document) -> dict[str, str]:
    """The sums of each way to use the budget, as sentences."""
    ways = {"Shared": document, **({"Split": document["split"]} if "split" in document else {})}
    return {
        name: f"{way['lost']:,} of {way['requests']:,} requests lost ({percent(_share(way))}), "
        f"{way['gpu_hours']:.4g} GPU-hours, at most {way['most_gpus']:.0f} GPUs asked for at once"
        for name, way in ways.items()
    }


def _share(way: Document) -> float | None:
    return way["lost"] / way["requests"] if way["requests"] else None


def rows(document: Document) -> list[list[str]]:
    """Cells of the table; with a split, each deployment has two rows."""
    found = [["shared", *_cells(row)] for row in document["deployments"]]
    if "split" in document:
        parts = document["split"]["parts"]
        found += [[f"{parts[row['name']]} alone", *_cells(row)] for row in document["split"]["deployments"]]
    return sorted(found, key=lambda cells: cells[1])


def _cells(row: Document) -> list[str]:
    return [row["name"], *(show(row) for show in SHOWN.values())]


def _asked(row: Document) -> str:
    _, counts = gpus_over_time(row)
    return f"{min(counts[:-1], default=0):.0f} to {max(counts):.0f}"


SHOWN: Mapping[str, Callable[[Document], str]] = {
    "priority": lambda row: f"{row['priority']}",
    "requests": lambda row: f"{row['requests']:,}",
    "aim": lambda row: percent(row["slo"]["attainment"]),
    "attained": COMPARED["attained"],
    "attainable": lambda row: percent(row["attainable"]),
    "GPU-hours": COMPARED["GPU-hours"],
    "GPUs": _asked,
    "reversals": COMPARED["reversals"],
    "TTFT p99": COMPARED["TTFT p99"],
    "ITL p99": COMPARED["ITL p99"],
}
HEAD: Sequence[str] = ("budget", "deployment", *SHOWN)


def all_notes(document: Document) -> list[str]:
    """The notes that each deployment alone has, under its name, then those of all."""
    deployments = document["deployments"]
    common = [note for note in deployments[0]["notes"] if all(note in row["notes"] for row in deployments)]
    own = [f"{row['name']}: {note}" for row in deployments for note in row["notes"] if note not in common]
    return [*own, *common]


def print_shared(document: Document, out: Console) -> None:
    """The whole document."""
    out.print(Text(headline(document), style="bold"))
    print_facts(totals(document), out)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for at, name in enumerate(HEAD):
        table.add_column(name, justify="left" if at < 2 else "right", no_wrap=at > 1)
    for cells in rows(document):
        table.add_row(*(Text(cell) for cell in cells))
    out.print(table)
    print_notes(all_notes(document), out)


def render(document: Document) -> str:
    """The page; the same document (`wall_s` apart) gives the same text."""
    sums = "".join(f"<li><b>{name}</b>: {escape(text)}</li>" for name, text in totals(document).items())
    body = (
        f"<ul>{sums}</ul>",
        figures(HEAD, rows(document)),
        "<h2>Over time</h2>",
        charts(_draw(document)),
        notes(all_notes(document)),
    )
    subtitle = "A higher priority comes first; inside a tier the fewest requests are lost that can be."
    return page(title=headline(document), subtitle=subtitle, body="\n".join(body))


def _draw(document: Document) -> Any:  # noqa: ANN401 - a plotly figure
    ways = {"shared": document, **({"split": document["split"]} if "split" in document else {})}
    end_s = max(row["simulated_s"] for row in document["deployments"])
    titles = (*(WAYS[way] for way in ways), "Load", *(f"Attainment, {way}" for way in ways))
    board = Board({"simulated_s": end_s}, titles)
    for row, way in enumerate(ways.values(), start=1):
        _draw_gpus(board, row, way["deployments"])
        board.target(row, f"budget {document['gpus']}", document["gpus"], end_s)
        board.axis(row, "GPUs")
    _draw_load(board, len(ways) + 1, document["deployments"])
    for row, way in enumerate(ways.values(), start=len(ways) + 2):
        _draw_attainment(board, row, way["deployments"])
    return board.finish(end_s)


def _draw_gpus(board: Board, row: int, deployments: list[Document]) -> None:
    """Stacked, the first one at the bottom."""
    held = [gpus_over_time(one) for one in deployments]
    times = np.unique(np.concatenate([time_s for time_s, _ in held]))
    below = np.zeros(len(times))
    for at, (one, (time_s, counts)) in enumerate(zip(deployments, held, strict=True)):
        below = below + counts[np.searchsorted(time_s, times, side="right") - 1]
        style = {"color": _colour(at), "width": 1, "shape": "hv"}
        board.line(row, one["name"], times, below, line=style, fill="tonexty" if at else "tozeroy")


def _draw_load(board: Board, row: int, deployments: list[Document]) -> None:
    for at, one in enumerate(deployments):
        columns = interval_columns(one["intervals"])
        style = {"color": _colour(at), "width": 2, "shape": "hv"}
        board.line(row, one["name"], columns.start_s, columns.load_rps, line=style)
    board.axis(row, "requests/s")


def _draw_attainment(board: Board, row: int, deployments: list[Document]) -> None:
    for at, one in enumerate(deployments):
        columns = interval_columns(one["intervals"])
        share: Floats = columns.attainment * 100.0
        board.line(row, one["name"], columns.middle_s, share, line={"color": _colour(at), "width": 2})
    board.axis(row, "% of requests")


def _colour(at: int) -> str:
    return COLOURS[at % len(COLOURS)]
