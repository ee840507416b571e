"""Prompts as a model's own tokenizer and template read them; the double has one id a letter."""

from collections.abc import Mapping, Sequence

import pytest

from serve_apps.gateway.backend import InvalidRequest
from serve_apps.gateway.request import EstimatedTokens, GenerationRequest, Message, ModelPrompts, PlainPrompts

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
        self, messages: Sequence[Mapping[str, str]], add_generation_prompt: bool, tokenize: bool
    ) -> str:
        assert add_generation_prompt
        assert not tokenize
        if messages[0]["role"] == "developer":
            raise ValueError("roles must\n alternate")
        return "\0" + "".join(f"{message['role'][0]}{message['content']}" for message in messages)


def read(**fields) -> tuple[str | Sequence[int], int]:
    return ModelPrompts(Letters(), 100).read(GenerationRequest(model="m", **fields))


def test_text_becomes_token_ids_with_what_begins_them():
    assert read(prompt="Hi") == ([BEGIN, ord("H"), ord("i")], 3)


def test_token_ids_stay_and_unknown_ones_are_named():
    assert read(prompt=[5, 127]) == ([5, 127], 2)
    with pytest.raises(InvalidRequest, match="token ids below 128"):
        read(prompt=[5, 128])


def test_the_template_brings_what_begins_a_chat():
    messages = [Message(role="user", content="Hi")]
    assert read(messages=messages) == ([BEGIN, ord("u"), ord("H"), ord("i")], 4)


def test_what_the_template_refuses_is_the_clients_error_in_one_line():
    with pytest.raises(
        InvalidRequest, match=r"does not take these messages: roles must alternate$"
    ) as caught:
        read(messages=[Message(role="developer", content="Hi")])
    assert caught.value.param == "messages"


def test_no_tokens_are_no_prompt():
    with pytest.raises(InvalidRequest, match="has no tokens"):
        ModelPrompts(Letters(begins=False), None).read(GenerationRequest(model="m", prompt=""))


def test_without_a_model_text_stays_text():
    prompts = PlainPrompts(EstimatedTokens())
    assert prompts.read(GenerationRequest(model="m", prompt="12345678")) == ("12345678", 2)
    assert prompts.read(GenerationRequest(model="m", prompt=[1, 2])) == ([1, 2], 2)
    text, tokens = prompts.read(GenerationRequest(model="m", messages=[Message(role="user", content="Hi")]))
    assert (text, tokens) == ("user: Hi\nassistant:", 5)
