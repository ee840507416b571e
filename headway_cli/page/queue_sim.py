"""The document of `headway queue-sim` → one self-contained HTML page: charts with intervals, and the tables.

A pure function of the document. plotly is imported on use; nothing is loaded from a network.
"""

from collections.abc import Mapping
from html import escape
from typing import Any

from headway_cli.page.charts import BLUE, GREEN, GREY, LAYOUT, ORANGE
from headway_cli.page.template import charts, figures, notes, page
from headway_cli.queue_sim_words import (
    HEAD,
    Document,
    headline,
    orders,
    pattern_head,
    pattern_rows,
    rows,
)

PANELS = (
    ("Mean wait (s)", "mean_wait_s", 1.0),
    ("99th percentile of waits (s)", "p99_wait_s", 1.0),
    ("SLO missed (%)", "slo_violations", 100.0),
    ("Utilisation (%)", "utilisation", 100.0),
)
COLUMNS = 2
QUEUE_COLOURS: Mapping[str, str] = {"simple": BLUE, "slo": ORANGE, "slo-savable": GREEN}
HEIGHT_PX = 720


def render(document: Document) -> str:
    """The page; the same document gives the same text."""
    found = "".join(_order(title, lines) for title, lines in orders(document))
    return page(
        title=headline(document),
        subtitle=_subtitle(document),
        body="\n".join(
            (
                charts(_draw(document)),
                "<h2>Policies</h2>",
                figures(HEAD, rows(document)),
                "<h2>Patterns</h2>",
                figures(pattern_head(document), pattern_rows(document)),
                f'<section id="orders">{found}</section>',
                notes(document["notes"]),
            )
        ),
    )


def _subtitle(document: Document) -> str:
    patterns = "; ".join(
        f"{one['name']} {one['arrival_rps']:.4g}/s, SLO {one['slo_s']:g} s"
        for one in document["setup"]["patterns"]
    )
    return (
        f"Patterns: {patterns}. Service {document['service']}, bin-pack-pull passing: {document['passing']}. "
        "Bars are means over the seeds, whiskers and ± their 95 % confidence intervals; "
        "orders are of differences paired by seed."
    )


def _draw(document: Document) -> Any:  # noqa: ANN401 - a plotly figure
    from plotly.subplots import make_subplots

    figure = make_subplots(
        rows=len(PANELS) // COLUMNS,
        cols=COLUMNS,
        subplot_titles=[f"<b>{title}</b>" for title, _, _ in PANELS],
        vertical_spacing=0.16,
        horizontal_spacing=0.09,
    )
    for at, (_, key, factor) in enumerate(PANELS):
        for queue, colour in QUEUE_COLOURS.items():
            found = [row for row in document["policies"] if row["queue"] == queue]
            if found:
                place = {"row": at // COLUMNS + 1, "col": at % COLUMNS + 1}
                figure.add_trace({**_bars(found, key, factor, queue, colour), "showlegend": at == 0}, **place)
    return _lay_out(figure)


def _bars(found: list[Mapping[str, Any]], key: str, factor: float, queue: str, colour: str) -> dict[str, Any]:
    return {
        "type": "bar",
        "name": queue,
        "legendgroup": queue,
        "marker": {"color": colour},
        "x": [row["routing"] for row in found],
        "y": [_times(row[key]["mean"], factor) for row in found],
        "error_y": {
            "type": "data",
            "array": [_times(row[key]["half_width"], factor) for row in found],
            "color": GREY,
            "thickness": 1.5,
        },
        "hovertemplate": f"%{{x}}: %{{y:.4g}}<extra>{escape(queue)}</extra>",
    }


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _lay_out(figure: Any) -> Any:  # noqa: ANN401 - a plotly figure
    figure.update_yaxes(rangemode="nonnegative", zeroline=False, gridwidth=1, automargin=True)
    figure.update_xaxes(automargin=True, showline=False, type="category")
    figure.update_annotations(font={"size": 14})
    return figure.update_layout(
        **LAYOUT,
        barmode="group",
        height=HEIGHT_PX,
        margin={"l": 48, "r": 16, "t": 84, "b": 48},
        legend={"orientation": "h", "x": 0.5, "xanchor": "center", "y": 1.07, "yanchor": "bottom"},
    )


def _order(title: str, lines: Mapping[str, str]) -> str:
    items = "".join(f"<li><b>{escape(name)}</b>: {escape(order)}</li>" for name, order in lines.items())
    return f"<h2>{escape(title)}</h2><ul>{items}</ul>"
