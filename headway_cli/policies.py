"""`--policies reference,threshold,static:prefill=4:decode=8` → candidates, each with its settings.

An item is NAME[:KEY=VALUE…]. A key is a role (the fleet of `static`) or a key of `planner` in the
configuration (`reference:predictor=arima`). `static:auto` is the cheapest fixed fleet that meets the SLO.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

from headway.planning import Role
from headway_cli.errors import CliError

AUTO = "static:auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One policy to compare: its label, and the configuration keys that make it."""

    label: str
    overrides: dict[str, Any] = field(default_factory=dict)


def parse_policies(text: str) -> tuple[Candidate, ...]:
    """The candidates in their order; CliError for an item that cannot be read or comes twice."""
    candidates = tuple(_candidate(item.strip()) for item in text.split(",") if item.strip())
    if not candidates:
        raise CliError("--policies: no policy given")
    labels = [candidate.label for candidate in candidates]
    if repeated := next((label for label in labels if labels.count(label) > 1), None):
        raise CliError(f"--policies: {repeated} comes twice")
    return candidates


def static_candidate(counts: dict[Role, int]) -> Candidate:
    """A fixed fleet."""
    keys: dict[str, Any] = {f"planner.static.{role}": count for role, count in counts.items()}
    label = ":".join(["static", *(f"{role}={count}" for role, count in counts.items())])
    return Candidate(label=label, overrides={"planner.policy": "static", **keys})


def any_fleet(label: str) -> Candidate:
    """A stand-in for a fixed fleet that is not known yet: its policy goes with any pools."""
    return Candidate(label=label, overrides={"planner.policy": "threshold"})


def _candidate(item: str) -> Candidate:
    if item == AUTO:
        return any_fleet(AUTO)
    name, *pairs = item.split(":")
    keys: dict[str, Any] = {}
    for key, value in _overrides(item, pairs):
        if key in keys:
            raise CliError(f"--policies: {item}: {key} is given twice")
        keys[key] = value
    return Candidate(label=item, overrides={"planner.policy": name, **keys})


def _overrides(item: str, pairs: list[str]) -> Iterator[tuple[str, Any]]:
    for pair in pairs:
        key, equals, value = (part.strip() for part in pair.partition("="))
        if not key or not equals or not value:
            raise CliError(f"--policies: {item}: expected KEY=VALUE, got {pair!r}")
        name = f"planner.static.{key}" if key in set(Role) else f"planner.{key}"
        yield name, _value(f"--policies: {item}: {key}", value)


def _value(place: str, text: str) -> Any:  # noqa: ANN401 - any setting
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise CliError(f"{place}: {text[:40]!r} is not a value in YAML") from error
