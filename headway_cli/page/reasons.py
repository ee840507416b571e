"""Decisions in words: what was decided when, from which forecast and corrections, and which limit was hit."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from textwrap import wrap
from typing import Any

Row = Mapping[str, Any]

HOVER_WIDTH = 68
MOST_DECISIONS = 600


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


def decisions(intervals: Sequence[Row], initial: Mapping[str, int]) -> list[DecisionText]:
    """All decisions, or only those that changed something when there are very many."""
    worded = list(_worded(intervals, initial))
    if len(worded) <= MOST_DECISIONS:
        return worded
    return [decision for decision in worded if decision.changed][:MOST_DECISIONS]


def _worded(intervals: Sequence[Row], initial: Mapping[str, int]) -> Iterator[DecisionText]:
    before: Mapping[str, int] = initial
    for row in intervals:
        targets = row["targets"]
        if not targets:
            continue
        changed = frozenset(role for role, count in targets.items() if count != before.get(role))
        yield DecisionText(
            at_s=row["end_s"], targets=targets, changed=changed, lines=tuple(reason_lines(row["reasons"]))
        )
        before = targets


def reason_lines(reasons: Row) -> Iterator[str]:
    """The reasons of one decision, a sentence each."""
    if summary := reasons.get("summary"):
        yield summary
    yield from _forecast(reasons.get("forecast"))
    yield from _corrections(reasons.get("corrections") or {})
    yield from _needs(reasons.get("requirement") or {})
    yield from _leads(reasons.get("needs") or {}, reasons.get("settings") or {})
    if limits := reasons.get("limits"):
        yield f"Limited by: {', '.join(limits)}"
    yield from (f"Warning: {warning}" for warning in reasons.get("warnings") or ())


def _forecast(forecast: Row | None) -> Iterator[str]:
    if not forecast:
        return
    known = ((key, name) for key, name in FORECAST if forecast.get(key) is not None)
    figures = ", ".join(f"{forecast[key]:,.0f} {name}" for key, name in known)
    sources = sorted(set((forecast.get("source") or {}).values()))
    yield f"Forecast: {figures or 'none'}" + (f" ({'; '.join(sources)})" if sources else "")


def _corrections(corrections: Mapping[str, Row]) -> Iterator[str]:
    parts = [f"{role} {item['value']:.3g} ({item['basis']})" for role, item in corrections.items()]
    if parts:
        yield f"Corrections: {', '.join(parts)}"


def _needs(requirement: Mapping[str, Row]) -> Iterator[str]:
    for role, need in requirement.items():
        replicas = need.get("replicas")
        count = "no number of" if replicas is None else f"{replicas:.3g}"
        load, throughput = need["load_tokens_per_s"], need["throughput_per_gpu"]
        yield f"Need: {role} {count} replicas for {load:,.0f} tokens/s at {throughput:,.0f} tokens/s per GPU"


def _leads(needs: Mapping[str, Row], settings: Row) -> Iterator[str]:
    """Of the policy `headway`: how far ahead each pool is planned, and what may be lost."""
    leads = ", ".join(f"{role} {need['lead_s']:.0f} s" for role, need in needs.items())
    if leads:
        yield f"Lead: {leads} until a replica ordered now serves; {settings['loss_budget']:.2%} may be lost"


FORECAST = (("requests", "requests"), ("isl_tokens", "input tokens"), ("osl_tokens", "output tokens"))
