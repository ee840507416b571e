"""The decision record: everything that a decision was made from, what it was, and what became of it.

Plain JSON: a number that is not known is null. `created_at` and all other times are Unix seconds.
`connector.status` begins as `planned`, which stays when the planner dies before it has applied the targets;
then unchanged, sent or pending (the connector's answer), unreachable, refused, or `dry_run`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from actors.collector.values import Measured
from actors.connectors.protocol import PoolCounts
from actors.planning.grid import Beat
from headway.planning import Decision, Observation, Role
from headway.planning.reasons import describe, jsonable

Record = dict[str, Any]

PLANNED = "planned"
DRY_RUN = "dry_run"
UNREACHABLE = "unreachable"
REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Considered:
    """What one decision was made from. `notes` are lines on what was missing."""

    beat: Beat
    measured: Measured
    counts: Mapping[Role, PoolCounts]
    observation: Observation
    previous: Mapping[Role, int]
    notes: Sequence[str] = ()


def make_record(
    considered: Considered, decision: Decision, created_at: float, kind: str, dry_run: bool
) -> Record:
    """The record of a decision that is about to be applied."""
    measured = considered.measured
    record: Record = jsonable(
        {
            "tick": considered.beat.tick,
            "due_at": considered.beat.due_s,
            "created_at": created_at,
            "interval": {"start_s": measured.start_s, "end_s": measured.end_s},
            "measured": measured,
            "forecast": considered.observation.forecast,
            "pools": considered.counts,
            "previous_targets": considered.previous,
            "targets": decision.targets,
            "reasons": decision.reasons,
            "summary": decision.reasons.get("summary") or describe(decision.targets, considered.observation),
            "notes": list(considered.notes),
            "connector": {"kind": kind, "status": DRY_RUN if dry_run else PLANNED, "detail": {}},
            "dry_run": dry_run,
            "replicas": [],
            "reached_at": None,
        }
    )
    return record


def targets_of(record: Record | None) -> dict[Role, int]:
    """The targets of a record, empty without one."""
    return {} if record is None else {Role(name): int(count) for name, count in record["targets"].items()}
