"""docs/reference names every verb, flag, setting and key of a result; pages name none that is not."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from docs import generate
from headway.config import json_schema
from headway.simulation import report
from headway.workload import known_formats, known_generators
from headway_cli import compare_routings
from headway_cli.app import VERBS, load_verb
from tests.test_docs import FENCED, current


def _values(module: ModuleType) -> Iterator[type[Any]]:
    """The dataclasses of a module that are written as JSON."""
    for kind in vars(module).values():
        if is_dataclass(kind) and kind.__module__ == module.__name__ and kind.__name__ != "RoutingComparison":
            yield kind


COMMAND = re.compile(
    r"(?:^ *(?:\$ )?(?:\w+=\S+ )*|[;&|(`/] ?)headway ((?:[^\n`;&|#>\\]|\\\n)+)", re.MULTILINE
)
REFERENCE = sorted((Path(__file__).parents[2] / "docs" / "reference").glob("*.md"))
TEXT = "\n".join(page.read_text(encoding="utf-8") for page in REFERENCE)


def test_the_pages_are_as_the_code_makes_them() -> None:
    """`python -m docs.generate` writes them."""
    made = generate.pages()
    assert len(made) == len(REFERENCE) > 5
    stale = [page.name for page, text in made.items() if page.read_text(encoding="utf-8") != text]
    assert not stale


def test_verbs_and_flags() -> None:
    for name, summary in VERBS.items():
        command = load_verb(name)
        assert f"## {name}\n" in TEXT
        assert summary == " ".join(command.help.split("\n\n")[0].split())
        flags = {name for option in command.params for name in option.opts if name.startswith("--")}
        assert not {flag for flag in flags - {"--help"} if not re.search(rf"{flag}\b", TEXT)}


def test_configuration_keys() -> None:
    schema = json_schema()
    keys = set(_keys(schema, schema, ""))
    assert "planner.threshold.target_ongoing.decode" in keys
    assert not {key for key in keys if f"`{key}`" not in TEXT}


def test_every_key_has_a_meaning_and_no_key_comes_twice() -> None:
    table = next(page for page in REFERENCE if page.name == "settings.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`[\w.\[\]]+`) \| (.*) \| (.*) \| (.*) \|$", table, re.M)
    assert len(rows) > 150
    assert not [row for row in rows if not all(cell.strip() for cell in row)]
    assert len({key for key, *_ in rows}) == len(rows)


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


@pytest.mark.parametrize("page", REFERENCE, ids=lambda page: page.name)
def test_no_heading_comes_twice_on_a_page(page: Path) -> None:
    headings = re.findall(r"^#.*", page.read_text(encoding="utf-8"), re.M)
    assert len(headings) == len(set(headings)) > 0


@current
def test_commands_have_verbs_and_flags_that_there_are(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    shown = [*FENCED.findall(text), *re.findall(r"`[^`\n]+`", FENCED.sub("", text))]
    commands = [found.replace("\\\n", " ").split() for part in shown for found in COMMAND.findall(part)]
    wrong = [
        " ".join(words)
        for verb, *words in commands
        if verb in VERBS and {word.partition("=")[0] for word in words if word.startswith("--")} - flags(verb)
    ]
    assert not wrong
    assert not [
        words for words in commands if words[0] not in VERBS and re.fullmatch("[a-z][a-z-]*", words[0])
    ]


def flags(verb: str) -> set[str]:
    """The flags of a verb and of those below it."""
    command = load_verb(verb)
    below = getattr(command, "commands", {}).values()
    return {"--help"} | {name for each in (command, *below) for option in each.params for name in option.opts}
