"""What Prometheus answered → increases, loads, coverage. An answer of another form is `SourceDownError`."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import isnan
from typing import Any, NamedTuple, TypeVar

from actors.collector.channels import Part, role_of
from actors.collector.errors import SourceDownError
from actors.collector.histogram import Increase
from actors.collector.presets import Load
from actors.collector.promql import WHAT
from actors.collector.values import NAN, Health, HealthStatus, PoolLoad
from headway.planning import Role

Read = TypeVar("Read")


class Point(NamedTuple):
    """One series of an instant vector."""

    what: str
    labels: dict[str, str]
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """The answer to `promql.coverage`; NaN for what has no series."""

    newest: float = NAN
    known: float = NAN
    scraping: float = NAN
    resumed: float = NAN


def points(answer: object) -> list[Point]:
    """The series of an instant vector."""
    return _read(answer, lambda rows: [_point(row) for row in rows])


def increase_of(answer: Iterable[Point]) -> tuple[Increase | None, bool]:
    """What a quantity gained, None if it has no series; and whether a counter behind it was reset."""
    counts: list[float] = []
    sums: list[float] = []
    buckets: list[tuple[float, float]] = []
    fell = 0.0
    for what, labels, value in answer:
        part = what.partition(":")[0]
        if part == "resets":
            fell += value
        elif part == Part.BUCKET:
            buckets.append((float(labels.get("le", "nan")), value))
        else:
            (counts if part == Part.COUNT else sums).append(value)
    if not counts:
        return None, fell > 0
    total = sum(sums) if sums else NAN
    return Increase(count=sum(counts), total=total, buckets=tuple(sorted(buckets))), fell > 0


def loads_of(answer: Iterable[Point], load: Load) -> dict[Role, PoolLoad]:
    """Mean load by role."""
    figures: dict[Role, dict[str, float]] = {}
    for what, labels, value in answer:
        role = role_of(load, labels.get(load.role_label or ""))
        if role is not None:
            figures.setdefault(role, {})[what] = value
    return {role: PoolLoad(**means) for role, means in figures.items()}


def coverage_of(answer: Iterable[Point]) -> Coverage:
    """How well the interval is covered."""
    return Coverage(**{point.what: point.value for point in answer})


def judge(coverage: Coverage, end_s: float, fresh_s: float, sought: str) -> Health:
    """Whether the interval can be measured at all (`ok`), and if not, why not."""
    if isnan(coverage.known):
        return Health(status=HealthStatus.STARTING, detail=f"Prometheus has no series {sought}")
    age_s = end_s - coverage.newest
    if isnan(age_s):
        return Health(status=HealthStatus.STALE, detail=f"{sought} is no longer scraped")
    if age_s > fresh_s:
        detail = f"the newest sample of {sought} is {age_s:.1f} s old (stale_after_s {fresh_s:g})"
        return Health(status=HealthStatus.STALE, detail=detail)
    if isnan(coverage.scraping) or coverage.scraping < 1:
        detail = "Prometheus was not scraping when the interval began"
        return Health(status=HealthStatus.STARTING, detail=detail)
    if coverage.resumed > 0:
        detail = "samples are missing around the interval's start: what was counted may belong before it"
        return Health(status=HealthStatus.STARTING, detail=detail)
    return Health(status=HealthStatus.OK)


def _point(row: Any) -> Point:  # noqa: ANN401 - whatever JSON holds
    labels = {str(key): str(value) for key, value in row["metric"].items()}
    return Point(labels.get(WHAT, ""), labels, float(row["value"][1]))


def _read(answer: object, read: Callable[[Any], Read]) -> Read:
    try:
        return read(answer)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise SourceDownError(
            f"not an answer of Prometheus: {type(error).__name__} {str(error)[:100]}"
        ) from None
