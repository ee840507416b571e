"""`headway decisions` and `headway offload-traces`: what a running deployment decided, and why."""

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from json import dumps
from typing import Annotated, Any

import typer

from headway_cli.control import KEY_VARIABLE, ControlClient, KeyVariable, UrlOption, client
from headway_cli.page.reasons import reason_lines
from headway_cli.status import clock, measured_text, reached_text, shown, targets_text
from headway_cli.tables import console, print_facts

POLL_S = 1.0

OFFLOAD_TRACES = "/v1/control/offload-traces"
SHOWN = 20
Record = Mapping[str, Any]
PAGE = 100
MOST = 1000
"""Decisions in one answer."""


def decisions(
    *,
    url: UrlOption = None,
    api_key_env: KeyVariable = KEY_VARIABLE,
    follow: Annotated[bool, typer.Option("--follow", help="Go on with new ones until Ctrl-C.")] = False,
    decision_id: Annotated[
        int | None, typer.Option("--id", metavar="N", help="One decision, from its metrics to its replicas.")
    ] = None,
    limit: Annotated[int, typer.Option(metavar="N", help="The last N decisions.", min=1)] = SHOWN,
    json: Annotated[bool, typer.Option("--json", help="JSON, one decision a line.")] = False,
) -> None:
    """Show the planner's decisions: what was measured, decided and done."""
    log = DecisionLog(client(url, api_key_env))
    if decision_id is not None:
        print_story(log.one(decision_id), as_json=json)
        return
    last = -1
    for record in log.last(limit):
        print_line(record, as_json=json)
        last = record["id"]
    if follow:
        follow_log(log, last, lambda record: print_line(record, as_json=json), POLL_S)


def offload_traces(
    *,
    url: UrlOption = None,
    api_key_env: KeyVariable = KEY_VARIABLE,
    limit: Annotated[int, typer.Option(metavar="N", help="The last N requests.", min=1, max=10_000)] = SHOWN,
) -> None:
    """Show where long prompts were computed and when, as JSON lines: document 004's time stamps."""
    for trace in client(url, api_key_env).get(f"{OFFLOAD_TRACES}?limit={limit}")["traces"]:
        print(dumps(trace))


class DecisionLog:
    """Reads decisions; what the server lacks is a CliError of the client."""

    def __init__(self, server: ControlClient) -> None:
        self._server = server

    def one(self, decision_id: int) -> Record:
        """The decision with this id."""
        found: Record = self._server.get(f"/v1/control/decisions/{decision_id}")
        return found

    def after(self, decision_id: int, limit: int = PAGE) -> list[Record]:
        """The first `limit` decisions with higher ids, in order."""
        after = f"after={decision_id}&" if decision_id >= 0 else ""
        rows: list[Record] = self._server.get(f"/v1/control/decisions?{after}limit={limit}")["decisions"]
        return rows

    def every(self) -> list[Record]:
        """All decisions that are still kept, in order."""
        found: list[Record] = []
        while page := self.after(found[-1]["id"] if found else -1):
            found += page
        return found

    def last(self, count: int) -> list[Record]:
        """The last `count` decisions, in order."""
        newest = self._server.get("/v1/control/status").get("last_decision")
        if newest is None:
            return []
        return self.after(newest["id"] - min(count, MOST), MOST)[-count:]


def follow_log(log: DecisionLog, after: int, show: Callable[[Record], None], poll_s: float) -> None:
    """Show decisions as they are made, for ever."""
    while True:
        for record in log.after(after):
            show(record)
            after = record["id"]
        sys.stdout.flush()
        time.sleep(poll_s)


def print_line(record: Record, *, as_json: bool) -> None:
    """One line of the log."""
    print(json.dumps(record) if as_json else decision_line(record))


def print_story(record: Record, *, as_json: bool) -> None:
    """One decision from metrics to replicas."""
    if as_json:
        print(json.dumps(record, indent=1))
        return
    out = console()
    out.print(f"Decision {record['id']} at {clock(record['created_at'])}", style="bold")
    for name, lines in story(record).items():
        for place, line in enumerate(lines):
            print_facts({f"{'' if place else name:<10}": line}, out)


def decision_line(record: Record) -> str:
    """`#12 03:04:05 prefill 1 → 2, decode 3 | sent | why`."""
    action = record.get("connector") or {}
    status = "dry run" if record.get("dry_run") else str(action.get("status"))
    parts = (targets_text(record["targets"], record.get("previous_targets")), status, record.get("summary"))
    return f"#{record['id']} {clock(record['created_at'])} " + " | ".join(filter(None, parts))


def story(record: Record) -> dict[str, list[str]]:
    """The steps of a decision, each as named lines: measured, forecast, sized, set, started."""
    interval = record["interval"]
    span = f"{clock(interval['start_s'])} to {clock(interval['end_s'])}"
    measured = record.get("measured") or {}
    steps = {
        "interval": [span],
        "measured": [measured_text({**interval, **measured}), *_load_lines(measured)],
        "pools": list(_pool_lines(record.get("pools") or {})),
        "why": list(reason_lines(record.get("reasons") or {})) or [str(record.get("summary"))],
        "targets": [targets_text(record["targets"], record.get("previous_targets"))],
        "connector": [_connector_text(record)],
        "replicas": list(_replica_lines(record)),
        "reached": [reached_text(record)],
    }
    return {name: lines for name, lines in steps.items() if lines}


def _load_lines(measured: Record) -> Iterator[str]:
    for role, load in (measured.get("load") or {}).items():
        usage = load.get("kv_usage")
        yield (
            f"{role}, per replica: {shown(load.get('running'))} running, {shown(load.get('waiting'))} waiting"
            + ("" if usage is None else f", KV usage {usage:.1%}")
        )


def _pool_lines(pools: Record) -> Iterator[str]:
    for role, pool in pools.items():
        counts = ", ".join(
            f"{pool[name]} {name}" for name in ("desired", "starting", "ready", "draining") if name in pool
        )
        yield f"{role}: {counts}"


def _connector_text(record: Record) -> str:
    action = record.get("connector") or {}
    detail = action.get("detail")
    said = detail if isinstance(detail, str) else json.dumps(detail) if detail else ""
    dry = " (dry run: nothing was set)" if record.get("dry_run") else ""
    return f"{action.get('kind')}: {action.get('status')}{f', {said}' if said else ''}{dry}"


def _replica_lines(record: Record) -> Iterator[str]:
    for entry in record.get("replicas") or ():
        yield f"{entry['role']} {entry['replica']}: " + ", ".join(
            f"{name} {after(record, entry.get(key))}"
            for key, name in (("starting_at", "STARTING"), ("running_at", "RUNNING"))
        )


def after(record: Record, at: float | None) -> str:
    """`03:04:11 (6.2 s after the decision)`."""
    if at is None:
        return "not yet"
    return f"{clock(at)} ({at - record['created_at']:.1f} s after the decision)"
