"""The plot of `mismatch`: attainment and GPU-hours over the engines' speed, as SVG.

Both phases run at the same multiple of the profile's speed. A line is the mean over the cells that are there
of attainment, the geometric mean of GPU-hours over those of the same policy given the true profile; what lies
beyond an axis is at its end. Colours are of the Okabe-Ito palette.
"""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from math import exp, log
from statistics import fmean
from typing import Any

from headway_cli.page.charts import BLUE, GREEN, GREY, ORANGE, VERMILLION

WAYS = {"truth": GREEN, "corrected": BLUE, "believed": ORANGE, "reference": VERMILLION}
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM, LEGEND = 360, 220, 48, 16, 28, 36, 30
SPEEDS = (0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5)
SHARES, COSTS = (0.0, 0.25, 0.5, 0.75, 0.99), (0.4, 0.7, 1.0, 1.3, 1.6, 1.9)

Found = Mapping[tuple[str, float], Sequence[Mapping[str, Any]]]
"""Results of the cells, by pools and speed."""


def mismatch_svg(found: Found) -> str:
    """A column for each kind of pool: attainment above, GPU-hours below."""
    kinds = list(dict.fromkeys(pools for pools, _ in found))
    width, height = len(kinds) * WIDTH, 2 * HEIGHT + LEGEND
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif"'
        ' font-size="11">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        *_legend(),
    ]
    for place, pools in enumerate(kinds):
        for row, (title, ticks, value) in enumerate(
            (("of the attainable met", SHARES, _share), ("GPU-hours × planning by the truth", COSTS, _cost))
        ):
            parts.append(f'<g transform="translate({place * WIDTH},{LEGEND + row * HEIGHT})">')
            parts += _axes(f"{pools} pools: {title}", ticks)
            for way, colour in WAYS.items():
                points = [
                    (speed, value(of, way))
                    for speed in SPEEDS
                    if (of := found.get((pools, speed))) and all(way in each for each in of)
                ]
                parts += _line(points, (ticks[0], ticks[-1]), colour)
            parts.append("</g>")
    return "\n".join([*parts, "</svg>\n"])


def _share(cells: Sequence[Mapping[str, Any]], way: str) -> float:
    return fmean(each[way]["met"] / max(1, each["attainable"]) for each in cells)


def _cost(cells: Sequence[Mapping[str, Any]], way: str) -> float:
    return exp(fmean(log(each[way]["gpu_hours"] / each["truth"]["gpu_hours"]) for each in cells))


def _x(speed: float) -> float:
    share = log(speed / SPEEDS[0]) / log(SPEEDS[-1] / SPEEDS[0])
    return LEFT + share * (WIDTH - LEFT - RIGHT)


def _y(value: float, ends: tuple[float, float]) -> float:
    share = (min(ends[1], max(ends[0], value)) - ends[0]) / (ends[1] - ends[0])
    return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)


def _line(points: Sequence[tuple[float, float]], ends: tuple[float, float], colour: str) -> Iterator[str]:
    places = [(_x(speed), _y(value, ends)) for speed, value in points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    yield f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'
    for x, y in places:
        yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{colour}"/>'


def _axes(title: str, ticks: Sequence[float]) -> Iterator[str]:
    ends, bottom, right = (ticks[0], ticks[-1]), HEIGHT - BOTTOM, WIDTH - RIGHT
    yield f'<text x="{LEFT}" y="{TOP - 10}" font-weight="bold">{escape(title)}</text>'
    for tick in ticks:
        y, label = _y(tick, ends), f"{tick:.0%}" if ticks is SHARES else f"{tick:g}"
        stroke = GREY if tick in {0.99, 1.0} else "#e4e4e4"
        yield f'<line x1="{LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}" stroke="{stroke}"/>'
        yield f'<text x="{LEFT - 5}" y="{y + 4:.1f}" text-anchor="end">{label}</text>'
    for speed in SPEEDS:
        x = _x(speed)
        yield f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{bottom}" stroke="#e4e4e4"/>'
        yield f'<text x="{x:.1f}" y="{bottom + 14}" text-anchor="middle">{speed:g}</text>'
    middle = (LEFT + right) / 2
    yield f'<text x="{middle:.1f}" y="{HEIGHT - 6}" text-anchor="middle">speed over the profile</text>'


def _legend() -> Iterator[str]:
    for place, (name, colour) in enumerate(WAYS.items()):
        x = LEFT + 110 * place
        yield f'<line x1="{x}" y1="14" x2="{x + 18}" y2="14" stroke="{colour}" stroke-width="3"/>'
        yield f'<text x="{x + 23}" y="18">{escape(name)}</text>'
