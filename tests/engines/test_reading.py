"""Bodies to what is asked: what is accepted, and that what is wrong is said by name."""

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_apps.engines.answering.fields import PATHS
from serve_apps.engines.answering.reading import BEYOND, ParsedRequest, read_call
from serve_apps.engines.protocol import ClientCall, Refused

USER = {"role": "user", "content": "Hi"}


def read(path: str, body: bytes) -> ParsedRequest:
    return read_call(ClientCall(path, body, False, False))


def completion(**fields: Any) -> ParsedRequest:
    return read("/v1/completions", json.dumps({"model": "m", "prompt": "Hi"} | fields).encode())


def chat(**fields: Any) -> ParsedRequest:
    return read("/v1/chat/completions", json.dumps({"model": "m", "messages": [USER]} | fields).encode())


def response(**fields: Any) -> ParsedRequest:
    return read("/v1/responses", json.dumps({"model": "m", "input": "Hi"} | fields).encode())


def said(refused: Refused) -> tuple[str, str]:
    """The field that is named, and the message."""
    error = json.loads(refused.body)["error"]
    assert refused.status == 400
    return error["param"], error["message"]


WRONG_IN_BOTH = [
    ({"model": 5}, "model"),
    ({"temperature": -0.1}, "temperature"),
    ({"temperature": "1"}, "temperature"),
    ({"temperature": True}, "temperature"),
    ({"top_p": 1.1}, "top_p"),
    ({"presence_penalty": 2.1}, "presence_penalty"),
    ({"frequency_penalty": -2.1}, "frequency_penalty"),
    ({"seed": 2**63}, "seed"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": 1.0}, "max_tokens"),
    ({"stream": 1}, "stream"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
    ({"stop": ["a", 5]}, "stop"),
    ({"stop": ["a"] * 17}, "stop"),
    ({"stop": ["a", ""]}, "stop"),
    ({"stop": "x" * 1025}, "stop"),
    ({"user": 5}, "user"),
    ({"n": True}, "n"),
    ({"n": 2}, "n"),
]

WRONG_COMPLETIONS = [
    ({"prompt": None}, "prompt"),
    ({"prompt": 5}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": [[]]}, "prompt"),
    ({"prompt": ["a", "b"]}, "prompt"),
    ({"prompt": [1, "a"]}, "prompt"),
    ({"prompt": [True]}, "prompt"),
    ({"prompt": [2**32]}, "prompt"),
    ({"best_of": 2}, "best_of"),
    ({"suffix": "x"}, "suffix"),
    ({"logprobs": 21}, "logprobs"),
    ({"echo": True, "logprobs": 1}, "echo"),
]

WRONG_CHATS = [
    ({"messages": None}, "messages"),
    ({"messages": []}, "messages"),
    ({"messages": ["Hi"]}, "messages[0]"),
    ({"messages": [{"role": "robot", "content": "Hi"}]}, "messages[0].role"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content"),
    ({"max_completion_tokens": 0}, "max_completion_tokens"),
    ({"tools": [{"type": "function"}]}, "tools[0].function"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
    ({"tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice"),
    ({"response_format": {"type": "json_schema"}}, "response_format"),
    ({"structured_outputs": {"grammar": "root ::= x"}}, "structured_outputs.grammar"),
    ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"tool_choice": "auto"}, "tool_choice"),
    ({"function_call": "auto"}, "function_call"),
    ({"top_logprobs": 5}, "top_logprobs"),
]


WRONG_RESPONSES = [
    ({"input": None}, "input"),
    ({"input": [5]}, "input"),
    ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input"),
    ({"previous_response_id": "x"}, "previous_response_id"),
    ({"background": True}, "background"),
    ({"max_output_tokens": 0}, "max_output_tokens"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
]


@pytest.mark.parametrize(
    ("ask", "fields", "param"),
    [
        *((completion, *case) for case in [*WRONG_IN_BOTH, *WRONG_COMPLETIONS]),
        *((chat, *case) for case in [*WRONG_IN_BOTH, *WRONG_CHATS]),
        *((response, *case) for case in WRONG_RESPONSES),
    ],
)
def test_what_is_wrong_is_named(ask, fields, param):
    with pytest.raises(Refused) as raised:
        ask(**fields)
    named, message = said(raised.value)
    assert named == param
    assert param in message


def test_values_that_ask_for_nothing_are_accepted():
    nothing = {name: values[-1] for name, values in BEYOND.items()}
    assert completion(**nothing).prompt == "Hi"
    assert chat(**nothing).sampling == {}


def test_fields_that_nobody_knows_are_passed_over():
    assert chat(unheard_of=1, priority=3, cache_salt="x", vllm_xargs={}) == chat()


def test_null_is_the_same_as_nothing():
    names = "stream stream_options max_tokens temperature top_p seed user n logprobs stop presence_penalty"
    nothing = dict.fromkeys(names.split())
    assert completion(**nothing) == completion()
    assert chat(**nothing, tools=None, tool_choice=None, response_format=None) == chat()


def test_one_stop_string_and_several():
    assert [completion(stop=given).stops for given in ("a", ["a", "b"], [])] == [("a",), ("a", "b"), ()]


TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


def test_a_tool_is_chosen_as_in_openai():
    assert chat().tool_choice == "none"
    assert chat(tools=[TOOL]).tool_choice == "auto"
    assert chat(tools=[TOOL], tool_choice="required").tool_choice == "required"
    assert (
        chat(tools=[TOOL], tool_choice={"type": "function", "function": {"name": "look"}}).tool_choice
        == "look"
    )
    assert response(tools=[{"type": "function", "name": "look"}], tool_choice="none").tool_choice == "none"


def test_what_is_more_than_text_is_named():
    assert chat(tools=[TOOL], logit_bias={"5": 1}).beyond_text is None
    assert chat(tools=[TOOL], tool_choice="required").beyond_text == "tool_choice"
    assert chat(response_format={"type": "json_object"}).beyond_text == "response_format"
    assert completion(logprobs=0).beyond_text == "logprobs"
    assert response(text={"format": {"type": "json_schema", "schema": {}}}).beyond_text == "text.format"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
FIELDS = [
    *(
        "model",
        "prompt",
        "messages",
        "input",
        "stop",
        "stream",
        "stream_options",
        "seed",
        "tools",
        "n",
        "text",
    ),
    *("tool_choice", "response_format", "structured_outputs", "logprobs", "top_logprobs", "instructions"),
]


@given(st.dictionaries(st.sampled_from(FIELDS) | st.text(max_size=8), json_values, max_size=6))
def test_any_object_is_asked_or_refused(fields):
    for path in PATHS:
        with contextlib.suppress(Refused):
            assert read(path, json.dumps(fields).encode()).api == PATHS[path]


@given(st.binary(max_size=40) | st.just(b"[1]"))
def test_what_is_no_object_is_refused(body):
    for path in PATHS:
        with pytest.raises(Refused):
            read(path, body)
