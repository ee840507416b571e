"""Charts as data for `charts.js`: figures of panels of series. A figure goes into its page as JSON.

Figures hold text as it is: the script sets it as text, never as markup. Numbers are rounded to seven digits.
Colours are the Okabe-Ito palette, which colour-blind people can tell apart.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime
from json import dumps
from math import isfinite
from typing import Any, Literal, Required, TypedDict, Unpack

import numpy as np

from headway.words import percent
from headway_cli.page.series import Floats, TimeUnit, time_unit

Numbers = Sequence[float | None]
"""Values; None leaves a gap."""


class Axis(TypedDict, total=False):
    """One axis. Where `low` is above `high` it runs downwards; both come from the data where they are absent.

    `unit` follows the place in a cursor's box; `share` marks values in [0, 1] that are written in
    percent; `whole` has no ticks between whole numbers. An axis of scale `time` has seconds after `origin_s`,
    and one of scale `names` has 0, 1, ... for its `names`.
    """

    title: str
    scale: Literal["linear", "log", "time", "names"]
    low: float
    high: float
    ticks: Sequence[tuple[float, str]]
    names: Sequence[str]
    unit: str
    share: bool
    whole: bool
    origin_s: float


class Style(TypedDict, total=False):
    """How a series looks, and its texts.

    It is a line, a band (between `base` and y), a row of points (`symbol`) or of `bars`. Series of one
    `group` are hidden together and stand in the figure's legend, others in their panel's, unless `unlisted`.
    `told` has the words for values, `hover` a whole text for each point, `labels` what stands beside them,
    `spread` how far whiskers reach. The cursor's box leaves out what is `quiet`.
    """

    colour: str
    group: str
    line: Literal["solid", "dash", "dot", "dashdot", "none"]
    step: bool
    width: float
    opacity: float
    base: Numbers
    bars: bool
    symbol: str | Sequence[str]
    size: float | Sequence[float]
    spread: Numbers
    told: Sequence[str]
    hover: Sequence[str]
    labels: Sequence[str]
    right: bool
    quiet: bool
    unlisted: bool


class Series(Style):
    """One line, band, row of points or row of bars: y over x."""

    name: str
    x: Numbers
    y: Numbers


class Panel(TypedDict, total=False):
    """Series over two axes, or three. `nearest`: the cursor shows one point, not all lines there."""

    title: Required[str]
    x: Required[Axis]
    y: Required[Axis]
    series: Required[list[Series]]
    right: Axis
    height: float
    nearest: bool


class Figure(TypedDict, total=False):
    """Panels from top to bottom, or in two columns where they are `wide`. `shared`: all have one x axis."""

    panels: Required[list[Panel]]
    shared: bool
    wide: bool


def drawn(figure: Figure) -> str:
    """The figure as JSON for the script: equal rows of places stand once, and no text ends the script."""
    columns: dict[tuple[Any, ...], int] = {}
    panels = []
    for panel in figure["panels"]:
        series = []
        for one in panel["series"]:
            places = columns.setdefault(tuple(_plain(one["x"])), len(columns))
            series.append({**{key: _plain(value) for key, value in one.items()}, "x": places})
        panels.append({**panel, "series": series})
    document = {**figure, "panels": panels, "columns": list(columns)}
    return dumps(document, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def plain(values: Iterable[float | None]) -> list[float | None]:
    """Python's numbers, None for what is not finite."""
    return [float(value) if value is not None and isfinite(value) else None for value in values]


def _plain(value: Any) -> Any:  # noqa: ANN401 - a series' value of any kind
    if isinstance(value, float):
        # Whole numbers without their point: half of a page is digits.
        short = float(f"{value:.7g}")
        return int(short) if short.is_integer() else short
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value


BLUE, ORANGE, GREEN, SKY, PURPLE, VERMILLION, GREY = (
    "#0072B2", "#E69F00", "#009E73", "#56B4E9", "#CC79A7", "#D55E00", "#8A8A8A",
)  # fmt: skip
COLOURS = (BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILLION)
ROLE_COLOURS = {"prefill": BLUE, "decode": ORANGE, "mixed": GREEN}
LOG_FROM = 8.0
"""A latency axis becomes logarithmic when its peak is this many times the target."""

LEAST_MISSED = 1e-4
ATTAINMENT_TICKS = {
    0.0: "0 %",
    0.5: "50 %",
    0.9: "90 %",
    0.95: "95 %",
    0.99: "99 %",
    0.999: "99.9 %",
    0.9999: "≥ 99.99 %",
}
WIDE_TICKS = (0.0, 0.9, 0.99, 0.999, 0.9999)
"""Those that have room where the axis goes down to 0."""

