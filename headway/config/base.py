"""The common ground of all settings: their base model and number types, roles, and errors of one line.

Unknown keys are errors, values are frozen, numbers are finite. The number types here refuse booleans, which
Python would take for 0 and 1. Upper bounds are far beyond any deployment; they keep a slip of the keyboard
from asking for more memory or time than there is.

Pydantic's validation errors become one line: source, dotted key, what is wrong, and the nearest known key.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum
from reprlib import Repr
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ValidationError,
)
from pydantic_core import CoreSchema, ErrorDetails, PydanticCustomError, core_schema

from headway.extensions import ExtensionPoint

RoleName = Literal["prefill", "decode", "mixed"]
"""The names of roles as configuration writes them; `Role` has the same values."""

MILLISECONDS = 1e-3
MOST_REPLICAS = 1_000_000
MOST_TOKENS = 1_000_000_000


def _no_boolean(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError(f"should be a number, not {str(value).lower()}")
    return value


PositiveInt = Annotated[int, BeforeValidator(_no_boolean), Field(gt=0)]
NonNegativeInt = Annotated[int, BeforeValidator(_no_boolean), Field(ge=0)]
PositiveFloat = Annotated[float, BeforeValidator(_no_boolean), Field(gt=0)]
NonNegativeFloat = Annotated[float, BeforeValidator(_no_boolean), Field(ge=0)]
ReplicaCount = Annotated[PositiveInt, Field(le=MOST_REPLICAS)]


@dataclass(frozen=True, slots=True)
class NameOf:
    """Annotates a name that is built in or brought by an installed package; others are refused."""

    point: ExtensionPoint

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Checked when settings are read: packages are looked up then, not at import."""
        return core_schema.no_info_after_validator_function(self._known, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """All names that this installation has."""
        return {**handler(schema), "enum": list(self.point.names())}

    def _known(self, name: str) -> str:
        if name in self.point:
            return name
        *names, last = map(repr, self.point.names())
        raise PydanticCustomError("literal_error", f"Input should be {', '.join(names)} or {last}")


class Settings(BaseModel):
    """Base of all settings models."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, validate_default=True, use_attribute_docstrings=True
    )


class Role(StrEnum):
    """The phase that a replica serves, a value that planning, routing and simulation share."""

    PREFILL = "prefill"
    DECODE = "decode"
    MIXED = "mixed"


class ConfigError(ValueError):
    """A setting that cannot be used: one line that names the source, the dotted key and what is wrong.

    `faults` are such lines of all settings that cannot be used, where there are several.
    """

    def __init__(self, text: str, faults: Sequence[str] = ()) -> None:
        super().__init__(text)
        self.faults = tuple(faults)


Place = tuple[int | str, ...]

REMOVED: Mapping[str, str] = {
    "gateway.retry_after_s": "1 s",
    "gateway.max_unread_bytes": "256 MiB",
    "gateway.body_within_s": "60 s",
    "gateway.headers_within_s": "20 s",
    "gateway.taken_within_s": "60 s",
    "gateway.max_connections": "8,192",
    "gateway.request_log_per_s": "50",
    "routing.offload.overload_factor": "1.5",
    "routing.offload.prefill_throughput": "as profiled",
    "routing.offload.disruption_share": "as profiled",
    "routing.prediction.quantile": "0.9",
    "routing.prediction.use": "mean",
    "routing.queue.order": "slo",
    "routing.slo": "hold: true, ttft_weight: 0.8",
    "planner.headway.role_change_s": "off",
}
"""Keys that were settings once, and what holds in their place."""

_BRIEF = Repr()
_BRIEF.maxlevel = 3


def describe(error: ValidationError, schema: Mapping[str, Any]) -> tuple[str, str]:
    """The dotted key of the first fault, and what is wrong there (with the number of further faults)."""
    (key, fault), *rest = every_fault(error, schema)
    return key, f"{fault} (and {len(rest)} more)" if rest else fault


def every_fault(error: ValidationError, schema: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The dotted key of each fault, and what is wrong there.

    Unknown keys come first, since a misspelt key also shows as a missing one. `schema` is the JSON schema
    of the model, from which the known keys are read.
    """
    faults = sorted(error.errors(), key=lambda fault: fault["type"] != "extra_forbidden")
    return [(dotted(fault["loc"]), _explain(fault, schema)) for fault in faults]


def dotted(place: Place) -> str:
    """`('simulation', 'crashes', 0, '[key]')` → `simulation.crashes.0`."""
    return ".".join(str(part) for part in place if part != "[key]")


def _explain(fault: ErrorDetails, schema: Mapping[str, Any]) -> str:
    if fault["type"] == "extra_forbidden":
        return _unknown_key(fault["loc"], known_keys(schema, fault["loc"][:-1]))
    if "[key]" in fault["loc"]:
        # A key of a mapping whose keys are not settings: roles, or the options of a predictor.
        if fault["type"] == "literal_error":
            return f"unknown role; {_lowered(fault['msg'])}"
        return f"a key should be text, not {shown(fault['input'])}"
    if fault["type"] == "model_type":
        return f"should hold keys and values, not {shown(fault['input'])}"
    message = _lowered(fault["msg"].removeprefix("Value error, "))
    if fault["type"] in ("value_error", "missing"):
        return message
    return f"{message}, not {shown(fault['input'])}"


def _unknown_key(place: Place, known: Collection[str]) -> str:
    if value := REMOVED.get(dotted(place)):
        return f"is no longer a setting; it is always {value}"
    if not known:
        return "unknown key; none is known here"
    nearest = get_close_matches(str(place[-1]), known, n=1)
    hint = f"did you mean {nearest[0]!r}?" if nearest else f"known here: {', '.join(sorted(known))}"
    return f"unknown key; {hint}"


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
