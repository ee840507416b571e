"""The page of a comparison of routings: goodput, attainment per class and shed share over the load."""

from collections.abc import Mapping
from html import escape
from string import Template
from typing import Any

from headway_cli.page.charts import BLUE, FONT, GREEN, GREY, ORANGE, PURPLE, SKY, VERMILLION
from headway_cli.page.template import STYLE
from headway_cli.words import percent

Document = Mapping[str, Any]

COLOURS = (GREY, SKY, ORANGE, PURPLE, BLUE, VERMILLION, GREEN)
PANEL_PX = 260

PAGE = Template("""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Headway: $title</title>
<style>$style</style>
<script>$library</script>
</head>
<body>
<h1>$title</h1>
<p>$subtitle</p>
$charts
<h2>Figures</h2>
<div class="wide">$table</div>
</body>
</html>
""")


def render_routings(document: Document) -> str:
    """One self-contained page; the same document gives the same text."""
    from plotly.offline import get_plotlyjs

    figure = _draw(document)
    config = {"displaylogo": False, "responsive": True}
    return PAGE.substitute(
        title=escape(f"routings on {document['trace']['name']}, fleet {document['fleet']}"),
        style=STYLE,
        subtitle=escape(
            f"Profile {document['profile']}; {document['seeds']} runs of each. Bars are standard deviations. "
            "100 % load is what the fleet does at best under the targets (fluid bound)."
        ),
        library=get_plotlyjs(),
        charts=figure.to_html(full_html=False, include_plotlyjs=False, div_id="charts", config=config),
        table=_table(document),
    )


def _panels(document: Document) -> list[tuple[str, list[dict[str, float | None]]]]:
    """Title and one spread for each row of the document."""
    rows = document["rows"]
    panels = [("Goodput, requests/s", [row["goodput_rps"] for row in rows])]
    panels += [
        (f"Attainment of {name}, %", [_percent(row["classes"][name]["attainment"]) for row in rows])
        for name in rows[0]["classes"]
    ]
    if not rows[0]["classes"]:
        panels.append(("Attainment, %", [_percent(row["attainment"]) for row in rows]))
    panels.append(("Shed, %", [_percent(row["shed_share"]) for row in rows]))
    return panels


def _percent(spread: Mapping[str, float | None]) -> dict[str, float | None]:
    return {key: None if value is None else 100.0 * value for key, value in spread.items()}


def _draw(document: Document) -> Any:  # noqa: ANN401 - a plotly figure
    from plotly.subplots import make_subplots

    panels, rows = _panels(document), document["rows"]
    routings = list(dict.fromkeys(row["routing"] for row in rows))
    figure = make_subplots(
        rows=len(panels), cols=1, shared_xaxes=True, subplot_titles=[title for title, _ in panels],
        vertical_spacing=0.28 / len(panels),
    )  # fmt: skip
    for number, (_, spreads) in enumerate(panels, start=1):
        for place, routing in enumerate(routings):
            points = [
                (row["load"], s) for row, s in zip(rows, spreads, strict=True) if row["routing"] == routing
            ]
            figure.add_scatter(
                x=[100.0 * load for load, _ in points],
                y=[spread["mean"] for _, spread in points],
                error_y={"type": "data", "array": [spread["sd"] or 0.0 for _, spread in points]},
                name=escape(routing),
                legendgroup=routing,
                showlegend=number == 1,
                mode="lines+markers",
                line={"color": COLOURS[place % len(COLOURS)]},
                row=number,
                col=1,
            )
    figure.update_layout(
        height=PANEL_PX * len(panels) + 80,
        font={"family": FONT},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        legend={"orientation": "h", "y": 1.08},
    )
    figure.update_xaxes(title_text="load, % of the fluid bound", row=len(panels), col=1)
    figure.update_yaxes(rangemode="tozero", gridcolor="rgba(128,128,128,0.3)")
    return figure


def _table(document: Document) -> str:
    classes = list(document["rows"][0]["classes"])
    names = ("load", "routing", "goodput/s", "attained", *classes, "shed")
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = "".join(_table_row(row, classes) for row in document["rows"])
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _table_row(row: Document, classes: list[str]) -> str:
    shares = [row["attainment"], *(row["classes"][name]["attainment"] for name in classes), row["shed_share"]]
    cells = [
        percent(row["load"]),
        escape(row["routing"]),
        f"{row['goodput_rps']['mean']:.4g}",
        *(percent(share["mean"]) for share in shares),
    ]
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"
