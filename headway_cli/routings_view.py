"""A comparison of routings as tables and as an HTML page: figures with their spread, and who is ahead."""

from collections.abc import Callable, Iterable, Mapping
from html import escape
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from headway_cli.page.charts import BLUE, GREEN, GREY, LAYOUT, ORANGE, PURPLE, SKY, VERMILLION
from headway_cli.page.template import charts, figures, notes, page
from headway_cli.tables import print_notes
from headway_cli.words import Document, milliseconds, percent, plural

Spread = Mapping[str, float | None]

COLOURS = (GREY, SKY, ORANGE, PURPLE, BLUE, VERMILLION, GREEN)
PANEL_PX = 260


def print_routings(document: Document, out: Console) -> None:
    """The whole comparison."""
    trace, slo = document["trace"], document["slo"]
    out.print(
        Text(f"{trace['name']}, fleet {document['fleet']}, profile {document['profile']}", style="bold")
    )
    out.print(
        Text(
            f"TTFT {slo['ttft_s'] * 1e3:g} ms, ITL {slo['itl_s'] * 1e3:g} ms where a class names none; "
            f"{plural(document['seeds'], 'seed')}, mean ± standard deviation; 100 % load is what the fleet "
            "does at best (fluid bound)"
        )
    )
    out.print(_figures(document))
    if document["ahead"]:
        out.print(Text(f"Goodput of {document['ahead'][0]['routing']} beside the others", style="bold"))
        out.print(_ahead(document))
    print_notes(document["notes"], out)


def _figures(document: Document) -> Table:
    rows = document["rows"]
    classes = list(rows[0]["classes"])
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("load")
    table.add_column("routing")
    for name in ("goodput/s", "attained", *(f"{name} attained" for name in classes), "shed", "TTFT p90 ms"):
        table.add_column(name, justify="right")
    before = None
    for row in rows:
        table.add_row(
            "" if row["load"] == before else percent(row["load"]),
            Text(row["routing"]),
            spread(row["goodput_rps"], lambda value: f"{value:.4g}"),
            spread(row["attainment"], share),
            *(spread(row["classes"][name]["attainment"], share) for name in classes),
            spread(row["shed_share"], share),
            spread(row["ttft_p90_s"], milliseconds),
        )
        before = row["load"]
    return table


def _ahead(document: Document) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for name in ("load", "of"):
        table.add_column(name)
    for name in ("goodput/s", "relative", "95 % interval"):
        table.add_column(name, justify="right")
    for row in document["ahead"]:
        table.add_row(
            percent(row["load"]),
            Text(row["of"]),
            *lead(row),
        )
    return table


def lead(row: Document) -> tuple[str, str, str]:
    """Of an entry of `ahead`: the difference, the same relative to the other, and its interval."""
    relative = row["relative"]
    return (
        f"{row['goodput_rps']:+.4g}",
        "n/a" if relative is None else f"{_percents(relative)} %",
        interval(relative, row["relative_half_width"]),
    )


def interval(middle: float | None, half: float | None) -> str:
    """`+1.2 to +3.4 %`."""
    if middle is None:
        return "n/a"
    if half is None:
        return "one run"
    return f"{_percents(middle - half)} to {_percents(middle + half)} %"


def _percents(share: float) -> str:
    """With its sign, to three digits: `+1.23`, `+2,090`."""
    return f"{float(f'{share * 100:.3g}'):+,.15g}"


def share(value: float) -> str:
    """A share in percent, to a tenth."""
    return f"{value * 100:.1f} %"


def spread(value: Spread, show: Callable[[float], str]) -> str:
    """`mean ± deviation`."""
    mean, deviation = value["mean"], value["sd"]
    if mean is None:
        return "n/a"
    return show(mean) if deviation is None else f"{show(mean)} ± {show(deviation).removesuffix(' %')}"


def render_routings(document: Document) -> str:
    """One self-contained page; the same document gives the same text."""
    return page(
        title=f"routings on {document['trace']['name']}, fleet {document['fleet']}",
        subtitle=f"Profile {document['profile']}; {plural(document['seeds'], 'run')} of each. "
        "Bars are standard deviations. Goodput is what met its SLOs, per second of the trace. "
        "100 % load is what the fleet does at best under the targets (fluid bound).",
        body="\n".join(
            (
                charts(_draw(document)),
                "<h2>Figures</h2>",
                _figures_html(document),
                _ahead_html(document),
                notes(document["notes"]),
            )
        ),
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
        **LAYOUT,
        height=PANEL_PX * len(panels) + 80,
        margin={"l": 64, "r": 24, "t": 84, "b": 56},
        legend={"orientation": "h", "y": 1.08},
    )
    figure.update_xaxes(zeroline=False, ticksuffix=" %")
    figure.update_xaxes(title_text="load, % of the fluid bound", row=len(panels), col=1)
    figure.update_yaxes(rangemode="tozero", zeroline=False, automargin=True)
    return figure


def _figures_html(document: Document) -> str:
    classes = list(document["rows"][0]["classes"])
    head = ("load", "routing", "goodput/s", "attained", *(f"{name} attained" for name in classes), "shed")
    return figures(head, (_cells(row, classes) for row in document["rows"]))


def _cells(row: Document, classes: Iterable[str]) -> list[str]:
    shares = [row["attainment"], *(row["classes"][name]["attainment"] for name in classes), row["shed_share"]]
    return [
        percent(row["load"]),
        row["routing"],
        f"{row['goodput_rps']['mean']:.4g}",
        *(percent(share["mean"]) for share in shares),
    ]


def _ahead_html(document: Document) -> str:
    """Who is ahead by how much; nothing where only one routing ran."""
    found = document["ahead"]
    if not found:
        return ""
    head = ("load", "of", "goodput/s", "relative", "95 % interval")
    table = figures(head, ((percent(row["load"]), row["of"], *lead(row)) for row in found))
    title = escape(f"Goodput of {found[0]['routing']} beside the others")
    return f"<h2>{title}</h2>\n{table}"
