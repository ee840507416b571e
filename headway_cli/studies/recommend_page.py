"""The page of a recommendation: each candidate's cost with its attainment, and the chosen fleet over time."""

from collections.abc import Iterator
from html import escape
from typing import Any

import numpy as np

from headway.studies.recommend import Choice, Outcome, Row
from headway_cli.page.charts import BLUE, GREEN, GREY, LAYOUT, ORANGE, PURPLE, ROLE_COLOURS, SKY, VERMILLION
from headway_cli.page.series import interval_columns, pool_columns, time_unit
from headway_cli.page.template import charts, figures, named, notes, page
from headway_cli.studies.recommend_view import (
    POLICY,
    Recommendation,
    cells,
    nothing_found,
    problems,
    sentences,
)
from headway_cli.words import duration, percent, scaled, targets

ROW_PX = 46
PANEL_PX = 230
MARGINS_PX = 320
GAP_PX = 84
TEXT_ROOM = 1.45
"""The cost axis over its largest value: bars are followed by their figures."""
FIXED, FOLLOWED, BOUND = "least fixed fleet", f"policy {POLICY}", "at least (not simulated)"
MISSED = f"{FOLLOWED}, misses the aim"
COLOURS = {FIXED: SKY, FOLLOWED: BLUE, MISSED: ORANGE, BOUND: "#D9DFE5"}


def render(found: Recommendation) -> str:
    """The page; the same recommendation gives the same text."""
    trace, slo, choice = found.trace, found.slo, found.choice
    lines = {"Nothing": nothing_found(found)} if choice is None else sentences(found, choice)
    head = ("profile", "mode", "fixed", "attained", found.unit, POLICY, "attained", found.unit)
    rows = ([row.candidate.engine.name, label, *cells(row)] for label, row in found.ordered())
    body = (
        named(lines),
        charts(_draw(found)),
        "<h2>Candidates</h2>",
        figures(head, rows),
        notes(problems(found)),
    )
    return page(
        title=f"recommendation for {scaled(trace.name, trace.rate_scale)}",
        subtitle=f"{trace.requests:,} requests in {duration(trace.duration_s)}. "
        f"{targets(slo.ttft_s, slo.itl_s)}, aim {percent(slo.attainment)}. "
        "Every bar with a share is a simulation of the whole trace.",
        body="\n".join(body),
    )


def _draw(found: Recommendation) -> Any:  # noqa: ANN401 - a plotly figure
    from plotly.subplots import make_subplots

    bars = list(_bars(found))
    titles = [f"{found.unit.capitalize() if found.unit == 'cost' else found.unit} of each candidate"]
    if found.choice is not None:
        titles += ["The recommended fleet over time", "Attainment"]
    heights = [max(3, len(found.ordered())) * ROW_PX, *[PANEL_PX] * (len(titles) - 1)]
    total = sum(heights) + MARGINS_PX
    figure = make_subplots(
        rows=len(titles),
        cols=1,
        row_heights=heights,
        vertical_spacing=GAP_PX / total,
        subplot_titles=[f"<b>{title}</b>" for title in titles],
        specs=[[{"secondary_y": row == 1}] for row in range(len(titles))],
    )
    for trace in bars:
        figure.add_trace(trace, row=1, col=1)
    figure.update_yaxes(autorange="reversed", automargin=True, row=1, col=1, secondary_y=False)
    most = max((cost for trace in bars for cost in trace["x"]), default=1.0)
    figure.update_xaxes(range=[0.0, TEXT_ROOM * most], row=1, col=1)
    if found.choice is not None:
        _over_time(figure, found, found.choice)
    figure.update_xaxes(zeroline=False, automargin=True)
    figure.update_layout(
        **LAYOUT,
        height=total,
        margin={"l": 64, "r": 56, "t": 96, "b": 56},
        barmode="group",
        bargap=0.25,
        legend={
            "orientation": "h",
            "x": 0.5,
            "xanchor": "center",
            "y": 1.0 + 44 / total,
            "yanchor": "bottom",
        },
    )
    return figure


def _bars(found: Recommendation) -> Iterator[dict[str, Any]]:
    rows = found.ordered()
    for name, colour in COLOURS.items():
        points = [
            (f"{escape(row.candidate.engine.name)}<br>{label}", *point)
            for label, row in rows
            if (point := _point(row, name)) is not None
        ]
        if not points:
            continue
        labels, costs, texts = zip(*points, strict=True)
        yield {
            "type": "bar",
            "orientation": "h",
            "name": name,
            "x": costs,
            "y": labels,
            "text": texts,
            "textposition": "outside",
            "textfont": {"size": 11},
            "cliponaxis": False,
            "offsetgroup": FOLLOWED if name in (FOLLOWED, MISSED) else FIXED,
            "marker": {"color": colour},
            "hovertemplate": "%{y}: %{x:.4g}, %{text}<extra>" + escape(name) + "</extra>",
        }


def _point(row: Row, kind: str) -> tuple[float, str] | None:
    """Cost and words of one bar, if the row has it."""
    missed = row.followed is not None and row.followed.attainment < row.aim
    outcome = {FIXED: row.fixed, MISSED if missed else FOLLOWED: row.followed}.get(kind)
    if outcome is not None:
        return row.cost(outcome), f"{percent(outcome.attainment)}, {_fleet(outcome)}"
    if kind == BOUND and row.problem is None and row.fixed is None:
        return row.bound, f"≥ {row.bound:.4g}"
    return None


def _fleet(outcome: Outcome) -> str:
    return " + ".join(f"{count} {role}" for role, count in outcome.fleet.items())


def _over_time(figure: Any, found: Recommendation, choice: Choice) -> None:  # noqa: ANN401 - a plotly figure
    report = choice.outcome.report
    unit, columns = time_unit(report.simulated_s), interval_columns(report.intervals)

    def line(row: int, name: str, x_s: Any, y: Any, colour: str, **more: Any) -> None:  # noqa: ANN401
        style = {"color": colour, "width": 2, "shape": "hv"}
        plain = [float(value) if np.isfinite(value) else None for value in y]
        times = [float(value) / unit.seconds for value in x_s]
        secondary = more.pop("secondary", None)
        trace = {
            "type": "scatter",
            "mode": "lines",
            "name": name,
            "x": times,
            "y": plain,
            "line": style | more,
        }
        figure.add_trace(trace, row=row, col=1, secondary_y=secondary)

    for role, series in report.replicas.items():
        pool = pool_columns(series, report.simulated_s)
        line(2, f"{role} replicas", pool.time_s, pool.ready, ROLE_COLOURS.get(role, GREEN), secondary=False)
    line(2, "requests/s", columns.start_s, columns.load_rps, GREY, dash="dot", secondary=True)
    line(3, "attainment", columns.start_s, columns.attainment * 100.0, PURPLE)
    ends = np.array([0.0, report.simulated_s])
    aim = f"aim {percent(found.slo.attainment)}"
    line(3, aim, ends, np.full(2, found.slo.attainment * 100.0), VERMILLION, dash="dash")
    figure.update_yaxes(title_text="replicas ready", rangemode="tozero", row=2, col=1, secondary_y=False)
    figure.update_yaxes(
        title_text="requests/s", rangemode="tozero", showgrid=False, row=2, col=1, secondary_y=True
    )
    figure.update_yaxes(title_text="% of requests", row=3, col=1)
    span = [0.0, report.simulated_s / unit.seconds]
    for row in (2, 3):
        figure.update_xaxes(range=span, row=row, col=1)
    figure.update_xaxes(title_text=f"time since the start ({unit.name})", row=3, col=1)
