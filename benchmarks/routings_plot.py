"""Goodput over load as an SVG: a panel for each cell, a line for each routing, the first one emphasised."""

from collections.abc import Iterator, Sequence
from math import ceil, floor, log10

from benchmarks.routings_table import Row

COLOURS = ("#0072B2", "#E69F00", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#000000", "#8A8A8A", "#8C564B")
DASHES = ("none", "none", "6 3", "none", "6 3", "2 2", "2 2", "6 3", "2 2")
"""By routing: those that lie on one another still show."""
LEFT, TOP, WIDTH, HEIGHT, GAP = 52, 76, 340, 230, 54


def plot(rows: Sequence[Row], titles: Sequence[str]) -> str:
    """The picture; `titles` are those of the cells, in the order in which they come."""
    cells, routings = (
        list(dict.fromkeys(each)) for each in zip(*((r.cell, r.routing) for r in rows), strict=True)
    )
    most = max(row.goodput_rps for row in rows)
    scale = _round_step(most / 5), max(1, ceil(most / _round_step(most / 5)))
    parts = list(_legend(routings))
    for place, (cell, title) in enumerate(zip(cells, titles, strict=True)):
        parts += _panel(
            [row for row in rows if row.cell == cell], title, LEFT + place * (WIDTH + GAP), *scale
        )
    width, height = LEFT + len(cells) * (WIDTH + GAP), TOP + HEIGHT + 46
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif"'
    axis = f'<text transform="translate(14 {TOP + HEIGHT / 2:g}) rotate(-90)" text-anchor="middle">'
    parts.append(f"{axis}goodput (requests/s within their SLO)</text>")
    ground = f'<rect width="{width}" height="{height}" fill="#ffffff"/>'
    return "\n".join([f'{head} font-size="11">', ground, *parts, "</svg>\n"])


def _legend(routings: Sequence[str]) -> Iterator[str]:
    x = LEFT
    for place, name in enumerate(routings):
        weight = "normal" if place else "bold"
        yield f'<path d="M{x} 20h20" {_stroke(place)}/>'
        yield f'<text x="{x + 25}" y="24" font-weight="{weight}">{name}</text>'
        x += 38 + 6 * len(name)


def _panel(rows: Sequence[Row], title: str, left: int, step: float, steps: int) -> Iterator[str]:
    """Axes and lines of a cell; all panels have the same scale."""
    bottom, loads = TOP + HEIGHT, sorted({row.load for row in rows})
    yield f'<text x="{left}" y="{TOP - 18}" font-size="12" font-weight="bold">{title}</text>'
    for tick in range(steps + 1):
        y = bottom - tick * HEIGHT / steps
        yield f'<path d="M{left} {y:g}h{WIDTH}" stroke="#e4e4e4"/>'
        yield f'<text x="{left - 6}" y="{y + 4:g}" text-anchor="end">{tick * step:g}</text>'
    scale = WIDTH / loads[-1]
    for tick in range(int(loads[-1]) + 1):
        x, colour = left + tick * scale, "#8A8A8A" if tick == 1 else "#e4e4e4"
        yield f'<path d="M{x:.1f} {TOP}v{HEIGHT}" stroke="{colour}"/>'
        yield f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{tick:.0%}</text>'
    middle = left + WIDTH / 2
    yield f'<text x="{middle:g}" y="{bottom + 36}" text-anchor="middle">load (share of capacity)</text>'
    names = list(dict.fromkeys(row.routing for row in rows))
    # The emphasised line last, so that it lies on top.
    for place, name in reversed(list(enumerate(names))):
        points = " ".join(
            f"{left + row.load * scale:.1f},{bottom - row.goodput_rps / step * HEIGHT / steps:.1f}"
            for row in sorted(rows, key=lambda each: each.load)
            if row.routing == name
        )
        yield f'<polyline points="{points}" {_stroke(place)}/>'


def _stroke(place: int) -> str:
    width = 3.5 if place == 0 else 1.6
    styles = list(zip(COLOURS, DASHES, strict=True))
    colour, dash = styles[place % len(styles)]
    return f'fill="none" stroke="{colour}" stroke-width="{width}" stroke-dasharray="{dash}"'


def _round_step(least: float) -> float:
    """The next 1, 2, 2.5 or 5 times a power of ten."""
    power = 10.0 ** floor(log10(least)) if least > 0.0 else 1.0
    return next(power * each for each in (1, 2, 2.5, 5, 10) if power * each >= least)
