"""`KEY=VALUE` as people type it → dotted keys and JSON values. What keys there are, the planner knows."""

import json
from collections.abc import Iterable
from typing import Any

from headway_cli.errors import CliError


def parse_changes(pairs: Iterable[str]) -> dict[str, Any]:
    """A value is JSON where it reads as JSON (numbers, true, null), text otherwise."""
    changes: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = (part.strip() for part in pair.partition("="))
        if not (key and equals and text):
            raise CliError(f"expected KEY=VALUE such as slo.ttft_ms=250, got {pair!r}")
        if key in changes:
            raise CliError(f"{key} is given twice")
        changes[key] = _value(text)
    return changes


def _value(text: str) -> Any:  # noqa: ANN401 - any JSON value
    try:
        return json.loads(text, parse_constant=_refuse)
    except ValueError:
        return text


def _refuse(name: str) -> None:
    raise ValueError(name)
