"""The simplest JSON that fits a schema, and the simplest text that fits a pattern.

A schema comes from a client, so the work that it can cause is bounded, and no pattern is ever matched: a
matcher can be kept busy for hours. A text is read off a pattern that is a row of characters and sets with
repeats, such as `^[a-z]{2}-\\d+$`, or a choice of words, such as `^(yes|no)$`. A value is checked against all
the rest of its schema once it is made.
"""

import json
import re
from collections.abc import Iterator, Mapping
from math import ceil, floor, inf
from typing import Any

from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
from jsonschema.exceptions import SchemaError, ValidationError  # type: ignore[import-untyped]
from jsonschema.validators import extend  # type: ignore[import-untyped]
from referencing.exceptions import Unresolvable

DEEPEST = 40
"""Levels of a value, for schemas that refer to themselves."""

MOST_STEPS = 5_000
"""Schemas read to make one value, and references followed to check it."""

LONGEST = 10_000
"""Characters, items or properties that a schema may demand."""

UNSUPPORTED = {"patternProperties", "$dynamicRef", "not", "if", "dependentSchemas", "unevaluatedProperties"}
"""Keywords for which no value is made."""


class Unfitting(Exception):
    """No value is made for that schema or pattern; the text says why."""


def simplest_json(schema: Mapping[str, Any]) -> str:
    """JSON that fits. Unfitting."""
    try:
        Draft202012Validator.check_schema(schema)
        value = _Values(schema).of(schema)
        _validator()(schema).validate(value)
    except (SchemaError, ValidationError) as error:
        raise Unfitting(error.message) from error
    except (Unresolvable, OverflowError, ZeroDivisionError) as error:
        raise Unfitting(str(error)) from error
    except RecursionError as error:
        raise Unfitting("it refers to itself") from error
    return json.dumps(value)


def _validator() -> type[Draft202012Validator]:
    """A validator that follows a bounded number of references and matches no patterns."""
    left, follow = MOST_STEPS, Draft202012Validator.VALIDATORS["$ref"]

    def reference(validator: Any, *arguments: Any) -> Iterator[ValidationError]:  # noqa: ANN401 - jsonschema's
        nonlocal left
        left -= 1
        if left < 0:
            raise Unfitting("its references go on for too long")
        yield from follow(validator, *arguments)

    made: type[Draft202012Validator] = extend(
        Draft202012Validator, {"$ref": reference, "pattern": lambda *_: ()}
    )
    return made


