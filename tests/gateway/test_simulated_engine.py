"""The gateway over a simulated engine in the same process: what it says, and that slots are freed."""

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from pydantic import BaseModel, Field

from headway.config import HeadwayConfig
from tests.gateway.conftest import client
from tests.gateway.one_engine import OneEngine
from tests.gateway.serving import Running, get, serving, until

CONFIG = HeadwayConfig.model_validate({"model": "m", "engine": {"time_scale": 2.0}, "pools": {"mixed": {}}})
LONG = 50_000


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    with serving(CONFIG, OneEngine(CONFIG)) as one:
        yield one


def load(running: Running) -> tuple[int, int, float]:
    (only,) = running.app.state.traffic.backend.replicas()
    return only.running, only.waiting, only.kv_usage


class Day(BaseModel):
    sunny: bool
    degrees: int = Field(ge=5)


USER = [{"role": "user", "content": "Hi"}]
TOOL = {"type": "function", "function": {"name": "look", "parameters": Day.model_json_schema()}}
RESPONSE_TOOL = {"type": "function", "name": "look", "parameters": Day.model_json_schema(), "strict": False}


def test_outputs_of_one_request_run_side_by_side_and_leave_together(running: Running):
    asked = {"model": "m", "prompt": ["Hi", "Ho"], "n": 2, "max_tokens": LONG}
    with client(running) as api:
        stream = api.completions.create(**asked, stream=True)
        next(stream)
        until(lambda: sum(load(running)[:2]) == 4)
        stream.close()
    until(lambda: load(running) == (0, 0, 0.0))


def test_what_fits_a_model_is_parsed(running: Running):
    with client(running) as api:
        (choice,) = api.chat.completions.parse(model="m", messages=USER, response_format=Day).choices
        assert choice.message.parsed == Day(sunny=True, degrees=5)
        said = api.responses.parse(model="m", input="Hi", text_format=Day)
        assert said.output_parsed == Day(sunny=True, degrees=5)


def test_a_loop_of_tool_calls_goes_round_once(running: Running):
    with client(running) as api:
        messages: list[Any] = list(USER)
        with api.chat.completions.stream(model="m", messages=messages, tools=[TOOL]) as stream:
            message = stream.get_final_completion().choices[0].message
        (made,) = message.tool_calls
        assert Day.model_validate_json(made.function.arguments).degrees == 5
        messages += [
            message.model_dump(exclude_none=True),
            {"role": "tool", "tool_call_id": made.id, "content": "7"},
        ]
        after = api.chat.completions.create(model="m", messages=messages, tools=[TOOL], max_tokens=3)
        assert after.choices[0].message.content.startswith(" [simulated]")


def test_responses_with_and_without_a_stream(running: Running):
    with client(running) as api:
        whole = api.responses.create(model="m", input="Hi", max_output_tokens=5)
        with api.responses.stream(model="m", input="Hi", max_output_tokens=5) as stream:
            streamed = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        assert streamed == whole.output_text
        assert (whole.status, whole.usage.output_tokens) == ("incomplete", 5)
        (item,) = api.responses.create(
            model="m", input="Hi", tools=[RESPONSE_TOOL], tool_choice="required"
        ).output
        assert (item.type, item.name) == ("function_call", "look")


def test_probabilities_belong_to_the_tokens(running: Running):
    with client(running) as api:
        asked = {"model": "m", "max_tokens": 4, "seed": 1}
        (choice,) = api.completions.create(**asked, prompt="Hi", logprobs=2).choices
        assert "".join(choice.logprobs.tokens) == choice.text
        assert all(len(each) == 2 for each in choice.logprobs.top_logprobs)
        (choice,) = api.chat.completions.create(**asked, messages=USER, logprobs=True, top_logprobs=3).choices
        assert "".join(each.token for each in choice.logprobs.content) == choice.message.content
        assert all(
            max(each.top_logprobs, key=lambda one: one.logprob).token == each.token
            for each in choice.logprobs.content
        )
        events = api.chat.completions.create(**asked, messages=USER, logprobs=True, stream=True)
        tokens = [each.token for event in events for each in event.choices[0].logprobs.content]
        assert "".join(tokens) == choice.message.content


def test_what_a_simulation_cannot_say_is_refused_by_name(running: Running):
    invalid = running.app.state.metrics.requests["invalid"]
    unfitting = {"structured_outputs": {"regex": "("}}
    with client(running) as api, pytest.raises(openai.BadRequestError) as raised:
        api.completions.create(model="m", prompt="Hi", extra_body=unfitting)
    assert raised.value.param == "structured_outputs"
    until(lambda: running.app.state.metrics.requests["invalid"] == invalid + 1)
    assert get(f"{running.url}/version").json()["simulated"] is True