Shares = Iterable[float | None]


def colour(place: int) -> str:
    """The colour of one of several things, by its place among them."""
    return COLOURS[place % len(COLOURS)]


def missed(share: float) -> float:
    """What a share of attainment is on its axis: the share missed, at least 0.0001."""
    return max(LEAST_MISSED, 1.0 - share)


def attained(shares: Shares) -> tuple[list[float | None], list[str]]:
    """Values on an attainment axis, and their words."""
    known = [share if share is not None and isfinite(share) else None for share in shares]
    return [None if share is None else missed(share) for share in known], [percent(share) for share in known]


def attainment_axis(shares: Shares, title: str = "within SLO") -> Axis:
    """An axis of attainment down to the least of the shares: logarithmic in what is missed.

    So 99 and 99.9 % are as far apart as 90 and 99 %. It ends at 99.99 %, where higher values are drawn too.
    """
    late = [1.0 - share for share in shares if share is not None and isfinite(share)]
    low = min(1.0, 1.6 * max([10.0 * LEAST_MISSED, *late]))
    ticks = [share for share in ATTAINMENT_TICKS if low < 0.5 or share in WIDE_TICKS]
    return {
        "title": title,
        "scale": "log",
        "low": low,
        "high": 0.63 * LEAST_MISSED,
        "ticks": [(missed(share), ATTAINMENT_TICKS[share]) for share in ticks],
    }


class Board:
    """A figure under construction: panels from top to bottom over one span of time.

    Its time axis counts from the start, in seconds to days, or shows the clock if `began_at` is given
    (Unix seconds, in the time zone of this machine).
    """

    def __init__(self, span_s: float, titles: Iterable[str], *, began_at: float | None = None) -> None:
        self.unit = time_unit(span_s)
        self.span_s = span_s
        axis: Axis = {"low": 0.0, "high": span_s / self.unit.seconds, "unit": self.unit.name}
        if began_at is not None:
            self.unit = TimeUnit(name="", seconds=1.0)
            shift = datetime.fromtimestamp(began_at).astimezone().utcoffset()
            assert shift is not None
            axis = {"scale": "time", "origin_s": began_at + shift.total_seconds(), "low": 0.0, "high": span_s}
        self.panels = [Panel(title=title, x={**axis}, y={}, series=[]) for title in titles]
        if began_at is None:
            self.panels[-1]["x"]["title"] = f"time since the start ({self.unit.name})"

    @property
    def rows(self) -> int:
        """The number of panels."""
        return len(self.panels)

    def line(self, row: int, name: str, x_s: Floats, y: Floats, style: Style) -> None:
        """A series in a panel, the first being 1; NaN leaves a gap."""
        times = plain(x_s / self.unit.seconds)
        series: Series = {"name": name, "x": times, "y": plain(y), **style}
        self.panels[row - 1]["series"].append(series)

    def share(self, row: int, name: str, x_s: Floats, shares: Floats, style: Style) -> None:
        """A line of attainment, on a panel that has an `attainment_target`."""
        values, words = attained(shares)
        self.line(row, name, x_s, np.array(values, np.float64), {"told": words, **style})

    def target(self, row: int, name: str, value: float) -> None:
        """A horizontal line at a target."""
        ends = np.array([0.0, self.span_s])
        style: Style = {"colour": VERMILLION, "line": "dash", "width": 1.5, "quiet": True}
        self.line(row, name, ends, np.array([value, value]), style)

    def latency_target(self, row: int, target_s: float, latencies_s: Iterable[Floats]) -> None:
        """A panel of latencies in milliseconds, logarithmic where the highest is far above the target."""
        self.target(row, f"target {target_s * 1e3:g} ms", target_s * 1e3)
        peak_s = max((float(np.nanmax(each, initial=0.0)) for each in latencies_s), default=0.0)
        if peak_s > LOG_FROM * target_s:
            self.axis(row, title="ms (log)", scale="log")
        else:
            self.axis(row, title="ms")

    def attainment_target(self, row: int, share: float, shares: Shares) -> None:
        """A panel of attainment, and its target; `shares` are all that it shows."""
        self.axis(row, **attainment_axis([*shares, share]))
        self.target(row, f"target {percent(share)}", missed(share))

    def axis(self, row: int, **axis: Unpack[Axis]) -> None:
        """A panel's left axis."""
        self.panels[row - 1]["y"] = axis

    def right(self, row: int, **axis: Unpack[Axis]) -> None:
        """A panel's right axis, for the series with `right`."""
        self.panels[row - 1]["right"] = axis

    def finish(self) -> Figure:
        """The figure."""
        return {"panels": self.panels, "shared": True}
