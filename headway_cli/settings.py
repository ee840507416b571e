"""`headway schema` and `headway set`: the keys of a configuration file, and changes while a planner runs."""

import json
from collections.abc import Iterable
from typing import Annotated, Any

from headway.config import json_schema
from headway_cli.control import KEY_VARIABLE, KeyVariable, UrlOption, client
from headway_cli.errors import CliError
from headway_cli.flags import argument


def schema() -> None:
    """Print the JSON schema of the configuration file."""
    print(json.dumps(json_schema(), indent=2))


def set_(
    changes: Annotated[
        list[str], argument("KEY=VALUE...", "Such as slo.ttft_ms=250 planner.max_gpu_budget=null.")
    ],
    *,
    url: UrlOption = None,
    api_key_env: KeyVariable = KEY_VARIABLE,
) -> None:
    """Change settings of a running planner: SLO, GPU budget, minimum and maximum replicas."""
    answer = client(url, api_key_env).patch("/v1/control/settings", parse_changes(changes))
    print(json.dumps(answer, indent=1))


def parse_changes(pairs: Iterable[str]) -> dict[str, Any]:
    """A value is JSON where it reads as JSON (numbers, true, null), text otherwise."""
    changes: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = (part.strip() for part in pair.partition("="))
        if not (key and equals and text):
            raise CliError(f"expected KEY=VALUE such as slo.ttft_ms=250, got {pair!r}")
        if key in changes:
            raise CliError(f"{key} is given twice")
        try:
            changes[key] = json.loads(text, parse_constant=_refuse)
        except ValueError:
            changes[key] = text
    return changes


def _refuse(name: str) -> None:
    raise ValueError(name)
