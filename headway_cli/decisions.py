"""`headway decisions` and `headway offload-traces`: what a running deployment decided, and why."""

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from json import dumps
from typing import Annotated, Any

from headway.planning.records import DecisionReasons, DecisionRecord
from headway_cli.control import KEY_VARIABLE, ControlClient, KeyVariable, UrlOption, client, parse
from headway_cli.flags import option, switch
from headway_cli.page.reasons import reason_lines
from headway_cli.status import measured_text, reached_text, targets_text
from headway_cli.terminal import bold, console, print_facts
from headway_cli.words import clock, shown

PATH = "/v1/control/decisions"
OFFLOAD_TRACES = "/v1/control/offload-traces"
SHOWN = 20
COUNTS = ("desired", "starting", "ready", "draining")
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
    json: Annotated[bool, switch("--json", "JSON, one decision a line.")] = False,
) -> None:
    """Show the planner's decisions: what was measured, decided and done."""
    log = DecisionLog(client(url, api_key_env))
    if decision_id is not None:
        found = log.one(decision_id)
        if json:
            print(dumps(found, indent=1))
        else:
            print_story(log.parse(found))
        return

    def show(document: Document) -> None:
        print(dumps(document) if json else decision_line(log.parse(document)))

    last = -1
    for document in log.last(limit):
        show(document)
        last = document["id"]
    if follow:
        follow_log(log, last, show, POLL_S)


def offload_traces(
    *,
    url: UrlOption = None,
    api_key_env: KeyVariable = KEY_VARIABLE,
    limit: Annotated[int, option("N", "The last N requests.", min=1, max=10_000)] = SHOWN,
) -> None:
    """Show where long prompts were computed and when, as JSON lines: document 004's time stamps."""
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


def follow_log(log: DecisionLog, after: int, show: Callable[[Document], None], poll_s: float) -> None:
    """Show decisions as they are made, for ever."""
    while True:
        for document in log.after(after):
            show(document)
            after = document["id"]
        sys.stdout.flush()
        time.sleep(poll_s)


def print_story(record: DecisionRecord) -> None:
    """One decision from metrics to replicas."""
    out = console()
    out.print(bold(f"Decision {record.id} at {clock(record.created_at)}"))
    for name, lines in story(record).items():
        for place, line in enumerate(lines):
            print_facts({f"{'' if place else name:<10}": line}, out)


def decision_line(record: DecisionRecord) -> str:
    """`#12 03:04:05 prefill 1 → 2, decode 3 | sent | why`."""
    status = "dry run" if record.dry_run else str(record.connector.status)
    parts = (targets_text(record.targets, record.previous_targets), status, record.summary)
    return f"#{record.id} {clock(record.created_at)} " + " | ".join(filter(None, parts))


def story(record: DecisionRecord) -> dict[str, list[str]]:
    """The steps of a decision, each as named lines: measured, forecast, sized, set, started."""
    interval = record.interval
    reasons = DecisionReasons.model_validate(record.reasons)
    load = [
        f"{role}, per replica: {shown(each.running)} running, {shown(each.waiting)} waiting"
        + ("" if each.kv_usage is None else f", KV usage {each.kv_usage:.1%}")
        for role, each in record.measured.load.items()
    ]
    replicas = [
        f"{each.role} {each.replica}: STARTING {after(record, each.starting_at)}, "
        f"RUNNING {after(record, each.running_at)}"
        for each in record.replicas
    ]
    steps = {
        "interval": [f"{clock(interval.start_s)} to {clock(interval.end_s)}"],
        "measured": [measured_text(record.measured, interval.end_s - interval.start_s), *load],
        "pools": list(_pool_lines(record)),
        "why": list(reason_lines(reasons)) or [record.summary],
        "targets": [targets_text(record.targets, record.previous_targets)],
        "connector": [_connector_text(record)],
        "replicas": replicas,
        "reached": [reached_text(record)],
    }
    return {name: lines for name, lines in steps.items() if lines}


def _pool_lines(record: DecisionRecord) -> Iterator[str]:
    for role, pool in record.pools.items():
        names = (name for name in COUNTS if name in pool.model_fields_set)
        yield f"{role}: " + ", ".join(f"{getattr(pool, name)} {name}" for name in names)


def _connector_text(record: DecisionRecord) -> str:
    action = record.connector
    detail = action.detail if isinstance(action.detail, str) else action.detail and dumps(action.detail)
    dry = " (dry run: nothing was set)" if record.dry_run else ""
    return f"{action.kind}: {action.status}{f', {detail}' if detail else ''}{dry}"


def after(record: DecisionRecord, at: float | None) -> str:
    """`03:04:11 (6.2 s after the decision)`."""
    if at is None:
        return "not yet"
    return f"{clock(at)} ({at - record.created_at:.1f} s after the decision)"
