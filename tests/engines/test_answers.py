"""Calls answered with the text of a scripted engine: outputs side by side, stops, echoes, usage, forms."""

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import pytest

from serve_apps.engines.answering.answers import Planner, answer, check, plain
from serve_apps.engines.protocol import ClientCall, EngineFailed, EngineRequest, Refused, TokenChunk
from serve_apps.engines.simulated.content import plan as simulated

CHAT, TEXT, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
USER = {"role": "user", "content": "Hi"}


class Words:
    """An engine whose tokens are the letters of the alphabet, one a chunk."""

    def __init__(self) -> None:
        self.parts: list[tuple[EngineRequest, bool]] = []
        self.closed = 0

    async def run(self, part: EngineRequest, computed: bool) -> AsyncGenerator[TokenChunk, None]:
        self.parts.append((part, computed))
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


def test_tokens_are_told_as_they_come_and_the_document_with_the_last():
    chunks = chunks_of(call(TEXT, prompt="x", max_tokens=3), Words())
    assert [(bool(chunk.text), chunk.tokens) for chunk in chunks] == [(False, 1), (False, 1), (True, 1)]
    assert (chunks[-1].finish_reason, chunks[-1].cached_tokens) == ("length", 3)
    said = json.loads(chunks[-1].text)
    assert said["choices"][0]["text"] == "abc"
    assert said["usage"]["prompt_tokens_details"] == {"cached_tokens": 3}
    assert (said["usage"]["prompt_tokens"], said["usage"]["completion_tokens"]) == (10, 3)


def test_copies_wait_for_the_prompt_and_differ_by_their_seed():
    words = Words()
    said = ask(TEXT, words, prompt="x", n=3, seed=5, max_tokens=2)
    assert [choice["index"] for choice in said["choices"]] == [0, 1, 2]
    assert [(part.request_id, computed, part.sampling["seed"]) for part, computed in words.parts] == [
        ("r-1", False, 5),
        ("r-1#1", True, 6),
        ("r-1#2", True, 7),
    ]
    assert said["usage"]["completion_tokens"] == 6
    assert words.closed == 3


def test_prompts_share_the_tokens_of_the_request():
    words = Words()
    said = ask(TEXT, words, prompt=["xxxxxx", [1, 2], "yy"], max_tokens=1)
    assert len(said["choices"]) == 3
    assert [(part.prompt, part.input_tokens) for part, _ in words.parts] == [
        ("xxxxxx", 6),
        ([1, 2], 2),
        ("yy", 2),
    ]


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_ends_only_its_output_and_the_engine_there(stream: bool):
    words = Words()
    said = ask(TEXT, words, prompt="x", n=2, stop="c", max_tokens=9, stream=stream)
    events = said if stream else [said]
    texts = ["", ""]
    for choice in (choice for event in events for choice in event["choices"]):
        texts[choice["index"]] += choice["text"]
    assert texts == ["ab", "ab"]
    assert words.closed == 2
    (kept,) = ask(TEXT, prompt="x", stop="c", include_stop_str_in_output=True, max_tokens=9)["choices"]
    assert (kept["text"], kept["finish_reason"]) == ("abc", "stop")


def test_the_prompt_comes_back_where_it_is_wanted():
    assert ask(TEXT, prompt="x?", echo=True)["choices"][0]["text"] == "x?abc"
    assert ask(TEXT, prompt=[0x6968], echo=True)["choices"][0]["text"] == "hiabc"
    events = ask(TEXT, prompt="x?", echo=True, stream=True)
    assert "".join(event["choices"][0]["text"] for event in events) == "x?abc"


def test_usage_comes_last_or_with_every_event():
    options = {"include_usage": True}
    *events, last = ask(CHAT, messages=[USER], stream=True, stream_options=options)
    assert last["choices"] == []
    assert last["usage"]["total_tokens"] == 13
    assert {event["usage"] for event in events} == {None}
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = ask(CHAT, messages=[USER], stream=True, stream_options=options)
    assert [event["usage"]["completion_tokens"] for event in events] == [1, 2, 3, 3]


def test_an_engine_that_goes_on_is_cut_at_the_bound():
    async def endless(part: EngineRequest, _: bool) -> AsyncGenerator[TokenChunk, None]:
        while True:
            yield TokenChunk("z", 1)

    words = Words()
    words.run = endless  # type: ignore[method-assign]
    (choice,) = ask(TEXT, words, prompt="x", max_tokens=4)["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("zzzz", "length")


@pytest.mark.parametrize("n", [1, 2])
def test_what_the_engine_raises_comes_through_and_all_outputs_end(n: int):
    words = Words()

    async def failing(part: EngineRequest, computed: bool) -> AsyncGenerator[TokenChunk, None]:
        async for chunk in Words.run(words, part, computed):
            yield chunk
            raise EngineFailed("broken")

    with pytest.raises(EngineFailed, match="broken"):
        chunks_of(call(TEXT, prompt="x", n=n), type("Failing", (), {"run": staticmethod(failing)})())


def test_a_prefill_refuses_what_cannot_be_answered():
    with pytest.raises(Refused):
        check(call(CHAT, messages=[USER], response_format={"type": "json_object"}), plain)
    check(call(CHAT, messages=[USER], response_format={"type": "json_object"}), simulated)


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
    said = ask(CHAT, plan=simulated, **asked)
    if stream:
        deltas = [event["choices"][0]["delta"] for event in said]
        calls = [made["function"] for delta in deltas for made in delta.get("tool_calls", ())]
        name, arguments = calls[0]["name"], "".join(each["arguments"] for each in calls)
        assert said[-1]["choices"][0]["finish_reason"] == "tool_calls"
    else:
        (made,) = said["choices"][0]["message"]["tool_calls"]
        name, arguments = made["function"]["name"], made["function"]["arguments"]
        assert said["choices"][0]["finish_reason"] == "tool_calls"
    assert (name, json.loads(arguments)) == ("look", {"days": 5})


def test_text_answers_what_a_tool_found_and_those_who_want_an_exact_length():
    found = [USER, {"role": "assistant", "tool_calls": []}, {"role": "tool", "content": "5"}]
    assert (
        ask(CHAT, plan=simulated, messages=found, tools=[TOOL])["choices"][0]["message"]["content"] == "abc"
    )
    (choice,) = ask(CHAT, plan=simulated, messages=[USER], tools=[TOOL], ignore_eos=True)["choices"]
    assert choice["message"]["content"] == "abc"


def test_a_form_that_does_not_fit_the_bound_is_cut_and_says_so():
    form = {"type": "json_schema", "json_schema": {"schema": {"const": "much longer than that"}}}
    (choice,) = ask(CHAT, plan=simulated, messages=[USER], response_format=form)["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ('"much longer', "length")


def test_a_response_and_its_events():
    said = ask(RESPONSES, input="Hi")
    assert (said["status"], said["output"][0]["content"][0]["text"]) == ("incomplete", "abc")
    events = ask(RESPONSES, input="Hi", stream=True)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    deltas = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
    assert "".join(deltas) == "abc"
    assert events[-1]["response"]["usage"]["output_tokens"] == 3
