"""The charts: panels over one time axis, in the Okabe-Ito palette, which colour-blind people can tell apart.

Colours of text and grid are left to the page's style sheet, so that the charts follow light and dark.
"""

from collections.abc import Mapping
from html import escape
from typing import Any

import numpy as np

from headway.simulation.report import SimulationReport
from headway_cli.page.reasons import DecisionText
from headway_cli.page.series import (
    Floats,
    IntervalColumns,
    PoolColumns,
    TimeUnit,
    gpu_hours,
    interval_columns,
    pool_columns,
    time_unit,
)

BLUE, ORANGE, GREEN, SKY, PURPLE, VERMILLION, GREY = (
    "#0072B2", "#E69F00", "#009E73", "#56B4E9", "#CC79A7", "#D55E00", "#8A8A8A",
)  # fmt: skip
ROLE_COLOURS = {"prefill": BLUE, "decode": ORANGE, "mixed": GREEN}
LINE_STYLES: Mapping[str, dict[str, Any]] = {
    "mean": {"color": GREY, "width": 1.5, "dash": "dot"},
    "p50": {"color": SKY, "width": 2},
    "p95": {"color": ORANGE, "width": 2},
    "p99": {"color": PURPLE, "width": 2},
}
FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif'
LAYOUT: Mapping[str, Any] = {
    "template": "none",
    "paper_bgcolor": "rgba(0,0,0,0)",
    "plot_bgcolor": "rgba(0,0,0,0)",
    "font": {"family": FONT, "size": 12},
    "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": GREY, "activecolor": BLUE},
    "hoverlabel": {"align": "left", "bgcolor": "#1d2733", "font": {"color": "#ffffff", "size": 12}},
}
"""Layout of the charts of all pages."""

RIGHT_EDGE = 0.94
PANEL_PX = 215
MARGINS_PX = 110
MOST_TICKS = 8
MANY_DECISIONS = 120
LOG_FROM = 8.0
"""A latency axis becomes logarithmic when its peak is this many times the target."""


class Board:
    """A figure under construction: panels from top to bottom, each with its own legend."""

    def __init__(self, simulated_s: float, titles: tuple[str, ...]) -> None:
        from plotly.subplots import make_subplots

        self.unit: TimeUnit = time_unit(simulated_s)
        self.simulated_s = simulated_s
        self.rows = len(titles)
        self.gap = 0.32 / self.rows
        self.figure = make_subplots(
            rows=self.rows,
            cols=1,
            shared_xaxes=True,
            vertical_spacing=self.gap,
            specs=[[{"secondary_y": True}] for _ in titles],
        )
        self._titles = titles

    def time(self, seconds: Floats) -> list[float]:
        """Seconds in the unit of the axis, as plain numbers."""
        return [float(value) for value in seconds / self.unit.seconds]

    def line(self, row: int, name: str, x_s: Floats, y: Floats, **style: Any) -> None:  # noqa: ANN401
        """A line; NaN leaves a gap. `secondary=True` puts it on the right axis."""
        secondary = style.pop("secondary", False)
        plain = [float(value) if np.isfinite(value) else None for value in y]
        options = {"mode": "lines", "hovertemplate": f"%{{y:.4g}}<extra>{escape(name)}</extra>", **style}
        trace = {"type": "scatter", "name": name, "x": self.time(x_s), "y": plain, **options}
        self.figure.add_trace({**trace, "legend": self._legend(row)}, row=row, col=1, secondary_y=secondary)

    def target(self, row: int, name: str, value: float) -> None:
        """A horizontal line at a target."""
        style = {"line": {"color": VERMILLION, "width": 1.5, "dash": "dash"}}
        self.line(row, name, np.array([0.0, self.simulated_s]), np.array([value, value]), **style)

    def axis(self, row: int, title: str, **style: Any) -> None:  # noqa: ANN401 - as plotly has it
        """The title of a panel's left axis, and what else is particular to it."""
        self.figure.update_yaxes(title_text=title, row=row, col=1, secondary_y=False, **style)

    def finish(self) -> Any:  # noqa: ANN401 - a plotly figure
        """The figure with its layout."""
        axis = {"showline": False, "zeroline": False, "gridwidth": 1, "automargin": True}
        self.figure.update_xaxes(range=[0.0, self.simulated_s / self.unit.seconds], **axis)
        self.figure.update_xaxes(title_text=f"time since the start ({self.unit.name})", row=self.rows, col=1)
        self.figure.update_yaxes(rangemode="tozero", **axis)
        self.figure.update_yaxes(secondary_y=True, showgrid=False, tickmode="auto", nticks=5)
        legend: dict[str, Any] = {"orientation": "h", "bgcolor": "rgba(0,0,0,0)", "font": {"size": 11}}
        legend |= {"x": RIGHT_EDGE, "xanchor": "right", "y": 1.0, "yanchor": "bottom"}
        self.figure.update_layout(
            **LAYOUT,
            height=self.rows * PANEL_PX + MARGINS_PX,
            margin={"l": 64, "r": 56, "t": 52, "b": 56},
            hovermode="closest",
            showlegend=True,
            **{self._legend(row): legend | {"y": self._top(row)} for row in range(1, self.rows + 1)},
        )
        place = {"xref": "paper", "yref": "paper", "xanchor": "left", "yanchor": "bottom", "yshift": 20}
        for row, title in enumerate(self._titles, start=1):
            text, top = f"<b>{escape(title)}</b>", self._top(row)
            self.figure.add_annotation(text=text, x=0.0, y=top, **place, showarrow=False, font={"size": 14})
        return self.figure

    def _legend(self, row: int) -> str:
        return "legend" if row == 1 else f"legend{row}"

    def _top(self, row: int) -> float:
        height = (1.0 - self.gap * (self.rows - 1)) / self.rows
        return 1.0 - (row - 1) * (height + self.gap)


