"""The queries of examples/observability, as Prometheus would get them."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

EXAMPLES = Path(__file__).parents[2] / "examples" / "observability"
VARIABLES = {"$namespace": ".*", "$__range": "5m", "$__rate_interval": "20s"}


class Query(NamedTuple):
    """A query of a panel, with its dashboard's and the panel's name."""

    dashboard: str
    panel: str
    expression: str


def dashboards() -> dict[str, dict[str, Any]]:
    """The committed dashboards by name."""
    files = sorted((EXAMPLES / "dashboards").glob("*.json"))
    return {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in files}


def queries(model: str) -> Iterator[Query]:
    """All queries of all panels, of this model."""
    for name, dashboard in dashboards().items():
        for panel in dashboard["panels"]:
            for target in panel.get("targets", ()):
                expression = target["expr"]
                for variable, value in {**VARIABLES, "$model": model}.items():
                    expression = re.sub(re.escape(variable) + r"\b", value, expression)
                yield Query(name, panel["title"], expression)


def rules() -> list[dict[str, Any]]:
    """The recording and alert rules."""
    groups = yaml.safe_load((EXAMPLES / "rules.yaml").read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def need_promtool() -> str:
    """The binary, which comes with Prometheus; without it the test is skipped."""
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool (Debian: prometheus) is not installed")
    return promtool
