"""A comparison of routings as tables and as an HTML page: figures with their spread, and who is ahead."""

from collections.abc import Callable, Iterator, Sequence

from rich.console import Console
from rich.text import Text

from headway.words import milliseconds, percent, plural, targets
from headway_cli.compare_routings import Lead, RoutingRow, RoutingsReport, Spread
from headway_cli.page.charts import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    SKY,
    VERMILLION,
    Axis,
    Figure,
    Panel,
    Series,
    attained,
    attainment_axis,
)
from headway_cli.page.template import charts, figures, heading, notes, page
from headway_cli.result_view import TPOT_IS
from headway_cli.terminal import bold, print_notes, table

COLOURS = (GREY, SKY, ORANGE, PURPLE, BLUE, VERMILLION, GREEN)
PANEL_PX = 230
LEAD_HEAD = ("load", "of", "goodput/s", "relative", "95 % interval")


def print_routings(report: RoutingsReport, out: Console) -> None:
    """The whole comparison."""
    out.print(bold(f"{report.trace.name}, fleet {report.fleet}, profile {report.profile}"))
    out.print(
        Text(
            f"{targets(report.slo.ttft_s, report.slo.itl_s)} where a class names none; "
            f"{plural(report.seeds, 'seed')}, mean ± standard deviation; 100 % load is what the fleet "
            "does at best: all its GPUs busy at their best throughput within the targets (fluid bound)"
        )
    )
    out.print(table(_head(report, "TTFT p90 ms"), _rows(report), names=2))
    out.print(bold("TTFT p99 of the requests that met their SLOs, in ms, and prefix hits of all"))
    out.print(table(["load", "routing", "all", *report.rows[0].classes, "hits"], _tails(report), names=2))
    if report.ahead:
        out.print(bold(_ahead(report)))
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


def _tails(report: RoutingsReport) -> Iterator[list[str]]:
    """The same rows once more; a first table with all would not fit a terminal."""
    for row in report.rows:
        tails = (row.ttft_met_p99_s, *(each.ttft_met_p99_s for each in row.classes.values()))
        hits = _spread(row.prefix_hit_rate, lambda value: f"{value * 100:.1f} %")
        yield [percent(row.load), row.routing, *(_spread(tail, milliseconds) for tail in tails), hits]


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
    ahead = [heading(_ahead(report)), figures(LEAD_HEAD, map(_lead_cells, report.ahead))]
    body = (
        charts(_draw(report)),
        heading("Figures"),
        figures(_head(report), map(_cells, report.rows)),
        *(ahead if report.ahead else ()),
        notes(report.notes),
    )
    return page(
        *body,
        title=f"Routings on {report.trace.name}, fleet {report.fleet}",
        subtitle=f"Profile {report.profile}; {plural(report.seeds, 'run')} of each. "
        "Bars are standard deviations. Goodput is what met its SLOs, per second of the trace. "
        "100 % load is what the fleet does at best: all its GPUs busy at their best throughput within the "
        f"targets (fluid bound). {TPOT_IS}",
    )


def _ahead(report: RoutingsReport) -> str:
    return f"Goodput of {report.ahead[0].routing} beside the others" if report.ahead else ""


def _cells(row: RoutingRow) -> list[str]:
    shares = [row.attainment, *(each.attainment for each in row.classes.values()), row.shed_share]
    return [
        percent(row.load),
        row.routing,
        "n/a" if row.goodput_rps.mean is None else f"{row.goodput_rps.mean:.4g}",
        *(percent(share.mean) for share in shares),
    ]


def _panels(rows: Sequence[RoutingRow]) -> Iterator[tuple[str, Axis, list[Spread]]]:
    """Title, axis, and one spread for each row of the report."""
    yield "Goodput", {"title": "requests/s"}, [row.goodput_rps for row in rows]
    kept = {
        f"Attainment of {name}": [row.classes[name].attainment for row in rows] for name in rows[0].classes
    }
    for title, spreads in (kept or {"Attainment": [row.attainment for row in rows]}).items():
        yield title, attainment_axis(each.mean for each in spreads), spreads
    yield "Turned away (shed)", {"title": "of all requests", "share": True}, [row.shed_share for row in rows]


def _draw(report: RoutingsReport) -> Figure:
    loads = sorted({row.load for row in report.rows})
    room = 0.03 * (loads[-1] - loads[0]) or 0.1
    x: Axis = {"share": True, "low": loads[0] - room, "high": loads[-1] + room, "unit": "load"}
    panels: list[Panel] = []
    for title, y, spreads in _panels(report.rows):
        lines = list(_lines(report.rows, spreads, is_kept="ticks" in y))
        panels.append({"title": title, "x": {**x}, "y": y, "series": lines, "height": PANEL_PX})
    panels[-1]["x"]["title"] = "load, in percent of the fluid bound"
    return {"panels": panels, "shared": True}


def _lines(rows: Sequence[RoutingRow], spreads: Sequence[Spread], *, is_kept: bool) -> Iterator[Series]:
    """One line for each routing; attainment is drawn as what is missed."""
    for place, routing in enumerate(dict.fromkeys(row.routing for row in rows)):
        found = [(row.load, one) for row, one in zip(rows, spreads, strict=True) if row.routing == routing]
        line: Series = {
            "name": routing,
            "group": routing,
            "colour": COLOURS[place % len(COLOURS)],
            "symbol": "circle",
            "x": [load for load, _ in found],
            "y": [one.mean for _, one in found],
            "spread": [one.sd for _, one in found],
        }
        if is_kept:
            line["y"], _ = attained(one.mean for _, one in found)
            line["told"] = [_spread(one, percent) for _, one in found]
        yield line
