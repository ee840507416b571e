"""A preset: the names of a system's metrics, as the file of presets and `metrics.overrides` write them.

`actors/collector/presets.yaml` holds one for each system. What stands in the overrides replaces what the
preset says, key by key; a series that is given without a name keeps its own.
"""

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, GetJsonSchemaHandler, SerializerFunctionWrapHandler, model_serializer
from pydantic_core import CoreSchema

from headway.config.base import RoleName, Settings

PresetName = Literal[
    "headway", "dynamo", "vllm", "sglang", "trtllm", "nim", "kserve", "aibrix", "llm-d", "ray-serve-llm"
]
ENGINE_PRESETS = ("vllm", "sglang", "trtllm", "nim", "kserve", "aibrix", "ray-serve-llm")
"""Presets whose metrics engines show themselves."""

Unit = Literal["s", "ms", "us", "share", "percent"]

QUANTITIES: tuple[str, ...] = (
    *("requests", "in_flight", "completed", "met", "missed", "isl", "osl", "duration", "ttft", "itl"),
    *("repeats", "queue", "cached", "running", "waiting", "kv_usage", "alive"),
    *("prompts", "prefill_time", "preemptions", "iterations", "generated", "kv_tokens"),
)


class _Given(Settings):
    """Keys of which only those that are given count."""

    @model_serializer(mode="wrap")
    def _as_given(self, serialized: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {key: value for key, value in serialized(self).items() if key in self.model_fields_set}


class SeriesSettings(_Given):
    """One series: a counter, a gauge, or the base name of a histogram."""

    name: str = ""
    also: tuple[str, ...] = ()
    """Other names of the same samples, such as those of older versions."""
    per: str = ""
    """Of a counter of tokens: the counter of requests that it is divided by, where there is no histogram."""
    labels: tuple[str, ...] = ()
    """Labels with numbers, whose product is the value; such a series needs no label of the model."""
    where: Mapping[str, str] = {}
    """Labels that its samples carry; a value that begins with ~ is a regular expression."""
    unit: Unit = "s"
    """Of times s, ms or us; of `kv_usage` share or percent."""


class _Forms:
    """Annotates the series of a quantity: a name, a series, or a list of them, which add up."""

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {**handler(schema), "type": ["array", "object", "string"]}


def _listed(given: object) -> object:
    every = given if isinstance(given, list | tuple) else [given]
    return [{"name": one} if isinstance(one, str) else one for one in every]


def _known(series: object) -> object:
    for name in series if isinstance(series, Mapping) else ():
        if name not in QUANTITIES:
            nearest = get_close_matches(str(name), QUANTITIES, n=1)
            hint = f"did you mean {nearest[0]!r}? " if nearest else ""
            raise ValueError(f"unknown quantity {name!r}; {hint}known here: {', '.join(QUANTITIES)}")
    return series


OneOrMore = Annotated[tuple[SeriesSettings, ...], BeforeValidator(_listed), _Forms()]


class PresetSettings(_Given):
    """What differs from the preset."""

    prefix: str = ""
    """What names begin with, in place of the preset's prefix, such as `acme_vllm:`."""
    path: str = "/metrics"
    """Source engines: where an engine's metrics are, unless its address says."""
    model_label: str = ""
    """The label with the model's name."""
    model: str = ""
    """The name that this label has, if it is not `model`; what begins with ~ is a regular expression."""
    any_case: bool = False
    """True: upper and lower case of the model's name are the same."""
    replicated: tuple[str, ...] = ()
    """Labels of ranks that each show the figures of their whole engine."""
    rank: str = ""
    """The label of data-parallel ranks, of which a replica has each once, at whatever addresses; empty: each
    address is one."""
    engine: bool = False
    """True: each engine shows these series, but for those of `fleet`."""
    engines: PresetName | None = None
    """The preset of the engines behind a router, for what they count of their own work; null: this one."""
    fleet: tuple[str, ...] = ()
    """Quantities that a router or gateway shows for all engines together."""
    by_model: bool = True
    """False: load is shown without the model's label."""
    role_label: str = ""
    """The label with the role of an engine; empty: all are mixed."""
    roles: Mapping[str, RoleName] = {}
    """The values of that label; empty: they are the roles' names."""
    series: Annotated[Mapping[str, OneOrMore], BeforeValidator(_known)] = {}
    """By quantity (docs/reference/measurements.md#other-names) a name, or `{name, also, per, where, unit}`;
    `requests` and `in_flight` may be lists, whose series add up."""
