"""docs/reference.md names every verb, flag, configuration key and result key there is."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from headway.config import json_schema
from headway.simulation import report
from headway.workload import known_formats, known_generators
from headway_cli import compare_routings
from headway_cli.app import STUDIES, VERBS, load_verb


def _values(module: ModuleType) -> Iterator[type[Any]]:
    """The dataclasses of a module that are written as JSON."""
    for kind in vars(module).values():
        if is_dataclass(kind) and kind.__module__ == module.__name__ and kind.__name__ != "RoutingComparison":
            yield kind


TEXT = (Path(__file__).parents[2] / "docs" / "reference.md").read_text(encoding="utf-8")


def test_verbs_and_flags() -> None:
    for name, summary in {**VERBS, **STUDIES}.items():
        command = load_verb(name)
        assert f"headway {name}" in TEXT
        assert summary == " ".join(command.help.split("\n\n")[0].split())
        flags = {name for option in command.params for name in option.opts if name.startswith("--")}
        assert not {flag for flag in flags - {"--help"} if not re.search(rf"{flag}\b", TEXT)}


def test_configuration_keys() -> None:
    schema = json_schema()
    keys = set(_keys(schema, schema, ""))
    assert "planner.threshold.target_ongoing.decode" in keys
    assert not {key for key in keys if f"`{key}`" not in TEXT}


@pytest.mark.parametrize(
    "kind", [*_values(report), *_values(compare_routings)], ids=lambda kind: kind.__name__
)
def test_result_keys(kind: type[Any]) -> None:
    assert not {item.name for item in fields(kind) if f"`{item.name}`" not in TEXT}


def test_formats_and_generators() -> None:
    assert all(f"| {name} |" in TEXT for name in known_formats())
    assert all(f"| `{name}` |" in TEXT for name in known_generators())


def _keys(schema: Mapping[str, Any], node: Mapping[str, Any], prefix: str) -> Iterator[str]:
    for key, value in node.get("properties", {}).items():
        name = value.get("$ref", "").rsplit("/", 1)[-1]
        if name:
            yield from _keys(schema, schema["$defs"][name], f"{prefix}{key}.")
        else:
            yield prefix + key


def test_nothing_is_told_twice() -> None:
    headings = [line for line in TEXT.splitlines() if line.startswith("#")]
    assert len(headings) == len(set(headings))
    keys = re.findall(r"^\| (`[a-z_.A-Z]+`).* \| .* \| .* \|$", TEXT.partition("## Configuration")[2], re.M)
    assert len(keys) == len(set(keys))
