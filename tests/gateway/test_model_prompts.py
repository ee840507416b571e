"""Prompts as a model's own tokenizer and template read them; the double has one id a letter."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from serve_apps.engines.protocol import ClientCall
from serve_apps.gateway.prompts import ModelPrompts, PlainPrompts, Read, messages_of, tools_of
from serve_apps.gateway.reading import GenerationRequest

BEGIN = 0


class Letters:
    """Id 0 begins a text; a letter is its code."""

    def __init__(self, begins: bool = True) -> None:
        self._begin = [BEGIN] if begins else []

    def __len__(self) -> int:
        return 128

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return (self._begin if add_special_tokens else []) + [ord(letter) for letter in text]

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, str]],
        tools: object,
        add_generation_prompt: bool,
        tokenize: bool,
    ) -> str:
        assert add_generation_prompt
        assert not tokenize
        if messages[0]["role"] == "developer":
            raise ValueError("roles must\n alternate")
        return "\0" + "".join(f"{message['role'][0]}{message['content']}" for message in messages)


def read(prompts: ModelPrompts | PlainPrompts, **said: Any) -> Read:
    call = ClientCall("/v1/completions", json.dumps(said).encode(), False, False)
    return prompts.read(GenerationRequest(model="m", max_tokens=None, calls=[call], fields=said))


MODEL = ModelPrompts(Letters(), 100)
USER = {"role": "user", "content": "Hi"}


def test_text_becomes_token_ids_with_what_begins_them():
    assert read(MODEL, prompt="Hi") == ([BEGIN, ord("H"), ord("i")], 3, True)


def test_token_ids_stay():
    assert read(MODEL, prompt=[5, 127]) == ([5, 127], 2, True)


def test_the_template_brings_what_begins_a_chat():
    assert read(MODEL, messages=[USER]) == ([BEGIN, ord("u"), ord("H"), ord("i")], 4, True)


CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"days": 2}'}}


@pytest.mark.parametrize(
    ("said", "same"),
    [
        (
            {"content": [{"type": "text", "text": "Hi"}, {"type": "text", "text": "Ho"}]},
            {"content": "Hi\nHo"},
        ),
        ({"role": "assistant", "content": None}, {"role": "assistant", "content": ""}),
        ({"content": [{"type": "image_url"}]}, {"content": [{"type": "image_url"}]}),
    ],
)
def test_contents_are_as_vllm_gives_them_to_the_template(said: dict[str, Any], same: dict[str, Any]):
    assert messages_of({"messages": [USER | said]}) == [USER | same]


def test_arguments_of_calls_are_objects():
    wrong = CALL | {"function": {"name": "look", "arguments": "{"}}
    (message,) = messages_of({"messages": [{"role": "assistant", "tool_calls": [CALL, wrong]}]})
    assert [each["function"]["arguments"] for each in message["tool_calls"]] == [{"days": 2}, {}]
    assert CALL["function"] == {"name": "look", "arguments": '{"days": 2}'}


def test_items_of_a_response_are_messages():
    called = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": '{"days": 2}'}
    items = [
        USER,
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Ah"}]},
        called,
        {"type": "function_call_output", "call_id": "c1", "output": "sun"},
    ]
    asked = {"input": items, "instructions": "Be terse"}
    call = CALL | {"function": {"name": "look", "arguments": {"days": 2}}}
    assert messages_of(asked) == [
        {"role": "system", "content": "Be terse"},
        USER,
        {"role": "assistant", "content": "Ah", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "sun"},
    ]
    assert messages_of({"input": [called]})[0]["tool_calls"] == [call]
    assert read(MODEL, input="Hi") == ([BEGIN, BEGIN, ord("u"), ord("H"), ord("i")], 5, True)
    assert not read(MODEL, input=[{"type": "reasoning", "summary": []}]).certain


def test_tools_of_a_response_are_those_of_a_chat():
    tool = {"name": "look", "description": "Looks", "parameters": {}}
    chats = [{"type": "function", "function": tool}]
    assert tools_of({"input": "Hi", "tools": [{"type": "function", **tool}, {"type": "web_search"}]}) == chats
    assert tools_of({"messages": [], "tools": chats}) == chats


@pytest.mark.parametrize("said", [{"messages": [{"role": "developer", "content": "Hi"}]}, {"prompt": 5}, {}])
def test_what_the_model_cannot_read_is_estimated_and_the_engines_to_refuse(said: dict[str, Any]):
    text, tokens, certain = read(MODEL, **said)
    body = json.dumps(said)
    assert (text, tokens, certain) == (body, max(1, -(-len(body) // 4)), False)


def test_no_tokens_are_the_engines_to_refuse():
    assert not read(ModelPrompts(Letters(begins=False), None), prompt="").certain


def test_without_a_model_text_stays_text():
    prompts = PlainPrompts()
    assert read(prompts, prompt="12345678") == ("12345678", 2, True)
    assert read(prompts, prompt=[1, 2]) == ([1, 2], 2, True)
    assert read(prompts, prompt=["12345678"]) == ("12345678", 2, True)
    assert read(prompts, prompt=[[2, 3]]) == ([2, 3], 2, True)
    assert read(prompts, messages=[USER]) == ("user: Hi\nassistant:", 5, True)
    assert read(prompts, input="Hi", instructions="Be terse") == (
        "system: Be terse\nuser: Hi\nassistant:",
        9,
        True,
    )
