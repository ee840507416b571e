"""Calls answered with the text of a scripted engine: stops, echoes, usage, forms."""

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from serve_apps.engines.answering.answers import Planner, StopCutter, answer, check, plain
from serve_apps.engines.protocol import ClientCall, EngineFailed, EngineRequest, Refused, TokenChunk
from serve_apps.engines.simulated.content import plan as simulated

CHAT, TEXT, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
USER = {"role": "user", "content": "Hi"}


class Words:
    """An engine whose tokens are the letters of the alphabet, one a chunk."""

    def __init__(self) -> None:
        self.parts: list[EngineRequest] = []
        self.closed = 0

    async def run(self, part: EngineRequest) -> AsyncGenerator[TokenChunk, None]:
        self.parts.append(part)
        try:
            for at in range(part.max_tokens):
                await asyncio.sleep(0)
                last = at == part.max_tokens - 1
                yield TokenChunk(chr(97 + at % 26), 1, "length" if last else None, 3 if last else None)
        finally:
            self.closed += 1


def call(path: str, **fields: Any) -> EngineRequest:
    body = json.dumps(fields).encode()
    said = ClientCall(path, body, bool(fields.get("stream")), True)
    return EngineRequest(
        request_id="r-1",
        model="m",
        prompt="",
        input_tokens=10,
        max_tokens=fields.get("max_tokens", 3),
        call=said,
    )


def chunks_of(request: EngineRequest, words: Words, plan: Planner = plain) -> Sequence[TokenChunk]:
    async def collected() -> list[TokenChunk]:
        return [chunk async for chunk in answer(request, words.run, plan, "simulated")]

    return asyncio.run(collected())


def ask(path: str, words: Words | None = None, plan: Planner = plain, **fields: Any) -> Any:
    """The document, or the events of a stream."""
    chunks = chunks_of(call(path, **fields), words or Words(), plan)
    body = b"".join(chunk.text for chunk in chunks)
    if not fields.get("stream"):
        return json.loads(body)
    events = [event.split("data: ", 1)[1] for event in body.decode().split("\n\n")[:-1]]
    return [json.loads(event) for event in events if event != "[DONE]"]


def test_tokens_count_as_they_come_and_the_document_leaves_with_the_last():
    chunks = chunks_of(call(TEXT, prompt="x", max_tokens=3), Words())
    assert [(bool(chunk.text), chunk.tokens) for chunk in chunks] == [(False, 1), (False, 1), (True, 1)]
    assert (chunks[-1].finish_reason, chunks[-1].cached_tokens) == ("length", 3)
    document = json.loads(chunks[-1].text)
    assert document["choices"][0]["text"] == "abc"
    assert document["usage"]["prompt_tokens_details"] == {"cached_tokens": 3}
    assert (document["usage"]["prompt_tokens"], document["usage"]["completion_tokens"]) == (10, 3)


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_ends_the_output_and_the_engine_there(stream: bool):
    words = Words()
    answered = ask(TEXT, words, prompt="x", stop="c", max_tokens=9, stream=stream)
    choices = [choice for each in (answered if stream else [answered]) for choice in each["choices"]]
    assert ("".join(choice["text"] for choice in choices), words.closed) == ("ab", 1)
    (kept,) = ask(TEXT, prompt="x", stop="c", include_stop_str_in_output=True, max_tokens=9)["choices"]
    assert (kept["text"], kept["finish_reason"]) == ("abc", "stop")


def test_the_prompt_comes_back_where_it_is_wanted():
    assert ask(TEXT, prompt=[0x6968], echo=True)["choices"][0]["text"] == "hiabc"
    events = ask(TEXT, prompt="x?", echo=True, stream=True)
    assert "".join(event["choices"][0]["text"] for event in events) == "x?abc"


def test_usage_comes_last_or_with_every_event():
    options = {"include_usage": True}
    *events, last = ask(CHAT, messages=[USER], stream=True, stream_options=options)
    assert (last["choices"], last["usage"]["total_tokens"]) == ([], 13)
    assert {event["usage"] for event in events} == {None}
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = ask(CHAT, messages=[USER], stream=True, stream_options=options)
    assert [event["usage"]["completion_tokens"] for event in events] == [1, 2, 3, 3]


class Endless(Words):
    async def run(self, part: EngineRequest) -> AsyncGenerator[TokenChunk, None]:
        while True:
            yield TokenChunk("z", 1)


