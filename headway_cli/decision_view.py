"""Decision records (see docs/reference.md) as text: a log line each, or the whole story of one."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from headway_cli.page.reasons import reason_lines
from headway_cli.status_view import clock, measured_text, reached_text, shown, targets_text
from headway_cli.tables import console, print_facts

Record = Mapping[str, Any]


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
