"""Each setting is worth its place: an example, a how-to page or a test uses it."""

import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from headway.config import ConfigError, json_schema, load_config
from headway.config.base import REMOVED

ROOT = Path(__file__).parent.parent
GUIDES = ("examples/**/*.yaml", "docs/*.md", "docs/howto/*.md", "tests/**/test_*.py")
"""Where uses are looked for. docs/reference is made from the settings, and so shows no use."""

ANY_NAME = "NAME"


def settings(node: Mapping[str, Any], *place: str) -> Iterator[tuple[str, ...]]:
    """The places of all keys that hold a value; names that users choose are ANY_NAME."""
    below = [(place, shape) for shape in shapes(node)]
    for shape in shapes(node):
        below += [
            ((*place, name), each) for name, child in shape.get("properties", {}).items() for each in [child]
        ]
        for many in (shape.get("additionalProperties"), shape.get("items")):
            if isinstance(many, dict) and any("properties" in each for each in shapes(many)):
                below.append(((*place, ANY_NAME), many))
    deeper = [(where, child) for where, child in below if where != place]
    if not deeper:
        yield place
    for where, child in deeper:
        yield from settings(child, *where)


def shapes(node: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The forms that a value may have."""
    if "$ref" in node:
        yield from shapes(json_schema()["$defs"][node["$ref"].rpartition("/")[2]])
        return
    yield node
    for form in node.get("anyOf", ()):
        yield from shapes(form)


KEYS = tuple(dict.fromkeys(settings(json_schema())))


@cache
def texts() -> tuple[tuple[str, str], ...]:
    """Each file's text, and the same without case and underscores: models are named for their sections."""
    paths = (path for pattern in GUIDES for path in sorted(ROOT.glob(pattern)) if path != Path(__file__))
    found = (path.read_text(encoding="utf-8") for path in paths)
    return tuple((text, text.lower().replace("_", "")) for text in found)


@pytest.mark.parametrize("key", KEYS, ids=".".join)
def test_a_setting_is_used_by_an_example_a_guide_or_a_test(key: tuple[str, ...]):
    *sections, name = [part for part in key if part != ANY_NAME]
    section = sections[-1].replace("_", "") if sections else ""
    use = re.compile(rf"(?<![a-z_])(?:\w+__)?{name}['\"]?\s*[:=]|\.{name}\b|`{name}`")
    assert any(section in folded and use.search(text) for text, folded in texts()), f"nothing uses {key}"


@pytest.mark.parametrize("key", REMOVED)
def test_a_removed_setting_says_what_holds_in_its_place(key: str):
    with pytest.raises(ConfigError) as caught:
        load_config(None, {key: 1})
    assert str(caught.value) == f"options: {key}: is no longer a setting; it is always {REMOVED[key]}"
