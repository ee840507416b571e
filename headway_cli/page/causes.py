"""Spikes of a latency, and what happened beside each: a burst, a start, a drain, a loss.

A spike is a run of intervals whose p99 is above `min(target, max(2.5 × median, target / 4))`, with the median
over all intervals. Beside it means from the interval before it to its worst one:

    burst   input tokens per second (or requests) are 1.2 × their mean of the six intervals before, or more
    start   replicas of a pool are starting
    drain   replicas of a pool are draining
    loss    fewer replicas are ready, and none is draining or wanted less

What stands beside a spike need not have caused it; the page says "beside".
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import fmean, median

from headway.simulation.report import Interval, PoolSeries, SimulationReport
from headway.words import shown

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
