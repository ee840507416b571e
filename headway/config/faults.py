"""Pydantic's validation errors → one line: source, dotted key, what is wrong, and the nearest known key."""

from collections.abc import Collection, Mapping, Sequence
from difflib import get_close_matches
from reprlib import Repr
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

Place = tuple[int | str, ...]

_BRIEF = Repr()
_BRIEF.maxlevel = 3


def describe(error: ValidationError, schema: Mapping[str, Any]) -> tuple[str, str]:
    """The dotted key of the first fault, and what is wrong there (with the number of further faults).

    Unknown keys come first, since a misspelt key also shows as a missing one. `schema` is the JSON schema
    of the model, from which the known keys are read.
    """
    faults = sorted(error.errors(), key=lambda fault: fault["type"] != "extra_forbidden")
    first = faults[0]
    more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    return dotted(first["loc"]), _explain(first, schema) + more


def dotted(place: Place) -> str:
    """`('simulation', 'crashes', 0, '[key]')` → `simulation.crashes.0`."""
    return ".".join(str(part) for part in place if part != "[key]")


def _explain(fault: ErrorDetails, schema: Mapping[str, Any]) -> str:
    if fault["type"] == "extra_forbidden":
        return _unknown_key(str(fault["loc"][-1]), known_keys(schema, fault["loc"][:-1]))
    if "[key]" in fault["loc"]:
        return _wrong_key(fault)
    if fault["type"] == "model_type":
        return f"should hold keys and values, not {shown(fault['input'])}"
    message = _lowered(fault["msg"].removeprefix("Value error, "))
    if fault["type"] in ("value_error", "missing"):
        return message
    return f"{message}, not {shown(fault['input'])}"


def _unknown_key(key: str, known: Collection[str]) -> str:
    if not known:
        return "unknown key; none is known here"
    nearest = get_close_matches(key, known, n=1)
    hint = f"did you mean {nearest[0]!r}?" if nearest else f"known here: {', '.join(sorted(known))}"
    return f"unknown key; {hint}"


def _wrong_key(fault: ErrorDetails) -> str:
    """A key of a mapping whose keys are not settings: roles, or the options of a predictor."""
    if fault["type"] == "literal_error":
        return f"unknown role; {_lowered(fault['msg'])}"
    return f"a key should be text, not {shown(fault['input'])}"


def known_keys(schema: Mapping[str, Any], place: Sequence[int | str]) -> tuple[str, ...]:
    """The keys that a JSON schema allows at a place; empty when the place is not a mapping of known keys."""
    node = _resolved(schema, schema)
    for part in place:
        below = node.get("properties", {}).get(part) or node.get("additionalProperties") or node.get("items")
        node = _resolved(schema, below) if isinstance(below, Mapping) else {}
    return tuple(node.get("properties", {}))


def _resolved(schema: Mapping[str, Any], node: Mapping[str, Any]) -> Mapping[str, Any]:
    reference = node.get("$ref", "")
    return schema["$defs"][reference.rsplit("/", 1)[-1]] if reference else node


def _lowered(text: str) -> str:
    return text[:1].lower() + text[1:]


def shown(value: object) -> str:
    """Whatever a file holds, in at most 40 characters; aliases in YAML can make it huge, even endless."""
    text = repr(value) if isinstance(value, str) else _BRIEF.repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
