"""A running deployment on one screen, as lines that fit it: the newest figures, their course, decisions."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from textwrap import wrap
from typing import NamedTuple

from rich.console import Group
from rich.text import Text

from headway.planning import Role
from headway.planning.documents import PoolStatus, StatusDocument
from headway.planning.records import DecisionRecord, LatencyFigures, MeasuredFigures
from headway.words import clock, milliseconds, percent, shown
from headway_cli.decision_table import DecisionTable, roles_of
from headway_cli.status import component_lines, engine_lines, host_lines
from headway_cli.terminal import bold, sparkline

POOL_HEAD = ("pool", "ready", "of", "start", "drain", "run", "wait", "KV", "range")
POOL_WIDTHS = (8, 6, 6, 6, 6, 6, 6, 6, 12)
FACT_WIDTHS = (9, 12, 18)
LONGEST_COURSE = 60
LEAST_DECISIONS = 3
GOOD, BAD = "bold green", "bold red"


class Away(NamedTuple):
    """Since when nothing is answered (seconds since 1970), and what is wrong."""

    since_s: float
    reason: str


class Seen(NamedTuple):
    """The status, the last decisions, oldest first, and when they were read (seconds since 1970)."""

    status: StatusDocument
    records: Sequence[DecisionRecord]
    at_s: float


class Screen(NamedTuple):
    """Columns and lines."""

    width: int
    height: int


def top_view(seen: Seen, url: str, screen: Screen, away: Away | None = None, hint: str = "") -> Group:
    """The lines of one screen. `hint` is the last one."""
    lines = [*_head(seen, url, screen.width, away), *_pools(seen, screen.width), Text()]
    lines += [*_figures(seen, screen.width), *_faults(seen.status), Text()]
    below = 2 if hint else 1
    room = max(LEAST_DECISIONS, screen.height - len(lines) - below)
    lines += _decisions(seen.records, screen.width, room)
    if hint:
        lines.append(Text(hint, style="dim"))
    for line in lines:
        line.no_wrap, line.overflow = True, "ellipsis"
    return Group(*lines)


def _head(seen: Seen, url: str, width: int, away: Away | None) -> Iterator[Text]:
    status = seen.status
    title, at = f"{status.model} at {url}", f"as of {clock(seen.at_s)}"
    room = max(0, width - len(at) - 1)
    yield bold(f"{title[:room]:<{room}} {at}")
    if away is not None:
        lost = f"No answer since {clock(away.since_s)}, what stands below is from before: {away.reason}"
        yield from (Text(line, style=BAD) for line in wrap(lost, width))
    if status.verdict is not None:
        style = "dim" if away is not None else GOOD if status.verdict.well else BAD
        yield from (Text(line, style=style) for line in wrap(status.verdict.text, width))
    yield from engine_lines(status)
    yield Text()


def _pools(seen: Seen, width: int) -> Iterator[Text]:
    yield Text(_row(POOL_HEAD, POOL_WIDTHS), style="dim")
    for role, pool in seen.status.pools.items():
        cells = (
            str(role),
            *(shown(getattr(pool, name)) for name in ("ready", "desired", "starting", "draining")),
            *(shown(getattr(pool, name)) for name in ("running", "waiting")),
            "n/a" if pool.kv_usage is None else f"{100.0 * pool.kv_usage:.0f} %",
            f"{shown(pool.min_replicas)} to {shown(pool.max_replicas)}",
        )
        course = _course(seen, width - sum(POOL_WIDTHS) - len(POOL_WIDTHS), partial(_ready, role))
        yield Text(f"{_row(cells, POOL_WIDTHS)} {course}", style=BAD if _short(pool) else "")


def _short(pool: PoolStatus) -> bool:
    return pool.ready == 0 and bool(pool.desired)


def _ready(role: Role, record: DecisionRecord) -> float | None:
    found = record.pools.get(role)
    return None if found is None else found.ready


def _figures(seen: Seen, width: int) -> Iterator[Text]:
    """Load, attainment and latencies of the last interval, beside what is expected or promised."""
    status = seen.status
    measured, slo = status.measured or MeasuredFigures(), status.slo
    last = seen.records[-1] if seen.records else None
    forecast = None if last is None else last.forecast
    expected = None if last is None or forecast is None else _per_second(last, forecast.requests)
    rate = None if last is None else _per_second(last, last.measured.requests)
    attained = status.attainment.last_interval
    rows: list[tuple[str, str, str, bool, Callable[[DecisionRecord], float | None]]] = [
        (
            "req/s", shown(rate), "" if expected is None else f"forecast {shown(expected)}", False,
            lambda one: _per_second(one, one.measured.requests),
        ),
        (
            "in time", percent(attained), f"promised {percent(slo.attainment)}",
            attained is not None and attained < (slo.attainment or 0.0), lambda one: one.measured.attainment,
        ),
        _latency("TTFT p95", measured.ttft_s, slo.ttft_ms, lambda one: one.measured.ttft_s.p95),
        _latency("ITL p95", measured.itl_s, slo.itl_ms, lambda one: one.measured.itl_s.p95),
    ]  # fmt: skip
    for name, value, beside, bad, read in rows:
        course = _course(seen, width - sum(FACT_WIDTHS) - len(FACT_WIDTHS), read)
        yield Text(f"{_row((name, value, beside), FACT_WIDTHS)} {course}", style=BAD if bad else "")


def _latency(
    name: str,
    found: LatencyFigures,
    target_ms: float | None,
    read: Callable[[DecisionRecord], float | None],
) -> tuple[str, str, str, bool, Callable[[DecisionRecord], float | None]]:
    late = found.p95 is not None and target_ms is not None and found.p95 * 1e3 > target_ms
    value = "n/a" if found.p95 is None else f"{milliseconds(found.p95)} ms"
    return name, value, f"target {shown(target_ms)} ms", late, read


def _faults(status: StatusDocument) -> Iterator[Text]:
    if any(not part.ok for part in status.components.values()):
        yield from component_lines(status)
    yield from host_lines(status)


def _decisions(records: Sequence[DecisionRecord], width: int, room: int) -> Iterator[Text]:
    if not records:
        yield Text("No decision yet")
        return
    made = DecisionTable(roles_of(records), width)
    yield Text(made.head(), style="dim")
    yield from map(Text, list(made.lines(records))[1 - room :])


def _course(seen: Seen, width: int, read: Callable[[DecisionRecord], float | None]) -> str:
    """The last decisions' figures as bars from nought to the highest, the newest at the right."""
    size = min(width, LONGEST_COURSE)
    values = [read(one) for one in seen.records[-size:]] if size > 0 else []
    top = max((value for value in values if value is not None), default=0.0)
    return "".join(" " if value is None else sparkline([value], top) for value in values)


def _per_second(record: DecisionRecord, requests: float | None) -> float | None:
    span_s = record.interval.end_s - record.interval.start_s
    return None if requests is None or span_s <= 0 else requests / span_s


def _row(cells: Sequence[str], widths: Sequence[int]) -> str:
    return " ".join(f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=True))