class Failing(Words):
    async def run(self, part: EngineRequest) -> AsyncGenerator[TokenChunk, None]:
        yield TokenChunk("a", 1)
        raise EngineFailed("broken")


def test_an_engine_that_goes_on_is_cut_at_the_bound():
    (choice,) = ask(TEXT, Endless(), prompt="x", max_tokens=4)["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("zzzz", "length")


def test_what_the_engine_raises_comes_through():
    with pytest.raises(EngineFailed, match="broken"):
        chunks_of(call(TEXT, prompt="x"), Failing())


def test_a_prefill_refuses_what_cannot_be_answered():
    asked = call(CHAT, messages=[USER], response_format={"type": "json_object"})
    with pytest.raises(Refused):
        check(asked, plain)
    check(asked, simulated)


TOOL = {
    "type": "function",
    "function": {
        "name": "look",
        "parameters": {"type": "object", "properties": {"days": {"const": 5}}, "required": ["days"]},
    },
}


@pytest.mark.parametrize("choice", ["auto", "required", {"type": "function", "function": {"name": "look"}}])
@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_is_called_with_arguments_that_fit(choice: object, stream: bool):
    asked = {"messages": [USER], "tools": [TOOL], "tool_choice": choice, "max_tokens": 50, "stream": stream}
    answered = ask(CHAT, plan=simulated, **asked)
    (last,) = answered[-1]["choices"] if stream else answered["choices"]
    messages = [each["choices"][0]["delta"] for each in answered] if stream else [last["message"]]
    calls = [made["function"] for message in messages for made in message.get("tool_calls", ())]
    assert calls[0]["name"] == "look"
    assert json.loads("".join(each["arguments"] for each in calls)) == {"days": 5}
    assert last["finish_reason"] == "tool_calls"


def test_text_answers_what_a_tool_found_and_those_who_want_an_exact_length():
    found = [USER, {"role": "assistant", "tool_calls": []}, {"role": "tool", "content": "5"}]
    for asked in ({"messages": found}, {"messages": [USER], "ignore_eos": True}):
        (choice,) = ask(CHAT, plan=simulated, tools=[TOOL], **asked)["choices"]
        assert choice["message"]["content"] == "abc"


def test_a_form_that_does_not_fit_the_bound_is_cut_and_says_so():
    form = {"type": "json_schema", "json_schema": {"schema": {"const": "much longer than that"}}}
    (choice,) = ask(CHAT, plan=simulated, messages=[USER], response_format=form)["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ('"much longer', "length")


@pytest.mark.parametrize(
    ("wanted", "text"),
    [
        ({"choice": ["yes", "no"]}, "yes"),
        ({"regex": "[ab]{2}"}, "aa"),
        ({"json": '{"const": 1}'}, "1"),
        ({"json_object": True}, "{}"),
    ],
)
def test_structured_outputs_are_the_simplest(wanted: dict[str, Any], text: str):
    (choice,) = ask(TEXT, plan=simulated, prompt="x", structured_outputs=wanted)["choices"]
    assert (choice["text"], choice["finish_reason"]) == (text, "stop")


# Stop strings: the same as on the whole text, wherever the borders between chunks are.

letters = st.text("ab", max_size=12)
stops = st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=4)


def expected(text: str, stops: Sequence[str]) -> tuple[str, str | None]:
    """Letter by letter: the first end of a stop string, the longest one there."""
    for end in range(len(text) + 1):
        if ended := [len(stop) for stop in stops if text[:end].endswith(stop)]:
            return text[: end - max(ended)], "stop"
    return text, "length"


@given(st.lists(letters, min_size=1, max_size=8), stops)
@example(["ab", "cd"], ["bc"])
@example(["aab", "x"], ["aabx", "ab"])
@example(["☺", "\n\n", "y"], ["\n\n"])
def test_borders_between_chunks_do_not_matter_and_as_much_leaves_as_can(chunks, stops):
    """What is held back could still become a stop string."""
    cutter, seen, left, reason = StopCutter(stops), "", "", None
    for at, chunk in enumerate(chunks):
        text, reason = cutter.cut(chunk, "length" if at == len(chunks) - 1 else None)
        seen, left = seen + chunk, left + text
        if reason is not None:
            break
        held = seen[len(left) :]
        assert seen.startswith(left)
        assert not held or any(stop.startswith(held) and stop != held for stop in stops)
    assert (left, reason) == expected("".join(chunks), stops)
