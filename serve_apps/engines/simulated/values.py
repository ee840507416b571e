"""The least JSON value that fits a schema, checked against it.

A schema comes from a client: how much work it makes is bounded, and its patterns are carried out by
`patterns`, never by a matcher, which a pattern can keep busy for ever.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from math import ceil, floor, inf
from typing import Any

from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
from jsonschema.exceptions import SchemaError, ValidationError  # type: ignore[import-untyped]
from jsonschema.validators import extend  # type: ignore[import-untyped]
from referencing.exceptions import Unresolvable

from serve_apps.engines.simulated.patterns import Unfitting, least_match

DEEPEST = 40
"""Levels of a schema that refers to itself."""

MOST_STEPS = 5_000
"""Schemas looked at for one value, and references followed to check it."""

MOST_REPEATED = 10_000
"""Characters, items or properties that a schema may demand."""


UNREAD = {"patternProperties", "$dynamicRef", "not", "if", "dependentSchemas", "unevaluatedProperties"}
"""Keywords that nothing is made for."""


def least_json(schema: Mapping[str, Any]) -> str:
    """JSON that fits. Unfitting says why there is none here."""
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
    """A validator whose work is bounded, and that leaves patterns to the one who made the value."""
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
    """The least value of a schema, whose references are those of `root`."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root, self._left = root, MOST_STEPS

    def of(self, schema: Any, depth: int = 0) -> Any:  # noqa: ANN401 - JSON
        """A value that fits as far as is looked at here."""
        if not isinstance(schema, Mapping):
            return {}
        self._left -= 1
        if depth > DEEPEST or self._left < 0:
            raise Unfitting("it goes on and on")
        if unread := schema.keys() & UNREAD:
            raise Unfitting(f"{min(unread)} is not read here")
        if "$ref" in schema:
            return self.of({**self._referred(schema["$ref"]), **_without(schema, "$ref")}, depth + 1)
        if "const" in schema or schema.get("enum"):
            return schema["const"] if "const" in schema else schema["enum"][0]
        if schema.get("allOf"):
            return self.of(self._together(schema), depth + 1)
        several = next((name for name in ("anyOf", "oneOf") if schema.get(name)), None)
        return self._typed(schema, depth) if several is None else self._alternative(schema, several, depth)

    def _typed(self, schema: Mapping[str, Any], depth: int) -> Any:  # noqa: ANN401 - JSON
        given = schema.get("type")
        kind = given[0] if isinstance(given, list) and given else given
        match kind or _implied(schema):
            case "object":
                return self._object(schema, depth)
            case "array":
                return self._array(schema, depth)
            case "string":
                return _string(schema)
            case "integer" | "number":
                return _number(schema, whole=kind == "integer")
            case "boolean":
                return True
            case _:
                return None

    def _alternative(self, schema: Mapping[str, Any], name: str, depth: int) -> Any:  # noqa: ANN401 - JSON
        # What ends is tried before what refers to something, which may be the schema itself.
        choices = sorted(
            schema[name], key=lambda each: "$ref" in each if isinstance(each, Mapping) else False
        )
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
            part = (
                {**self._referred(each["$ref"]), **_without(each, "$ref")} if "$ref" in each else dict(each)
            )
            properties = {**merged.get("properties", {}), **part.get("properties", {})}
            required = [*merged.get("required", []), *part.get("required", [])]
            merged = {**merged, **part, "properties": properties, "required": required}
        return merged

    def _object(self, schema: Mapping[str, Any], depth: int) -> dict[str, Any]:
        properties = schema.get("properties", {})
        least = _bounded(schema.get("minProperties", 0))
        found = {name: self.of(properties.get(name, {}), depth + 1) for name in schema.get("required", ())}
        for name in properties:
            if len(found) < least and name not in found:
                found[name] = self.of(properties[name], depth + 1)
        for at in range(least - len(found)):
            found[f"key{at}"] = self.of(schema.get("additionalProperties", {}), depth + 1)
        return found

    def _array(self, schema: Mapping[str, Any], depth: int) -> list[Any]:
        first = [self.of(each, depth + 1) for each in schema.get("prefixItems", ())]
        least = max(len(first), _bounded(schema.get("minItems", 0)))
        items = schema.get("items", {})
        values = [self.of(items, depth + 1) for _ in range(least - len(first))]
        if schema.get("uniqueItems") and len(values) > 1:
            values = self._different(items, len(values))
        return first + values

    def _different(self, items: Mapping[str, Any], count: int) -> list[Any]:
        if "enum" in items:
            return list(items["enum"][:count])
        if items.get("type") in ("integer", "number"):
            begin = self.of(items)
            return [begin + at * items.get("multipleOf", 1) for at in range(count)]
        return [f"{self.of(items)}{at}" for at in range(count)]

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
    if demanded > MOST_REPEATED:
        raise Unfitting(f"it demands {demanded} of something, and at most {MOST_REPEATED} are made")
    return int(demanded)


def _without(schema: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in schema.items() if key != name}


IMPLIED: Mapping[str, Sequence[str]] = {
    "object": ("properties", "required", "additionalProperties", "minProperties"),
    "array": ("items", "prefixItems", "minItems"),
    "string": ("pattern", "minLength", "maxLength", "format"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
}


def _implied(schema: Mapping[str, Any]) -> str:
    """The type that the other keywords are about."""
    return next((kind for kind, names in IMPLIED.items() if any(name in schema for name in names)), "string")


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
        return least_match(schema["pattern"])
    text = FORMATS.get(schema.get("format", ""), "simulated")
    least, most = _bounded(schema.get("minLength", 0)), schema.get("maxLength")
    text += "." * (least - len(text))
    return text if most is None else text[: int(most)]


def _number(schema: Mapping[str, Any], *, whole: bool) -> float:
    """The least above the lower bounds, else 0 or the greatest below the upper ones."""
    step = schema.get("multipleOf", 1)
    lows = [schema[name] for name in ("minimum", "exclusiveMinimum") if name in schema]
    highs = [schema[name] for name in ("maximum", "exclusiveMaximum") if name in schema]
    value: float = 0 if whole else 0.0
    if lows:
        value = ceil(max(lows) / step) * step
        if value <= schema.get("exclusiveMinimum", -inf):
            value += step
        if highs and value >= min(highs) and not whole and "multipleOf" not in schema:
            value = (max(lows) + min(highs)) / 2
    elif highs and min(highs) <= 0:
        value = floor(min(highs) / step) * step
        if value >= schema.get("exclusiveMaximum", inf):
            value -= step
    return value
