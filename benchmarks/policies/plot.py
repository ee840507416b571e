"""The Pareto plot: cost over attainment, one panel a trace and a line a policy, as SVG.

Of each cell and attainment the cheapest run known that reaches it counts, relative to the best static fleet;
a panel shows the geometric mean over the cells of its trace, where a policy reaches the attainment in all of
them. The axis of attainment is logarithmic in what is missed. Colours are of the Okabe-Ito palette.
"""

from collections.abc import Iterator, Sequence
from html import escape
from math import exp, log, log10
from statistics import fmean

from benchmarks.policies.cells import Cell
from benchmarks.policies.results import Results
from benchmarks.policies.summary import families, frontier
from headway_cli.page.charts import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, VERMILLION

COLOURS = {
    "headway": BLUE,
    "reference": VERMILLION,
    "threshold": ORANGE,
    "slo-ratio": PURPLE,
    "clairvoyant": GREEN,
}
LEVELS = (0.8, 0.9, 0.95, 0.97, 0.98, 0.985, 0.99, 0.995, 0.998)
TICKS = (0.8, 0.9, 0.95, 0.98, 0.99, 0.998)
WIDTH, HEIGHT, COLUMNS = 320, 240, 3
LEFT, RIGHT, TOP, BOTTOM = 44, 22, 28, 34
LEGEND = 30
LEAST, MOST = 0.5, 4.0
"""Costs relative to the static fleet that a panel covers, logarithmic; what lies beyond is at the edge."""
COST_TICKS = (0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0)

Point = tuple[float, float]


def pareto_svg(results: Results) -> str:
    """All panels."""
    traces = list(dict.fromkeys(cell.base.trace for cell in results.cells))
    rows = -(-len(traces) // COLUMNS)
    width, height = COLUMNS * WIDTH, rows * HEIGHT + LEGEND
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif"'
        ' font-size="11">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        *_legend(families(results)),
    ]
    for place, trace in enumerate(traces):
        left, top = place % COLUMNS * WIDTH, LEGEND + place // COLUMNS * HEIGHT
        parts.append(f'<g transform="translate({left},{top})">')
        parts += _axes(trace)
        for family in families(results):
            parts += _line(curve(results, family, trace), COLOURS.get(family, SKY))
        parts.append("</g>")
    return "\n".join([*parts, "</svg>\n"])


def curve(results: Results, family: str, trace: str) -> list[Point]:
    """Attainment and relative cost of a family on a trace."""
    costs = [
        [each / static.gpu_hours if each else None for each in _frontier(results, family, cell)]
        for cell in results.cells
        if cell.base.trace == trace and (static := results.facts[cell.base].static_figures)
    ]
    points = []
    for level, at_level in zip(LEVELS, zip(*costs, strict=True), strict=False):
        known = [cost for cost in at_level if cost is not None]
        if len(known) == len(at_level):
            points.append((level, exp(fmean(log(cost) for cost in known))))
    return points


def _frontier(results: Results, family: str, cell: Cell) -> Sequence[float | None]:
    names = [each.name for each in results.contenders if each.family == family and each.each]
    return frontier(
        [pair for name in names for pair in results.books[name, cell].runs.items()],
        LEVELS,
    )


def x_of(attainment: float) -> float:
    """Pixels from the panel's left edge."""
    share = log10((1.0 - LEVELS[0]) / (1.0 - attainment)) / log10((1.0 - LEVELS[0]) / (1.0 - LEVELS[-1]))
    return LEFT + share * (WIDTH - LEFT - RIGHT)


def y_of(cost: float) -> float:
    """Pixels from the panel's top."""
    share = log10(min(MOST, max(LEAST, cost)) / LEAST) / log10(MOST / LEAST)
    return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)


def _line(points: Sequence[Point], colour: str) -> Iterator[str]:
    places = [(x_of(attainment), y_of(cost)) for attainment, cost in points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    yield f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'
    for x, y in places:
        yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{colour}"/>'


def _axes(trace: str) -> Iterator[str]:
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    yield f'<text x="{LEFT}" y="{TOP - 10}" font-weight="bold">{escape(trace)}</text>'
    for cost in COST_TICKS:
        y = y_of(cost)
        stroke = GREY if cost == 1.0 else "#e4e4e4"
        yield f'<line x1="{LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}" stroke="{stroke}"/>'
        yield f'<text x="{LEFT - 5}" y="{y + 4:.1f}" text-anchor="end">{cost:g}</text>'
    for attainment in TICKS:
        x = x_of(attainment)
        yield f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{bottom}" stroke="#e4e4e4"/>'
        yield f'<text x="{x:.1f}" y="{bottom + 14}" text-anchor="middle">{100 * attainment:g} %</text>'
    middle = (LEFT + right) / 2
    yield f'<text x="{middle:.1f}" y="{HEIGHT - 5}" text-anchor="middle">of the attainable met</text>'


def _legend(names: Sequence[str]) -> Iterator[str]:
    yield f'<text x="{LEFT}" y="18">GPU-hours × the best static fleet:</text>'
    for place, name in enumerate(names):
        x = LEFT + 210 + 110 * place
        colour = COLOURS.get(name, SKY)
        yield f'<line x1="{x}" y1="14" x2="{x + 18}" y2="14" stroke="{colour}" stroke-width="3"/>'
        yield f'<text x="{x + 23}" y="18">{escape(name)}</text>'
