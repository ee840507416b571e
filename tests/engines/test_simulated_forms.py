"""JSON that fits schemas, texts that fit patterns, that neither keeps an engine busy; auxiliary calls."""

import base64
import contextlib
import json
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic import BaseModel, Field

from serve_apps.engines.protocol import AuxiliaryCall
from serve_apps.engines.simulated.content import answer_auxiliary
from serve_apps.engines.simulated.values import LONGEST, Unfitting, simplest_json, simplest_match


class Leaf(BaseModel):
    word: str = Field(min_length=20, max_length=30)
    share: float = Field(gt=0, lt=1)
    kind: str = Field(pattern=r"^[a-z]{2}-\d+$")


class Node(BaseModel):
    leaf: Leaf
    others: list["Node"] = Field(min_length=0)
    more: "Node | None"
    counts: list[int] = Field(min_length=3)


@pytest.mark.parametrize(
    "schema",
    [
        Node.model_json_schema(),
        {},
        {"type": "object", "minProperties": 2},
        {"type": ["integer", "null"], "exclusiveMinimum": 4, "multipleOf": 3},
        {"type": "number", "maximum": -2.5},
        {"type": "integer", "exclusiveMaximum": 0},
        {"enum": [{"a": [1]}]},
        {"type": "array", "prefixItems": [{"type": "string"}, {"type": "boolean"}], "items": False},
        {"allOf": [{"required": ["a"]}, {"properties": {"a": {"type": "integer", "minimum": 7}}}]},
        {"oneOf": [{"type": "string", "format": "date"}, {"type": "null"}]},
        {"properties": {"x": {}}, "required": ["x"]},
    ],
)
def test_what_is_made_fits(schema: dict[str, Any]):
    Draft202012Validator(schema).validate(json.loads(simplest_json(schema)))


def doubling(levels: int) -> dict[str, Any]:
    """A schema whose value has 2 ** levels leaves."""
    parts = {
        f"d{at}": {
            "type": "object",
            "required": ["a", "b"],
            "properties": {name: {"$ref": f"#/$defs/d{at + 1}"} for name in "ab"},
        }
        for at in range(levels)
    }
    return {"$ref": "#/$defs/d0", "$defs": {**parts, f"d{levels}": {"type": "null"}}}


def all_of(levels: int) -> dict[str, Any]:
    """A schema that is checked in 2 ** levels steps."""
    parts = {f"d{at}": {"allOf": [{"$ref": f"#/$defs/d{at + 1}"}] * 2} for at in range(levels)}
    return {"$ref": "#/$defs/d0", "$defs": {**parts, f"d{levels}": {"type": "object"}}}


@pytest.mark.parametrize(
    "schema",
    [
        doubling(30),
        all_of(30),
        {"$ref": "#"},
        {"$ref": "#/$defs/none"},
        {"$ref": "https://example.com/schema"},
        {"type": "string", "minLength": LONGEST + 1},
        {
            "type": "array",
            "items": {"type": "array", "items": {"type": "array", "minItems": 9999}, "minItems": 9999},
            "minItems": 9999,
        },
        {"type": "integer", "minimum": 5, "maximum": 4},
        {"type": "number", "multipleOf": 0},
        {"type": "nonsense"},
        {"not": {}},
        {"type": "array", "items": {"type": "integer"}, "minItems": 4, "uniqueItems": True},
        {"type": "string", "pattern": "("},
        {"type": "string", "pattern": "a{99999}"},
    ],
)
def test_what_fits_nothing_or_never_ends_is_refused(schema: dict[str, Any]):
    with pytest.raises(Unfitting):
        simplest_json(schema)


@pytest.mark.parametrize(
    "pattern",
    [r"\d{3}-[a-z]+", r"^(yes|no)$", r"\w\W\S\D[\d-]", r"a{2,5}?b?c*d+", r"^[A-F0-9]{8}\.$", r"[\]x]\\."],
)
def test_what_a_pattern_makes_matches_it(pattern: str):
    assert re.fullmatch(pattern, simplest_match(pattern))


@pytest.mark.parametrize(
    "pattern", ["a|b", "(ab)+", "[^a]", r"(a)\1", "a(?=b)c", r"\bword", "a$b", "(?i)a", "a++"]
)
def test_a_pattern_that_is_not_simple_is_refused_by_name(pattern: str):
    with pytest.raises(Unfitting, match=r"^simulated engines make no text for the pattern"):
        simplest_match(pattern)


@pytest.mark.parametrize("pattern", ["(", "[", "[b-a]", "a{2,1}"])
def test_what_is_no_pattern_is_refused(pattern: str):
    with pytest.raises(Unfitting, match=r"^the pattern can't be read: "):
        simplest_match(pattern)


@pytest.mark.filterwarnings("ignore:Possible:FutureWarning")
@given(st.text("ab0^$.[]\\d{}2,*+?|()-", max_size=12))
def test_any_pattern_is_matched_or_refused(pattern: str):
    with contextlib.suppress(Unfitting):
        assert re.fullmatch(pattern, simplest_match(pattern))


def auxiliary(path: str, **fields: Any) -> tuple[int, Any]:
    status, body = answer_auxiliary(AuxiliaryCall("POST", path, json.dumps(fields).encode()), ["m"], 1000)
    return status, json.loads(body)


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=40))
def test_token_ids_become_their_text_again(text: str):
    """Text with NUL is left out: NUL pads the last id."""
    status, made = auxiliary("/tokenize", prompt=text, return_token_strs=True)
    assert (status, made["count"]) == (200, -(-len(text.encode()) // 4))
    assert auxiliary("/detokenize", tokens=made["tokens"])[1]["prompt"] == text


def test_vectors_have_their_length_and_are_the_same_for_the_same_text():
    _, said = auxiliary("/v1/embeddings", input=["a", "b", "a"], dimensions=100)
    first, second, third = (entry["embedding"] for entry in said["data"])
    assert len(first) == 100
    assert sum(value * value for value in first) == pytest.approx(1)
    assert first == third != second
    assert said["usage"]["prompt_tokens"] == 3
    _, packed = auxiliary("/v1/embeddings", input="a", dimensions=100, encoding_format="base64")
    floats = np.frombuffer(base64.b64decode(packed["data"][0]["embedding"]), np.float32)
    assert floats == pytest.approx(first)


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/v1/embeddings", {}, "input"),
        ("/v1/embeddings", {"input": []}, "input"),
        ("/v1/embeddings", {"input": ["a", 5]}, "input"),
        ("/v1/embeddings", {"input": "a", "dimensions": 0}, "dimensions"),
        ("/v1/embeddings", {"input": "a", "encoding_format": "hex"}, "encoding_format"),
        ("/v1/embeddings", {"input": "a", "model": "other"}, "model"),
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"messages": 5}, "messages"),
        ("/detokenize", {"tokens": ["a"]}, "tokens"),
    ],
)
def test_what_is_wrong_with_a_question_is_named(path: str, fields: dict[str, Any], param: str):
    status, said = auxiliary(path, **fields)
    assert (status, said["error"]["param"]) == (400, param)
