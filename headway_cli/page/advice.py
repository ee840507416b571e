"""The page of `headway advise`: the sentence, the figures, and both fleets over time. To be sent as it is."""

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from headway.planning import Role
from headway.planning.advice_text import (
    FLEETS,
    acts,
    fleet_text,
    head,
    headline,
    notes,
    rows,
    sentences,
    share,
    shown_part,
    span,
    spread,
)
from headway.planning.documents import AdviceDocument, Spread
from headway.planning.records import AdvicePoint
from headway.words import money
from headway_cli.page.charts import BLUE, GREY, ORANGE, Board, Figure, Style, attainment_axis
from headway_cli.page.series import Floats
from headway_cli.page.template import card, cards, charts, figures, heading, named, page
from headway_cli.page.template import notes as notes_section

STOOD, PLANNED = ORANGE, BLUE

Values = Callable[[AdvicePoint], float | None]


def render(found: AdviceDocument) -> str:
    """The page; the same document gives the same text."""
    window = shown_part(found).window
    assert window is not None
    body = (
        cards(_cards(found)),
        charts(_draw(found)),
        heading("Figures"),
        f'<div class="stacked">{figures(head(found), rows(found))}</div>',
        heading("What was compared"),
        named({**_method(found), **sentences(found)}),
        notes_section(list(notes(found))),
    )
    subtitle = f"a dry run of {span(window)}. Headway watched the fleet and planned one; it changed nothing."
    if acts(found) and found.acted is not None:
        before = fleet_text(found.acted)
        subtitle = f"{span(window)} in which Headway scaled the fleet, compared with a constant {before}."
    return page(*body, title=f"{headline(found)}.", subtitle=f"{found.model}: {subtitle}")


def _method(found: AdviceDocument) -> dict[str, str]:
    """The comparison in plain words."""
    if acts(found):
        return {
            "Headway": "the real replicas, including those starting and draining, and measured attainment",
            "Fleet before": "a constant fleet; the requests that arrived, simulated one by one",
        }
    return {
        "Real fleet": "the real replicas and measured attainment",
        "Planned fleet": f"the replicas that Headway (policy {found.policy}) would have had; they serve a "
        "start-up time after they are ordered, and finish their requests before they are released",
        "Within SLO, planned": "the requests that arrived, simulated one by one on the planned fleet, "
        "corrected by the difference between simulation and measurement of the real fleet",
    }


def _cards(found: AdviceDocument) -> Iterator[str]:
    window, (theirs, ours) = shown_part(found).window, FLEETS[acts(found)]
    assert window is not None
    saved = window.saved_share.value or 0.0
    more, turn = ("saved", 1.0) if saved >= 0.0 else ("more", -1.0)
    part = _turned(window.saved_share, turn)
    yield card(
        f"GPU-hours {more}", share(part.value), _range(spread(part, share)), "good" if saved > 0 else ""
    )
    if window.saved_cost is not None and window.saved_cost.value is not None:
        cost = _turned(window.saved_cost, turn)
        text = spread(cost, lambda value: money(value, found.currency))
        yield card(f"Cost {more}", money(cost.value, found.currency), _range(text))
    target = found.slo.attainment
    kept = window.planned.attainment
    met = target is not None and kept.value is not None and kept.value >= target
    remark = _range(spread(kept, share)) or (f"target {share(target)}" if target is not None else "")
    measured = "measured" if window.measured and not acts(found) else "simulated"
    verdict = "" if kept.value is None else "good" if met else "bad"
    yield card(f"Within SLO, {ours}", share(kept.value), remark, verdict)
    before = window.stood.attainment
    yield card(f"Within SLO, {theirs}", share(before.value), "" if before.value is None else measured)


def _turned(figure: Spread, sign: float) -> Spread:
    """The same, or for -1 its opposite."""
    low, high = (figure.low, figure.high) if sign > 0.0 else (figure.high, figure.low)
    value, low, high = (None if each is None else sign * each for each in (figure.value, low, high))
    return Spread(value=value, low=low, high=high)


def _range(text: str) -> str:
    """The part of `x (a to b)` in the brackets."""
    return text.partition(" (")[2].removesuffix(")")


def _draw(found: AdviceDocument) -> Figure:
    points, (theirs, ours) = shown_part(found).points, FLEETS[acts(found)]
    roles = list(dict.fromkeys(role for each in points for role in each.planned_replicas))
    titles = ("GPUs in use", *(f"Replicas that serve: {role}" for role in roles), "Requests within SLO")
    began_at, ended_at = (points[0].start_at, points[-1].end_at) if points else (0.0, 1.0)
    board = Board(ended_at - began_at, titles, began_at=began_at)

    def both(row: int, stood: Values, planned: Values) -> None:
        """The two fleets in one panel."""
        line(row, theirs, stood, {"group": theirs, "colour": STOOD})
        line(row, ours, planned, {"group": ours, "colour": PLANNED})

    def line(row: int, name: str, values: Values, style: Style) -> None:
        """A step line over the points, with a gap where nothing is known."""
        times_s, column = _course(points, values)
        draw = board.share if row == len(titles) else board.line
        draw(row, name, times_s - began_at, column, {"step": True, **style})

    both(1, lambda each: each.stood_gpus, lambda each: each.planned_gpus)
    load: Style = {"colour": GREY, "width": 1, "line": "dot", "right": True}
    line(1, "requests/s", lambda each: each.requests / max(each.end_at - each.start_at, 1e-9), load)
    board.axis(1, whole=True)
    board.right(1, title="requests/s")
    for row, role in enumerate(roles, start=2):
        both(row, partial(_replicas, role, "stood_replicas"), partial(_replicas, role, "planned_replicas"))
        board.axis(row, whole=True)
    both(board.rows, lambda each: each.stood_attainment, lambda each: each.planned_attainment)
    every = [share for each in points for share in (each.stood_attainment, each.planned_attainment)]
    if found.slo.attainment is None:
        board.axis(board.rows, **attainment_axis(every))
    else:
        board.attainment_target(board.rows, found.slo.attainment, every)
    return board.finish()


def _course(points: tuple[AdvicePoint, ...], values: Values) -> tuple[Floats, Floats]:
    """Times and values; a time of which nothing is known is a gap."""
    times: list[float] = []
    column: list[float | None] = []
    ended_at: float | None = None
    for each in points:
        if ended_at is not None and each.start_at - ended_at > each.end_at - each.start_at:
            times.append(ended_at)
            column.append(None)
        times.append(each.start_at)
        column.append(values(each))
        ended_at = each.end_at
    if ended_at is not None:
        times.append(ended_at)
        column.append(column[-1])
    return np.array(times, np.float64), np.array(column, np.float64)


def _replicas(role: Role, fleet: str, each: AdvicePoint) -> float | None:
    found: float | None = getattr(each, fleet).get(role)
    return found
