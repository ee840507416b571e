"""File + overrides → HeadwayConfig. Overrides are dotted keys, as command-line flags set them."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import ValidationError, create_model

from headway.config.errors import ConfigError
from headway.config.faults import describe
from headway.config.models import HeadwayConfig
from headway.config.planner import planner_model
from headway.config.reading import read_yaml

OPTIONS = "options"
"""What an error names as its source when an override, not the file, holds the fault."""

DEFAULTS: Mapping[str, Any] = {}


def load_config(path: str | Path | None = None, overrides: Mapping[str, Any] = DEFAULTS) -> HeadwayConfig:
    """Settings from a YAML file (None: the defaults) with overrides such as `{"slo.ttft_ms": 200}`.

    An override of None means "not given". An override of a key below `pools.mixed` or `pools.prefill`
    adds that pool. ConfigError has one line: source, dotted key, what is wrong.
    """
    source = str(path) if path is not None else OPTIONS
    tree = read_yaml(Path(path)) if path is not None else {}
    given = {key: value for key, value in overrides.items() if value is not None}
    for key, value in given.items():
        tree = _with(tree, key, value)
    try:
        return HeadwayConfig.model_validate(tree)
    except ValidationError as error:
        key, fault = describe(error, json_schema())
        named = OPTIONS if any(_under(key, override) for override in given) else source
        raise ConfigError(f"{named}: {key}: {fault}" if key else f"{named}: {fault}") from error


@cache
def json_schema() -> dict[str, Any]:
    """The JSON schema of the configuration file."""
    planner = planner_model()
    whole = create_model(
        "HeadwayConfig", __base__=HeadwayConfig, __doc__=HeadwayConfig.__doc__, planner=(planner, planner())
    )
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **whole.model_json_schema()}


def _with(tree: Mapping[str, Any], key: str, value: Any) -> dict[str, Any]:  # noqa: ANN401 - any setting
    head, _, rest = key.partition(".")
    if not rest:
        return {**tree, head: value}
    below = tree.get(head)
    return {**tree, head: _with(below if isinstance(below, Mapping) else {}, rest, value)}


def _under(key: str, override: str) -> bool:
    return key == override or key.startswith(override + ".")
