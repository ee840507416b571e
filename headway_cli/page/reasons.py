"""Decisions in words: what was decided when, from which forecast and corrections, and which limit was hit."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from textwrap import wrap

from headway.planning.records import DecisionReasons
from headway.simulation.report import Interval

HOVER_WIDTH = 68
MOST_DECISIONS = 600
FORECAST = (("requests", "requests"), ("isl_tokens", "input tokens"), ("osl_tokens", "output tokens"))


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionText:
    """One decision, worded: plain text, not yet escaped."""

    at_s: float
    targets: Mapping[str, int]
    changed: frozenset[str]
    lines: tuple[str, ...]

    @property
    def hover(self) -> str:
        """The lines for a chart's hover label."""
        folded = [part for line in self.lines for part in wrap(line, HOVER_WIDTH, subsequent_indent="  ")]
        return "<br>".join(escape(part) for part in folded)


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


def reason_lines(reasons: DecisionReasons) -> Iterator[str]:
    """The reasons of one decision, a sentence each."""
    if reasons.summary:
        yield reasons.summary
    if forecast := reasons.forecast:
        known = ((getattr(forecast, key), name) for key, name in FORECAST)
        figures = ", ".join(f"{value:,.0f} {name}" for value, name in known if value is not None)
        sources = "; ".join(sorted(set((forecast.source or {}).values())))
        yield f"Forecast: {figures or 'none'}" + (f" ({sources})" if sources else "")
    if reasons.corrections:
        parts = (f"{role} {each.value:.3g} ({each.basis})" for role, each in reasons.corrections.items())
        yield f"Corrections: {', '.join(parts)}"
    for role, need in (reasons.requirement or {}).items():
        count = "no number of" if need.replicas is None else f"{need.replicas:.3g}"
        load, throughput = need.load_tokens_per_s, need.throughput_per_gpu
        yield f"Need: {role} {count} replicas for {load:,.0f} tokens/s at {throughput:,.0f} tokens/s per GPU"
    # Of the policy `headway`: how far ahead each pool is planned, and what may be lost.
    if leads := ", ".join(f"{role} {need.lead_s:.0f} s" for role, need in (reasons.needs or {}).items()):
        lost = reasons.settings.loss_budget or 0.0
        yield f"Lead: {leads} until a replica ordered now serves; {lost:.2%} may be lost"
    if reasons.limits:
        yield f"Limited by: {', '.join(reasons.limits)}"
    yield from (f"Warning: {warning}" for warning in reasons.warnings or ())