class _Values:
    """Makes values; `root` resolves references."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root, self._left = root, MOST_STEPS

    def of(self, schema: Any, depth: int = 0) -> Any:  # noqa: ANN401 - JSON
        """A value of the schema's type, with all that is required in it."""
        if not isinstance(schema, Mapping):
            return {}
        self._left -= 1
        if depth > DEEPEST or self._left < 0:
            raise Unfitting("it goes on and on")
        if unsupported := schema.keys() & UNSUPPORTED:
            raise Unfitting(f"{min(unsupported)} is not supported")
        if "$ref" in schema:
            return self.of({**self._referred(schema["$ref"]), **_without(schema, "$ref")}, depth + 1)
        if "const" in schema or schema.get("enum"):
            return schema["const"] if "const" in schema else schema["enum"][0]
        if schema.get("allOf"):
            return self.of(self._together(schema), depth + 1)
        for name in ("anyOf", "oneOf"):
            if schema.get(name):
                return self._alternative(schema, name, depth)
        return self._typed(schema, depth)

    def _typed(self, schema: Mapping[str, Any], depth: int) -> Any:  # noqa: ANN401 - JSON
        given = schema.get("type")
        match (given[0] if isinstance(given, list) and given else given) or _implied(schema):
            case "object":
                return self._object(schema, depth)
            case "array":
                first = [self.of(each, depth + 1) for each in schema.get("prefixItems", ())]
                more = _bounded(schema.get("minItems", 0)) - len(first)
                return first + [self.of(schema.get("items", {}), depth + 1) for _ in range(more)]
            case "string":
                return _string(schema)
            case "integer" | "number" as kind:
                return _number(schema, whole=kind == "integer")
            case "boolean":
                return True
            case _:
                return None

    def _object(self, schema: Mapping[str, Any], depth: int) -> dict[str, Any]:
        properties, least = schema.get("properties", {}), _bounded(schema.get("minProperties", 0))
        names = dict.fromkeys(schema.get("required", ()))
        names |= dict.fromkeys([*properties][: max(0, least - len(names))])
        names |= dict.fromkeys(f"key{at}" for at in range(least - len(names)))
        others = schema.get("additionalProperties", {})
        return {name: self.of(properties.get(name, others), depth + 1) for name in names}

    def _alternative(self, schema: Mapping[str, Any], name: str, depth: int) -> Any:  # noqa: ANN401 - JSON
        """The first for which a value is made; references, which may lead back here, come last."""
        choices = sorted(schema[name], key=lambda each: isinstance(each, Mapping) and "$ref" in each)
        for at, each in enumerate(choices):
            try:
                return self.of({**_without(schema, name), **each}, depth + 1)
            except Unfitting:
                if at == len(choices) - 1:
                    raise
        return None

    def _together(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        merged = _without(schema, "allOf")
        for each in schema["allOf"]:
            part = {**self._referred(each["$ref"]), **_without(each, "$ref")} if "$ref" in each else each
            properties = {**merged.get("properties", {}), **part.get("properties", {})}
            required = [*merged.get("required", []), *part.get("required", [])]
            merged = {**merged, **part, "properties": properties, "required": required}
        return merged

    def _referred(self, reference: str) -> Mapping[str, Any]:
        if not reference.startswith("#"):
            raise Unfitting(f"it refers to {reference!r}, which is elsewhere")
        found: Any = self._root
        for step in reference.removeprefix("#").split("/")[1:]:
            name = step.replace("~1", "/").replace("~0", "~")
            found = found.get(name) if isinstance(found, Mapping) else None
        if not isinstance(found, Mapping):
            raise Unfitting(f"it refers to {reference!r}, which is not there")
        return found


def _bounded(demanded: float) -> int:
    if demanded > LONGEST:
        raise Unfitting(f"it demands {demanded} of something, and at most {LONGEST} are made")
    return int(demanded)


def _without(schema: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in schema.items() if key != name}


def _implied(schema: Mapping[str, Any]) -> str:
    """The type that is meant where a schema names none."""
    if {"properties", "required", "additionalProperties", "minProperties"} & schema.keys():
        return "object"
    if {"items", "prefixItems", "minItems"} & schema.keys():
        return "array"
    bounds = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
    return "number" if bounds & schema.keys() else "string"


FORMATS: Mapping[str, str] = {
    "date": "2000-01-01",
    "date-time": "2000-01-01T00:00:00Z",
    "time": "00:00:00Z",
    "duration": "P1D",
    "email": "simulated@example.com",
    "hostname": "example.com",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
    "uri": "https://example.com/",
    "uuid": "00000000-0000-4000-8000-000000000000",
}


def _string(schema: Mapping[str, Any]) -> str:
    if "pattern" in schema:
        return simplest_match(schema["pattern"])
    text = FORMATS.get(schema.get("format", ""), "simulated")
    most = schema.get("maxLength")
    return text.ljust(_bounded(schema.get("minLength", 0)), ".")[: None if most is None else int(most)]


def _number(schema: Mapping[str, Any], *, whole: bool) -> float:
    """The least above the lower bounds, else 0 or the greatest below the upper ones."""
    low = max(schema.get("minimum", -inf), schema.get("exclusiveMinimum", -inf))
    high = min(schema.get("maximum", inf), schema.get("exclusiveMaximum", inf))
    step, value = schema.get("multipleOf", 1), 0.0
    if low > -inf:
        value = ceil(low / step) * step
        value += step if value == schema.get("exclusiveMinimum") else 0
        if value >= high and not whole and "multipleOf" not in schema:
            value = (low + high) / 2
    elif high <= 0:
        value = floor(high / step) * step
        value -= step if value == schema.get("exclusiveMaximum") else 0
    return int(value) if whole else value


PART = re.compile(
    r"(\\.|\[(?:[^\]\[\\]|\\.)+\]|[^\\\[\](){}*+?|^$])(?:(\{(\d{1,5})(?:,\d*)?\}|[*+?])\??)?", re.DOTALL
)
"""A character or a set, and its repeat."""

CLASSES = {"d": "0", "w": "a", "s": " ", "D": "a", "W": " ", "S": "a", "n": "\n", "t": "\t", "r": "\r"}


def simplest_match(pattern: str) -> str:
    """A text that matches the whole of a pattern. Unfitting."""
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise Unfitting(f"the pattern can't be read: {error}") from error
    inner = pattern.removeprefix("^").removesuffix("$")
    if words := re.fullmatch(r"\((?:\?:)?([^\\\[\](){}*+?.^$]*)\)", inner):
        return words[1].split("|")[0]
    text, at = "", 0
    while at < len(inner):
        part = PART.match(inner, at)
        if part is None or len(text) > LONGEST:
            raise Unfitting(f"simulated engines make no text for the pattern {pattern[:100]!r}")
        least = int(part[3]) if part[3] else 0 if part[2] in ("*", "?") else 1
        text += _character(part[1], pattern) * _bounded(least)
        at = part.end()
    return text


def _character(part: str, pattern: str) -> str:
    """One that the part matches."""
    if part == ".":
        return "a"
    if part.startswith("["):
        part = part[1:3] if part[1] == "\\" else part[1]
        if part == "^":
            raise Unfitting(f"simulated engines make no text for the pattern {pattern[:100]!r}")
    if not part.startswith("\\"):
        return part
    if part[1].isalnum() and part[1] not in CLASSES:
        raise Unfitting(f"simulated engines make no text for the pattern {pattern[:100]!r}")
    return CLASSES.get(part[1], part[1])
