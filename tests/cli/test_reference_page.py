"""docs/reference.md names every verb, flag, configuration key and result key there is."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from headway.config import json_schema, load_config
from headway.workload import known_formats, known_generators
from headway_cli.app import STUDIES, VERBS
from headway_cli.job import Job, execute

TEXT = (Path(__file__).parents[2] / "docs" / "reference.md").read_text(encoding="utf-8")


def test_verbs_and_flags() -> None:
    for verb in (*VERBS, *STUDIES):
        command = verb.load()
        assert f"headway {verb.name}" in TEXT
        assert verb.summary == " ".join(command.help.split("\n\n")[0].split())
        flags = {name for option in command.params for name in option.opts if name.startswith("--")}
        assert not {flag for flag in flags - {"--help"} if not re.search(rf"{flag}\b", TEXT)}


def test_configuration_keys() -> None:
    schema = json_schema()
    keys = set(_keys(schema, schema, ""))
    assert "planner.threshold.target_ongoing.decode" in keys
    assert not {key for key in keys if f"`{key}`" not in TEXT}


def test_result_keys() -> None:
    document = execute(Job(trace="steady:rate_rps=2,duration_s=200", config=load_config())).document()
    named = {*document, *document["trace"], *document["intervals"][0]}
    assert not {key for key in named if f"`{key}`" not in TEXT}


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