def draw(report: SimulationReport, decisions: list[DecisionText]) -> Any:  # noqa: ANN401 - a plotly figure
    """All panels of one result."""
    roles = tuple(report.replicas)
    latency_titles = ("Time to first token", "Time between tokens")
    pool_titles = tuple(f"Replicas: {role}" for role in roles)
    board = Board(report.simulated_s, ("Load", *pool_titles, *latency_titles, "Attainment and cost"))
    columns = interval_columns(report.intervals)
    _draw_load(board, columns)
    for row, role in enumerate(roles, start=2):
        _draw_pool(board, row, role, pool_columns(report.replicas[role], report.simulated_s))
        _draw_decisions(board, row, role, decisions)
    for row, key in enumerate(("ttft_s", "itl_s"), start=2 + len(roles)):
        _draw_latency(board, row, columns.latencies[key], columns.middle_s, getattr(report.slo, key))
    _draw_outcome(board, report, columns)
    return board.finish()


def _draw_load(board: Board, columns: IntervalColumns) -> None:
    measured, forecast = _steps(columns, columns.load_rps), _steps(columns, columns.forecast_rps, shift=True)
    board.line(1, "arrivals", *measured, line={"color": BLUE, "width": 2, "shape": "hv"})
    if np.isfinite(columns.forecast).any():
        style = {"color": VERMILLION, "width": 1.5, "dash": "dot", "shape": "hv"}
        board.line(1, "forecast", *forecast, line=style)
    board.axis(1, "requests/s")


def _steps(columns: IntervalColumns, values: Floats, *, shift: bool = False) -> tuple[Floats, Floats]:
    """A step line over the intervals, or over those that follow them."""
    if len(values) == 0:
        return np.zeros(0), np.zeros(0)
    edges = columns.end_s if shift else columns.start_s
    last = columns.end_s[-1] + (columns.end_s[-1] - columns.start_s[-1] if shift else 0.0)
    return np.append(edges, last), np.append(values, values[-1])


def _draw_pool(board: Board, row: int, role: str, pool: PoolColumns) -> None:
    colour = ROLE_COLOURS.get(role, GREEN)
    thin = {"width": 0, "color": colour, "shape": "hv"}
    board.line(row, "ready", pool.time_s, pool.ready, line={"color": colour, "width": 2.5, "shape": "hv"})
    band = {"line": thin, "fill": "tonexty", "hoverinfo": "skip", "hovertemplate": None}
    up = pool.ready + pool.starting
    board.line(row, "starting", pool.time_s, up, fillcolor=_faded(colour), **band)
    board.line(row, "draining", pool.time_s, pool.up, fillcolor=_faded(GREY), **band)
    dotted = {"color": GREY, "width": 1.5, "dash": "dash", "shape": "hv"}
    board.line(row, "desired", pool.time_s, pool.desired, line=dotted)
    board.axis(row, "replicas", **({"dtick": 1} if pool.up.max() <= MOST_TICKS else {}))


def _draw_decisions(board: Board, row: int, role: str, decisions: list[DecisionText]) -> None:
    label = f"<b>%{{x:.4g}} {board.unit.name}: {escape(role)} %{{y}}</b><br>%{{text}}<extra></extra>"
    here = [decision for decision in decisions if role in decision.targets]
    changed = [role in decision.changed for decision in here]
    large, small = (10, 6) if len(here) <= MANY_DECISIONS else (7, 3)
    style = {
        "mode": "markers",
        "marker": {
            "symbol": ["diamond" if moved else "circle-open" for moved in changed],
            "size": [large if moved else small for moved in changed],
            "color": ROLE_COLOURS.get(role, GREEN),
            "line": {"width": 1, "color": GREY},
        },
        "text": [decision.hover for decision in here],
        "hovertemplate": label,
    }
    times = np.array([decision.at_s for decision in here])
    targets = np.array([decision.targets[role] for decision in here], np.float64)
    board.line(row, "decision", times, targets, **style)


def _draw_latency(
    board: Board, row: int, lines: Mapping[str, Floats], middle_s: Floats, target_s: float
) -> None:
    for name, style in LINE_STYLES.items():
        board.line(row, name, middle_s, lines[name] * 1e3, line=style)
    board.target(row, f"target {target_s * 1e3:g} ms", target_s * 1e3)
    if np.nanmax(lines["p99"], initial=0.0) > LOG_FROM * target_s:
        board.axis(row, "ms (log)", type="log", dtick=1)
    else:
        board.axis(row, "ms")


def _draw_outcome(board: Board, report: SimulationReport, columns: IntervalColumns) -> None:
    row = board.rows
    attained = _steps(columns, columns.attainment * 100)
    board.line(row, "attainment", *attained, line={"color": GREEN, "width": 2, "shape": "hv"})
    aim = report.slo.attainment
    board.target(row, f"aim {aim * 100:g} %", aim * 100)
    style = {"color": BLUE, "width": 2, "dash": "dashdot"}
    board.line(row, "GPU-hours so far", *gpu_hours(report), line=style, secondary=True)
    board.axis(row, "% within SLO", range=[0, 104])
    board.figure.update_yaxes(title_text="GPU-hours", row=row, col=1, secondary_y=True, rangemode="tozero")


def _faded(colour: str) -> str:
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.3)"
