"""Decisions in words: what was decided when, from which forecast and corrections, and which limit was hit."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from headway.planning.decision_text import reason_lines
from headway.simulation.report import Interval

MOST_DECISIONS = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionText:
    """One decision, worded: plain text, not yet escaped."""

    at_s: float
    targets: Mapping[str, int]
    changed: frozenset[str]
    lines: tuple[str, ...]


def decisions(intervals: Sequence[Interval], initial: Mapping[str, float]) -> list[DecisionText]:
    """All decisions, or only those that changed something when there are very many."""
    worded = list(_worded(intervals, initial))
    if len(worded) <= MOST_DECISIONS:
        return worded
    return [decision for decision in worded if decision.changed][:MOST_DECISIONS]


def _worded(intervals: Sequence[Interval], initial: Mapping[str, float]) -> Iterator[DecisionText]:
    before = initial
    for row in intervals:
        if not row.targets:
            continue
        changed = frozenset(role for role, count in row.targets.items() if count != before.get(role))
        lines = tuple(reason_lines(row.decision))
        yield DecisionText(at_s=row.end_s, targets=row.targets, changed=changed, lines=lines)
        before = row.targets
