"""What `charts.js` draws, as data: figures of panels of series. A figure goes into its page as JSON.

Figures hold text as it is: the script sets it as text, never as markup. Numbers are rounded to seven digits.
"""

from collections.abc import Iterable, Sequence
from json import dumps
from math import isfinite
from typing import Any, Literal, Required, TypedDict

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
    """How a series looks and what is told of it.

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
    """Series over two axes, or three. `nearest`: a pointer tells of one point, not of all lines there."""

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
