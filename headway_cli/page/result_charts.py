"""The charts of one simulation: load, replicas with decisions, latencies with spikes, attainment and cost.

Spikes of a latency, and what happened beside each: a burst, a start, a drain, a loss.

A spike is a run of intervals whose p99 is above `min(target, max(2.5 × median, target / 4))`, with the median
over all intervals. Beside it means from the interval before it to its worst one:

    burst   input tokens per second (or requests) are 1.2 × their mean of the six intervals before, or more
    start   replicas of a pool are starting
    drain   replicas of a pool are draining
    loss    fewer replicas are ready, and none is draining or wanted less

What stands beside a spike need not have caused it; the page says "beside".
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import fmean, median

import numpy as np

from headway.planning.decision_text import reason_lines
from headway.planning.policies import jsonable
from headway.simulation.report import Interval, PoolSeries, SimulationReport
from headway.words import milliseconds, shown
from headway_cli.page.charts import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    ROLE_COLOURS,
    SKY,
    VERMILLION,
    Board,
    Figure,
    Style,
    plain,
)
from headway_cli.page.series import (
    Floats,
    IntervalColumns,
    PoolColumns,
    gpu_hours,
    interval_columns,
    pool_columns,
    steps,
)

OF_MEDIAN, OF_TARGET = 2.5, 0.25
BURST, PAST = 1.2, 6
NOTHING = "no burst, start or drain beside it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Spike:
    """The worst interval of a spike: its middle, its p99, the kinds of what was beside it, and the words."""

    at_s: float
    p99_s: float
    kinds: tuple[str, ...]
    lines: tuple[str, ...]


def spikes(report: SimulationReport, key: str) -> list[Spike]:
    """The spikes of `ttft_s` or `itl_s`, in order of time."""
    rows = report.intervals
    late = [getattr(row, key).p99 for row in rows]
    known = [value for value in late if value is not None]
    if not known:
        return []
    target_s = getattr(report.slo, key)
    limit_s = min(target_s, max(OF_MEDIAN * median(known), OF_TARGET * target_s))
    found = []
    for is_high, group in groupby(range(len(rows)), lambda place: (late[place] or 0.0) > limit_s):
        if is_high:
            places = list(group)
            worst = max(places, key=lambda place: late[place] or 0.0)
            beside = dict(_beside(report, places[0], worst))
            middle_s = (rows[worst].start_s + rows[worst].end_s) / 2.0
            lines = tuple(beside.values()) or (NOTHING,)
            found.append(Spike(at_s=middle_s, p99_s=late[worst] or 0.0, kinds=tuple(beside), lines=lines))
    return found


def _beside(report: SimulationReport, first: int, worst: int) -> Iterator[tuple[str, str]]:
    """Kinds and their lines."""
    begin, rows = max(0, first - 1), report.intervals
    if burst := _burst(rows, begin, worst):
        yield "burst", burst
    since_s, until_s = rows[begin].start_s, rows[worst].end_s
    named: dict[str, list[str]] = {}
    for role, series in report.replicas.items():
        for kind, count in _changes(series, since_s, until_s):
            named.setdefault(kind, []).append(f"{count:g} of {role}")
    for kind, word in (("start", "starting"), ("drain", "draining"), ("loss", "gone unasked")):
        if kind in named:
            yield kind, f"{kind}: {', '.join(named[kind])} {word}"


def _burst(rows: Sequence[Interval], begin: int, worst: int) -> str | None:
    before = rows[max(0, begin - PAST) : begin]
    if not before:
        return None
    by_tokens = all(row.isl_tokens is not None or not row.requests for row in rows)
    unit = "input tokens/s" if by_tokens else "requests/s"
    usual = fmean(_rate(row, by_tokens=by_tokens) for row in before)
    most = max(_rate(row, by_tokens=by_tokens) for row in rows[begin : worst + 1])
    return f"burst: {shown(most)} {unit}, {shown(usual)} before" if most >= BURST * usual > 0.0 else None


def _rate(row: Interval, *, by_tokens: bool) -> float:
    amount = row.requests * (row.isl_tokens or 0.0) if by_tokens else row.requests
    return amount / max(row.end_s - row.start_s, 1e-9)


def _changes(series: PoolSeries, since_s: float, until_s: float) -> Iterator[tuple[str, float]]:
    """What a pool went through, with the highest count of replicas that did."""
    first = sum(1 for time_s in series.time_s if time_s <= since_s)
    last = sum(1 for time_s in series.time_s if time_s < until_s)
    span = slice(max(0, first - 1), max(1, last))
    starting, draining = max(series.starting[span]), max(series.draining[span])
    ready, desired = series.ready[span], series.desired[span]
    if starting:
        yield "start", starting
    if draining:
        yield "drain", draining
    elif min(ready) < ready[0] and min(desired) >= desired[0]:
        yield "loss", ready[0] - min(ready)


MOST_DECISIONS = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionText:
    """One decision, worded: plain text, not yet escaped."""

    at_s: float
    targets: Mapping[str, int]
    before: Mapping[str, float]
    lines: tuple[str, ...]

    @property
    def changed(self) -> frozenset[str]:
        """The roles with another target than before."""
        return frozenset(role for role, count in self.targets.items() if count != self.before.get(role))


def decisions(intervals: Sequence[Interval], initial: Mapping[str, float]) -> list[DecisionText]:
    """All decisions, or only those that changed something when there are very many."""
    worded = list(_worded(intervals, initial))
    if len(worded) <= MOST_DECISIONS:
        return worded
    return [decision for decision in worded if decision.changed][:MOST_DECISIONS]


def _worded(intervals: Sequence[Interval], initial: Mapping[str, float]) -> Iterator[DecisionText]:
    before = initial
    for row in intervals:
        if not row.targets:
            continue
        lines = tuple(reason_lines(row.decision))
        yield DecisionText(at_s=row.end_s, targets=row.targets, before=before, lines=lines)
        before = row.targets


LINE_STYLES: Mapping[str, Style] = {
    "mean": {"colour": GREY, "width": 1.5, "line": "dot"},
    "p50": {"colour": SKY},
    "p95": {"colour": ORANGE},
    "p99": {"colour": PURPLE},
}
MANY_DECISIONS = 120
MOST_WORDS = 12
"""Spikes that have a word beside their mark, the highest ones; all say more where one points at them."""


def draw(report: SimulationReport, decisions: list[DecisionText]) -> Figure:
    """All panels of one result."""
    roles = tuple(report.replicas)
    latency_titles = ("Time to first token", "Time between tokens (ITL)")
    pool_titles = tuple(f"Replicas: {role}" for role in roles)
    board = Board(report.simulated_s, ("Load", *pool_titles, *latency_titles, "Attainment and cost"))
    columns = interval_columns(report.intervals)
    _draw_load(board, columns)
    for row, role in enumerate(roles, start=2):
        _draw_pool(board, row, role, pool_columns(report.replicas[role], report.simulated_s))
        _draw_expected(board, row, role, report)
        _draw_decisions(board, row, role, decisions)
    for row, key in enumerate(("ttft_s", "itl_s"), start=2 + len(roles)):
        _draw_latency(board, row, columns.latencies[key], columns.middle_s, getattr(report.slo, key))
        _draw_spikes(board, row, spikes(report, key))
    _draw_outcome(board, report, columns)
    return board.finish()


def _draw_load(board: Board, columns: IntervalColumns) -> None:
    measured, forecast = steps(columns, columns.load_rps), steps(columns, columns.forecast_rps, shift=True)
    board.line(1, "arrivals", *measured, {"colour": BLUE, "step": True})
    if np.isfinite(columns.forecast).any():
        style: Style = {"colour": VERMILLION, "width": 1.5, "line": "dot", "step": True}
        board.line(1, "forecast", *forecast, style)
    board.axis(1, title="requests/s")


def _draw_pool(board: Board, row: int, role: str, pool: PoolColumns) -> None:
    colour = ROLE_COLOURS.get(role, GREEN)
    up = pool.ready + pool.starting
    for name, low, high, fill in (
        ("starting", pool.ready, up, colour),
        ("draining", up, pool.up, GREY),
    ):
        board.line(
            row, name, pool.time_s, high, {"colour": fill, "base": plain(low), "step": True, "quiet": True}
        )
    board.line(row, "ready", pool.time_s, pool.ready, {"colour": colour, "width": 2.5, "step": True})
    board.line(
        row,
        "desired",
        pool.time_s,
        pool.desired,
        {"colour": GREY, "width": 1.5, "line": "dash", "step": True},
    )
    board.axis(row, whole=True)


def _draw_expected(board: Board, row: int, role: str, report: SimulationReport) -> None:
    """The forecast of the policy `headway`: work expected when a replica that is ordered now can be ready."""
    due_s, work = [], []
    for interval in report.intervals:
        need = jsonable(interval.reasons.get("needs", {})).get(role, {})
        expected = (need.get("option") or {}).get("expected")
        if expected is not None:
            due_s.append(interval.end_s + need.get("lead_s", 0.0))
            work.append(expected)
    if work:
        style: Style = {"colour": VERMILLION, "width": 1.5, "line": "dot"}
        board.line(row, "work forecast", np.array(due_s), np.array(work), style)


def _draw_decisions(board: Board, row: int, role: str, decisions: list[DecisionText]) -> None:
    here = [decision for decision in decisions if role in decision.targets]
    if not here:
        return
    changed = [role in decision.changed for decision in here]
    large, small = (10, 6) if len(here) <= MANY_DECISIONS else (7, 3)
    style: Style = {
        "colour": ROLE_COLOURS.get(role, GREEN),
        "line": "none",
        "symbol": ["diamond" if moved else "circle-open" for moved in changed],
        "size": [large if moved else small for moved in changed],
        "hover": [_told(board, role, decision) for decision in here],
    }
    times = np.array([decision.at_s for decision in here])
    targets = np.array([decision.targets[role] for decision in here], np.float64)
    board.line(row, "decision", times, targets, style)


def _told(board: Board, role: str, decision: DecisionText) -> str:
    at = decision.at_s / board.unit.seconds
    return "\n".join((f"{at:.4g} {board.unit.name}: {role} {decision.targets[role]}", *decision.lines))


def _draw_latency(
    board: Board, row: int, lines: Mapping[str, Floats], middle_s: Floats, target_s: float
) -> None:
    for name, style in LINE_STYLES.items():
        board.line(row, name, middle_s, lines[name] * 1e3, style)
    board.latency_target(row, target_s, [lines["p99"]])


def _draw_spikes(board: Board, row: int, found: list[Spike]) -> None:
    if not found:
        return
    named = sorted(found, key=lambda spike: -spike.p99_s)[:MOST_WORDS]
    style: Style = {
        "colour": VERMILLION,
        "line": "none",
        "symbol": "triangle",
        "size": 9,
        "labels": [", ".join(spike.kinds) if spike in named else "" for spike in found],
        "hover": [
            "\n".join((f"p99 {milliseconds(spike.p99_s)} ms, beside it:", *spike.lines)) for spike in found
        ],
    }
    values = np.array([spike.p99_s * 1e3 for spike in found])
    board.line(row, "spike", np.array([spike.at_s for spike in found]), values, style)


def _draw_outcome(board: Board, report: SimulationReport, columns: IntervalColumns) -> None:
    row = board.rows
    times, shares = steps(columns, columns.attainment)
    board.share(row, "attainment", times, shares, {"colour": GREEN, "step": True})
    board.attainment_target(row, report.slo.attainment, columns.attainment)
    board.line(
        row, "GPU-hours so far", *gpu_hours(report), {"colour": BLUE, "line": "dashdot", "right": True}
    )
    board.right(row, title="GPU-hours")
