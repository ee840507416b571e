"""`headway decisions` and `headway offload-traces`: what a running deployment decided, and why."""

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from json import dumps
from typing import Annotated, Any

from headway.planning import Role
from headway.planning.decision_text import answer_text, change_text, story
from headway.planning.record_figures import HELD, UNCHANGED, changes, reason_codes
from headway.planning.records import DRY_RUN, PENDING, REFUSED, UNREACHABLE, DecisionRecord
from headway.words import clock, percent
from headway_cli.control import KEY_VARIABLE, ControlClient, KeyVariable, UrlOption, client, parse
from headway_cli.flags import option, switch
from headway_cli.notes import DIGITS
from headway_cli.terminal import bold, console, error_console, print_facts

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
LINE_BEFORE = "\x1b[F\x1b[K"
"""Back to the begin of the line before, and clear it."""

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
            _refusal(last) or _reasons(fold),
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


def _why(record: DecisionRecord) -> str:
    """The text of the decision, without the attainment, which has a column."""
    known = record.measured.attainment is not None
    return str((record.reasons.get("summary") if known else "") or record.summary)


def _reasons(fold: Fold) -> str:
    """The texts of decisions that are one line, oldest first; those that differ only in numbers are one."""
    texts = {DIGITS.sub("#", text): text for text in map(_why, fold)}
    return " Then: ".join(texts.values())


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
    count = record.targets.get(role)
    return "–" if count is None else change_text(record.previous_targets.get(role), count)


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


PATH = "/v1/control/decisions"
OFFLOAD_TRACES = "/v1/control/offload-traces"
SHOWN = 100
TRACES_SHOWN = 20
POLL_S = 1.0
PAGE = 100
MOST = 1000
"""Decisions in one answer."""

Document = Mapping[str, Any]
"""A decision record as the server sent it."""


def decisions(
    *,
    url: UrlOption = None,
    api_key_env: KeyVariable = KEY_VARIABLE,
    follow: Annotated[bool, switch("--follow", "Go on with new ones until Ctrl-C.")] = False,
    decision_id: Annotated[
        int | None, option("N", "One decision, from its metrics to its replicas.", "--id")
    ] = None,
    limit: Annotated[int, option("N", "The last N decisions.", min=1)] = SHOWN,
    why: Annotated[bool, switch("--why", "The story of each instead of a line.")] = False,
    json: Annotated[bool, switch("--json", "JSON, one decision a line.")] = False,
) -> None:
    """Show the planner's decisions: what was measured, decided and done, a line each."""
    log = DecisionLog(client(url, api_key_env))
    if decision_id is not None:
        found = log.one(decision_id)
        if json:
            print(dumps(found, indent=1))
        else:
            print_story(log.parse(found))
        return
    show = _print_json if json else _Printer(log, why).show
    rows = log.last(limit)
    show(rows)
    if follow:
        follow_log(log, rows[-1]["id"] if rows else -1, show, POLL_S)
    elif not rows:
        error_console().print("no decision yet")


def _print_json(documents: Sequence[Document]) -> None:
    for document in documents:
        print(dumps(document))


class _Printer:
    """Decisions as they come: stories, or a table whose head is printed once.

    In a terminal the last line grows with decisions that change nothing, so that quiet hours are one line.
    """

    def __init__(self, log: "DecisionLog", why: bool) -> None:
        self._log, self._why = log, why
        self._table: DecisionTable | None = None
        self._open: Fold = ()

    def show(self, documents: Sequence[Document]) -> None:
        """Print these decisions, which are later than those before."""
        records = [self._log.parse(document) for document in documents]
        if self._why:
            for record in records:
                print_story(record)
            return
        if not records:
            return
        out = console()
        if self._table is None:
            self._table = DecisionTable(roles_of(records), out.width if out.is_terminal else None)
            print(self._table.head())
        elif out.is_terminal:
            records = [*self._open, *records]
            print(LINE_BEFORE, end="")
        for line in self._table.lines(records):
            print(line)
        *_, last = folded(records)
        self._open = [*last[:1], *last[1:][-MOST:]]


def offload_traces(
    *,
    url: UrlOption = None,
    api_key_env: KeyVariable = KEY_VARIABLE,
    limit: Annotated[int, option("N", "The last N requests.", min=1, max=10_000)] = TRACES_SHOWN,
) -> None:
    """Show where long prompts were computed and when, as JSON lines."""
    for trace in client(url, api_key_env).get(f"{OFFLOAD_TRACES}?limit={limit}")["traces"]:
        print(dumps(trace))


class DecisionLog:
    """The decision log as the control API serves it; what the server lacks is a CliError of the client."""

    def __init__(self, server: ControlClient) -> None:
        self._server = server

    def parse(self, document: Document) -> DecisionRecord:
        """A decision as values."""
        return parse(DecisionRecord, document, self._server, PATH)

    def one(self, decision_id: int) -> Document:
        """The decision with this id."""
        found: Document = self._server.get(f"{PATH}/{decision_id}")
        return found

    def after(self, decision_id: int, limit: int = PAGE) -> list[Document]:
        """The first `limit` decisions with higher ids, in order."""
        after = f"after={decision_id}&" if decision_id >= 0 else ""
        rows: list[Document] = self._server.get(f"{PATH}?{after}limit={limit}")["decisions"]
        return rows

    def every(self) -> list[DecisionRecord]:
        """All decisions that are still kept, in order."""
        found: list[Document] = []
        while page := self.after(found[-1]["id"] if found else -1):
            found += page
        return [self.parse(document) for document in found]

    def last(self, count: int) -> list[Document]:
        """The last `count` decisions, in order."""
        newest = self._server.get("/v1/control/status").get("last_decision")
        if newest is None:
            return []
        return self.after(newest["id"] - min(count, MOST), MOST)[-count:]


def follow_log(
    log: DecisionLog, after: int, show: Callable[[Sequence[Document]], None], poll_s: float
) -> None:
    """Show decisions as they are made, for ever."""
    while True:
        if rows := log.after(after):
            show(rows)
            after = rows[-1]["id"]
        sys.stdout.flush()
        time.sleep(poll_s)


def print_story(record: DecisionRecord) -> None:
    """One decision from metrics to replicas."""
    out = console()
    out.print(bold(f"Decision {record.id} at {clock(record.created_at)}"))
    for name, lines in story(record).items():
        for place, line in enumerate(lines):
            print_facts({f"{'' if place else name:<10}": line}, out)
