"""The document of `headway share` → one self-contained HTML page: who held what over time, load, attainment.

A pure function of the document. plotly is imported on use; nothing is loaded from a network.
"""

from html import escape
from typing import Any

import numpy as np

from headway_cli.page.charts import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, Board
from headway_cli.page.series import Document, Floats, gpus_over_time, interval_columns
from headway_cli.page.template import charts, figures, notes, page
from headway_cli.share_tables import HEAD, all_notes, headline, rows, totals

COLOURS = (BLUE, ORANGE, GREEN, PURPLE, SKY, GREY)
WAYS = {"shared": "GPUs, shared", "split": "GPUs, split in fixed parts"}


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
