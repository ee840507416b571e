"""The decision log as a table: one line a decision, and one for decisions in a row that changed nothing.

    #           time     req/s      SLO     prefill decode  reached  why
    5           03:04:05 5.2        98.1 %  1 → 2   3       6.2 s    Prefill needs 2. Decode needs 3.
    6-11        03:04:15 4.9-5.3    99.0 %  2       3       –        Prefill needs 1; keeping 2 for now. ...

A folded line has the time of its first decision, the range of requests per second, the least attainment and
the reason of its last decision.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from headway.planning import Role
from headway.planning.decision_text import answer_text
from headway.planning.record_figures import HELD, UNCHANGED, changes, reason_codes
from headway.planning.records import DRY_RUN, PENDING, REFUSED, UNREACHABLE, DecisionRecord
from headway.words import clock, percent

ANSWERS: Mapping[str | None, str] = {
    DRY_RUN: "dry run",
    PENDING: "waiting",
    REFUSED: "refused",
    UNREACHABLE: "not sent",
}
HEAD = ("#", "time", "req/s", "SLO")
WIDTHS = (11, 8, 10, 7)
REACHED = 8
POOL = 7
"""Characters of a pool's column, at least."""
LEAST_WHY = 15

Fold = Sequence[DecisionRecord]


class DecisionTable:
    """The lines of the table for these pools, cut to `width` characters where one is given."""

    def __init__(self, roles: Sequence[Role], width: int | None = None) -> None:
        self._roles, self._width = roles, width
        self._widths = (*WIDTHS, *(max(POOL, len(role)) for role in roles), REACHED)

    def head(self) -> str:
        """The names of the columns."""
        return self._joined([*HEAD, *map(str, self._roles), "reached", "why"])

    def lines(self, records: Sequence[DecisionRecord]) -> Iterator[str]:
        """The decisions, oldest first."""
        newest = records[-1].id if records else -1
        for fold in folded(records):
            yield self._line(fold, newest)

    def _line(self, fold: Fold, newest: int) -> str:
        first, last = fold[0], fold[-1]
        attained = [one.measured.attainment for one in fold if one.measured.attainment is not None]
        return self._joined([
            f"{first.id}" if first is last else f"{first.id}-{last.id}",
            clock(first.created_at),
            _range([rate for one in fold if (rate := _rate(one)) is not None]),
            percent(min(attained)) if attained else "–",
            *(_pool(first, role) for role in self._roles),
            _reached(last, last.id == newest),
            _refusal(last) or last.summary,
        ])  # fmt: skip

    def _joined(self, cells: Sequence[str]) -> str:
        *narrow, why = cells
        before = " ".join(f"{cell:<{width}}" for cell, width in zip(narrow, self._widths, strict=True))
        if self._width is not None and len(why) > (room := max(LEAST_WHY, self._width - len(before) - 1)):
            why = f"{why[: room - 1]}…"
        return f"{before} {why}".rstrip()


def roles_of(records: Iterable[DecisionRecord]) -> list[Role]:
    """The pools that the decisions are about, in the order of `Role`."""
    found = {role for record in records for role in record.targets}
    return [role for role in Role if role in found]


def folded(records: Iterable[DecisionRecord]) -> Iterator[Fold]:
    """Decisions in a row that changed nothing, for the same reasons, together; every other one alone."""
    for _, group in groupby(records, lambda one: one.id if changes(one) else _sameness(one)):
        yield list(group)


def _refusal(record: DecisionRecord) -> str:
    """Why the targets were not set; empty if they were, and for a dry run."""
    return "" if record.dry_run else answer_text(record.connector).partition(": ")[2]


def _sameness(record: DecisionRecord) -> tuple[object, ...]:
    codes = tuple(UNCHANGED if code == HELD else code for code in reason_codes(record).values())
    return (dict(record.targets), codes, _reached(record, newest=False), _refusal(record))


def _rate(record: DecisionRecord) -> float | None:
    span_s = record.interval.end_s - record.interval.start_s
    requests = record.measured.requests
    return None if requests is None or span_s <= 0 else requests / span_s


def _range(rates: Sequence[float]) -> str:
    if not rates:
        return "–"
    low, high = map(_digits, (min(rates), max(rates)))
    return low if low == high else f"{low}-{high}"


def _digits(rate: float) -> str:
    """So few that a range fits its column: `0.03`, `9.98`, `1234`."""
    if 0.0 < rate < 1.0:
        return f"{rate:.2f}"
    return f"{rate:.3g}" if rate < 999.5 else f"{rate:.0f}"


def _pool(record: DecisionRecord, role: Role) -> str:
    count, before = record.targets.get(role), record.previous_targets.get(role)
    if count is None:
        return "–"
    return f"{count}" if before in (None, count) else f"{before} → {count}"


def _reached(record: DecisionRecord, newest: bool) -> str:
    """How long it took to have the replicas; what is overtaken by a later decision never will."""
    if record.dry_run:
        return ANSWERS[DRY_RUN]
    if answer := ANSWERS.get(record.connector.status):
        return answer
    if not changes(record):
        return "–"
    if record.reached_at is None:
        return "not yet" if newest else "–"
    return f"{max(record.reached_at - record.created_at, 0.0):.1f} s"
