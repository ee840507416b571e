"""A comparison of routings as tables and as an HTML page: figures with their spread, and who is ahead."""

from collections.abc import Callable, Sequence
from html import escape
from typing import Any

from rich.console import Console
from rich.text import Text

from headway_cli.compare_routings import Lead, RoutingRow, RoutingsReport, Spread
from headway_cli.page.charts import BLUE, GREEN, GREY, LAYOUT, ORANGE, PURPLE, SKY, VERMILLION
from headway_cli.page.template import charts, figures, notes, page
from headway_cli.terminal import bold, print_notes, table
from headway_cli.words import milliseconds, percent, plural, targets

COLOURS = (GREY, SKY, ORANGE, PURPLE, BLUE, VERMILLION, GREEN)
PANEL_PX = 260
LEAD_HEAD = ("load", "of", "goodput/s", "relative", "95 % interval")


def print_routings(report: RoutingsReport, out: Console) -> None:
    """The whole comparison."""
    out.print(bold(f"{report.trace.name}, fleet {report.fleet}, profile {report.profile}"))
    out.print(
        Text(
            f"{targets(report.slo.ttft_s, report.slo.itl_s)} where a class names none; "
            f"{plural(report.seeds, 'seed')}, mean ± standard deviation; 100 % load is what the fleet "
            "does at best (fluid bound)"
        )
    )
    out.print(table(_head(report, "TTFT p90 ms"), _rows(report), names=2))
    if report.ahead:
        out.print(bold(f"Goodput of {report.ahead[0].routing} beside the others"))
        out.print(table(LEAD_HEAD, map(_lead_cells, report.ahead), names=2))
    print_notes(report.notes, out)


def _head(report: RoutingsReport, *more: str) -> list[str]:
    classes = (f"{name} attained" for name in report.rows[0].classes)
    return ["load", "routing", "goodput/s", "attained", *classes, "shed", *more]


def _rows(report: RoutingsReport) -> list[list[str]]:
    cells = []
    before = None
    for row in report.rows:
        shares = (row.attainment, *(each.attainment for each in row.classes.values()), row.shed_share)
        cells.append(
            [
                "" if row.load == before else percent(row.load),
                row.routing,
                _spread(row.goodput_rps, lambda value: f"{value:.4g}"),
                *(_spread(share, lambda value: f"{value * 100:.1f} %") for share in shares),
                _spread(row.ttft_p90_s, milliseconds),
            ]
        )
        before = row.load
    return cells


def _spread(spread: Spread, show: Callable[[float], str]) -> str:
    """`mean ± deviation`."""
    if spread.mean is None:
        return "n/a"
    deviation = "" if spread.sd is None else f" ± {show(spread.sd).removesuffix(' %')}"
    return show(spread.mean) + deviation


def _lead_cells(row: Lead) -> list[str]:
    return [percent(row.load), row.of, *lead(row)]


def lead(row: Lead) -> tuple[str, str, str]:
    """The difference, the same relative to the other, and its interval, such as `+1.2 to +3.4 %`."""
    middle, half = row.relative, row.relative_half_width
    difference = f"{row.goodput_rps:+.4g}"
    if middle is None:
        return difference, "n/a", "n/a"
    interval = "one run" if half is None else f"{_percents(middle - half)} to {_percents(middle + half)} %"
    return difference, f"{_percents(middle)} %", interval


def _percents(share: float) -> str:
    """With its sign, to three digits: `+1.23`, `+2,090`."""
    return f"{float(f'{share * 100:.3g}'):+,.15g}"


def render_routings(report: RoutingsReport) -> str:
    """One self-contained page: goodput, attainment per class and shed share over the load."""
    ahead = ""
    if report.ahead:
        beside = escape(f"Goodput of {report.ahead[0].routing} beside the others")
        ahead = f"<h2>{beside}</h2>\n{figures(LEAD_HEAD, map(_lead_cells, report.ahead))}"
    return page(
        title=f"routings on {report.trace.name}, fleet {report.fleet}",
        subtitle=f"Profile {report.profile}; {plural(report.seeds, 'run')} of each. "
        "Bars are standard deviations. Goodput is what met its SLOs, per second of the trace. "
        "100 % load is what the fleet does at best under the targets (fluid bound).",
        body="\n".join(
            (
                charts(_draw(report)),
                "<h2>Figures</h2>",
                figures(_head(report), map(_cells, report.rows)),
                ahead,
                notes(report.notes),
            )
        ),
    )


def _cells(row: RoutingRow) -> list[str]:
    shares = [row.attainment, *(each.attainment for each in row.classes.values()), row.shed_share]
    return [
        percent(row.load),
        row.routing,
        f"{row.goodput_rps.mean:.4g}",
        *(percent(share.mean) for share in shares),
    ]


def _panels(rows: Sequence[RoutingRow]) -> list[tuple[str, float, list[Spread]]]:
    """Title, factor, and one spread for each row of the report."""
    attained = {
        f"Attainment of {name}, %": [row.classes[name].attainment for row in rows] for name in rows[0].classes
    }
    shares = attained or {"Attainment, %": [row.attainment for row in rows]}
    shares["Shed, %"] = [row.shed_share for row in rows]
    goodput = ("Goodput, requests/s", 1.0, [row.goodput_rps for row in rows])
    return [goodput, *((title, 100.0, spreads) for title, spreads in shares.items())]


def _draw(report: RoutingsReport) -> Any:  # noqa: ANN401 - a plotly figure
    from plotly.subplots import make_subplots

    panels = _panels(report.rows)
    routings = list(dict.fromkeys(row.routing for row in report.rows))
    figure = make_subplots(
        rows=len(panels), cols=1, shared_xaxes=True, subplot_titles=[title for title, _, _ in panels],
        vertical_spacing=0.28 / len(panels),
    )  # fmt: skip
    for number, (_, factor, spreads) in enumerate(panels, start=1):
        for place, routing in enumerate(routings):
            points = [
                (row.load, each)
                for row, each in zip(report.rows, spreads, strict=True)
                if row.routing == routing
            ]
            figure.add_scatter(
                x=[100.0 * load for load, _ in points],
                y=[None if each.mean is None else factor * each.mean for _, each in points],
                error_y={"type": "data", "array": [factor * (each.sd or 0.0) for _, each in points]},
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
