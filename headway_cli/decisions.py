"""`headway decisions` and `headway offload-traces`: what a running deployment decided, and why."""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from json import dumps
from typing import Annotated, Any

from headway.planning.decision_text import story
from headway.planning.records import DecisionRecord
from headway.words import clock
from headway_cli.control import KEY_VARIABLE, ControlClient, KeyVariable, UrlOption, client, parse
from headway_cli.decision_table import DecisionTable, roles_of
from headway_cli.flags import option, switch
from headway_cli.terminal import bold, console, error_console, print_facts

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
    """Decisions as they come: stories, or a table whose head is printed once."""

    def __init__(self, log: "DecisionLog", why: bool) -> None:
        self._log, self._why = log, why
        self._table: DecisionTable | None = None

    def show(self, documents: Sequence[Document]) -> None:
        """Print these decisions, which are later than those before."""
        records = [self._log.parse(document) for document in documents]
        if self._why:
            for record in records:
                print_story(record)
            return
        if self._table is None and records:
            out = console()
            self._table = DecisionTable(roles_of(records), out.width if out.is_terminal else None)
            print(self._table.head())
        if self._table is not None:
            for line in self._table.lines(records):
                print(line)


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
