"""Bodies to requests: what is accepted, and that what is wrong is said by name."""

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_apps.gateway.backend import InvalidRequest
from serve_apps.gateway.request import GenerationRequest
from serve_apps.gateway.validation import CHAT, COMPLETION, read_chat, read_completion

USER = {"role": "user", "content": "Hi"}


def completion(**fields: Any) -> GenerationRequest:
    return read_completion(json.dumps({"model": "m", "prompt": "Hi"} | fields).encode())


def chat(**fields: Any) -> GenerationRequest:
    return read_chat(json.dumps({"model": "m", "messages": [USER]} | fields).encode())


WRONG_IN_BOTH = [
    ({"model": None}, "model"),
    ({"model": 5}, "model"),
    ({"temperature": -0.1}, "temperature"),
    ({"temperature": "1"}, "temperature"),
    ({"temperature": True}, "temperature"),
    ({"top_p": 1.1}, "top_p"),
    ({"presence_penalty": 2.1}, "presence_penalty"),
    ({"frequency_penalty": -2.1}, "frequency_penalty"),
    ({"seed": 1.5}, "seed"),
    ({"seed": 2**63}, "seed"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": 1.0}, "max_tokens"),
    ({"max_tokens": True}, "max_tokens"),
    ({"stream": "true"}, "stream"),
    ({"stream": 1}, "stream"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
    ({"stream": True, "stream_options": {"other": True}}, "stream_options.other"),
    ({"stop": 5}, "stop"),
    ({"stop": ["a", 5]}, "stop"),
    ({"stop": ["a"] * 5}, "stop"),
    ({"stop": ""}, "stop"),
    ({"stop": ["a", ""]}, "stop"),
    ({"stop": "x" * 1025}, "stop"),
    ({"user": 5}, "user"),
    ({"n": 2}, "n"),
    ({"n": True}, "n"),
    ({"logit_bias": {"5": 1}}, "logit_bias"),
    ({"logprobs": True}, "logprobs"),
    ({"unheard_of": 1}, "unheard_of"),
]

WRONG_COMPLETIONS = [
    ({"prompt": None}, "prompt"),
    ({"prompt": 5}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": ["a", "b"]}, "prompt"),
    ({"prompt": [[1], [2]]}, "prompt"),
    ({"prompt": [[]]}, "prompt"),
    ({"prompt": [1, "a"]}, "prompt"),
    ({"prompt": [1, 2.0]}, "prompt"),
    ({"prompt": [True]}, "prompt"),
    ({"prompt": [-1]}, "prompt"),
    ({"prompt": [2**31]}, "prompt"),
    ({"prompt": [[["a"]]]}, "prompt"),
    ({"best_of": 2}, "best_of"),
    ({"logprobs": 0}, "logprobs"),
    ({"echo": True}, "echo"),
    ({"suffix": "x"}, "suffix"),
    ({"messages": [USER]}, "messages"),
    ({"max_completion_tokens": 5}, "max_completion_tokens"),
]

WRONG_CHATS = [
    ({"messages": None}, "messages"),
    ({"messages": []}, "messages"),
    ({"messages": "Hi"}, "messages"),
    ({"messages": ["Hi"]}, "messages[0]"),
    ({"messages": [USER, {"role": "user"}]}, "messages[1].content"),
    ({"messages": [{"content": "Hi"}]}, "messages[0].role"),
    ({"messages": [{"role": "robot", "content": "Hi"}]}, "messages[0].role"),
    ({"messages": [{"role": "tool", "content": "Hi", "tool_call_id": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": ["Hi"]}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content"),
    (
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "a", "x": 1}]}]},
        "messages[0].content",
    ),
    ({"messages": [USER | {"unheard_of": 1}]}, "messages[0].unheard_of"),
    ({"messages": [{"role": "assistant", "content": "", "tool_calls": [{}]}]}, "messages[0].tool_calls"),
    ({"max_tokens": 5, "max_completion_tokens": 5}, "max_tokens"),
    ({"max_completion_tokens": 0}, "max_completion_tokens"),
    ({"tools": [{"type": "function"}]}, "tools"),
    ({"tools": []}, "tools"),
    ({"tool_choice": "auto"}, "tool_choice"),
    ({"functions": []}, "functions"),
    ({"function_call": "auto"}, "function_call"),
    ({"response_format": {"type": "json_object"}}, "response_format"),
    ({"audio": {"voice": "x"}}, "audio"),
    ({"modalities": ["text", "audio"]}, "modalities"),
    ({"top_logprobs": 5}, "top_logprobs"),
    ({"store": True}, "store"),
    ({"metadata": {"k": 5}}, "metadata.k"),
    ({"metadata": {str(at): "v" for at in range(17)}}, "metadata"),
    ({"prompt": "Hi"}, "prompt"),
    ({"best_of": 1}, "best_of"),
]


@pytest.mark.parametrize(("fields", "param"), [*WRONG_IN_BOTH, *WRONG_COMPLETIONS])
def test_what_is_wrong_in_a_completion_is_named(fields, param):
    with pytest.raises(InvalidRequest) as raised:
        completion(**fields)
    assert raised.value.param == param
    assert param in str(raised.value)


@pytest.mark.parametrize(("fields", "param"), [*WRONG_IN_BOTH, *WRONG_CHATS])
def test_what_is_wrong_in_a_chat_is_named(fields, param):
    with pytest.raises(InvalidRequest) as raised:
        chat(**fields)
    assert raised.value.param == param
    assert param in str(raised.value)


@pytest.mark.parametrize("part", ["image_url", "input_audio", "file", "refusal"])
def test_parts_that_are_no_text_are_refused_by_their_type(part):
    content = [{"type": "text", "text": "See "}, {"type": part, part: {}}]
    with pytest.raises(InvalidRequest, match=f"part 1 is of type '{part}'") as raised:
        chat(messages=[{"role": "user", "content": content}])
    assert raised.value.param == "messages[0].content"


def test_values_that_ask_for_nothing_are_accepted():
    assert completion(**{name: values[-1] for name, values in COMPLETION.items()}).prompt == "Hi"
    assert chat(**{name: values[-1] for name, values in CHAT.items()}).sampling == {}


def test_null_is_the_same_as_nothing():
    names = ["stream", "stream_options", "max_tokens", "stop", "temperature", "top_p", "seed", "user"]
    nothing = dict.fromkeys([*names, "frequency_penalty", "presence_penalty"])
    assert completion(**nothing) == completion()
    assert chat(**nothing, metadata=None, max_completion_tokens=None) == chat()


def test_one_stop_string_and_several():
    assert completion(stop="a").stop == ("a",)
    assert completion(stop=["a", "b", "c", "d"]).stop == ("a", "b", "c", "d")
    assert completion(stop=[]).stop == ()


def test_an_object_is_wanted():
    with pytest.raises(InvalidRequest, match="JSON object"):
        read_completion(b"[1]")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
field_names = st.sampled_from(
    ["model", "prompt", "messages", "stop", "stream", "stream_options", "seed", "tools", "n"]
)


@given(st.dictionaries(field_names | st.text(max_size=8), json_values, max_size=6))
def test_any_object_is_a_request_or_invalid(fields):
    for read in (read_completion, read_chat):
        with contextlib.suppress(InvalidRequest):
            assert isinstance(read(json.dumps(fields).encode()).prompt, str | list)


@given(st.lists(json_values, min_size=1, max_size=3))
def test_what_is_no_message_is_named(messages):
    with pytest.raises(InvalidRequest) as raised:
        chat(messages=[USER, *messages])
    assert raised.value.param is not None
    assert raised.value.param.startswith("messages[")


@given(st.binary(max_size=40))
def test_any_bytes_are_a_request_or_invalid(body):
    for read in (read_completion, read_chat):
        with pytest.raises(InvalidRequest):
            read(body)
