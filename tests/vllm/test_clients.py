"""What the openai client can ask of vLLM, through the gateway: one real engine, in the gateway's process.

`tests.compatibility` has all that clients may send, and whether it is taken.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI
from pydantic import BaseModel

from serve_apps.engines.protocol import EngineStats
from tests.clients.measured import COUNTS, OUTPUT_TOKENS, REQUESTS, Figures, counted
from tests.clients.tools import aiperf, guidellm
from tests.compatibility import hold, outcomes, through_gateway
from tests.gateway.serving import Running, post
from tests.ray.clusters import wait_until
from tests.vllm.one_vllm import Mixed
from tests.vllm.served import NAME, fields_of_vllm

pytestmark = pytest.mark.filterwarnings("ignore")
"""vLLM's server warns of fields that clients send and that OpenAI gives up."""

USER = [{"role": "user", "content": "Why is the sky blue?"}]
TOOL = {
    "type": "function",
    "function": {
        "name": "look_up",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"days": {"type": "integer", "minimum": 1, "maximum": 9}},
            "required": ["days"],
            "additionalProperties": False,
        },
    },
}


class Verdict(BaseModel):
    sunny: bool


@pytest.fixture(scope="module")
def gateway(mixed: Mixed) -> Running:
    return mixed.gateway


@pytest.fixture(scope="module")
def asking(gateway: Running) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0, timeout=300) as client:
        yield client


def chat(asking: OpenAI, **more: Any) -> Any:
    return asking.chat.completions.create(
        **{"model": NAME, "messages": USER, "max_tokens": 8, "temperature": 0.0} | more
    )


def completed(asking: OpenAI, **more: Any) -> Any:
    return asking.completions.create(
        **{"model": NAME, "prompt": "Why?", "max_tokens": 8, "temperature": 0.0} | more
    )


@pytest.mark.essential
def test_a_plain_chat_and_its_usage(asking: OpenAI) -> None:
    answer = chat(asking)
    assert answer.choices[0].message.content
    assert answer.usage.completion_tokens == 8
    assert answer.choices[0].finish_reason == "length"
    again = chat(asking, messages=[*USER * 20])
    twice = chat(asking, messages=[*USER * 20])
    assert again.usage.prompt_tokens == twice.usage.prompt_tokens
    assert twice.usage.prompt_tokens_details.cached_tokens > 0


@pytest.mark.essential
def test_a_stream_says_the_same_as_the_whole(asking: OpenAI) -> None:
    events = list(
        chat(
            asking,
            stream=True,
            stream_options={"include_usage": True, "continuous_usage_stats": True},
            extra_body={"min_tokens": 8},
        )
    )
    text = "".join(event.choices[0].delta.content or "" for event in events if event.choices)
    assert text == chat(asking).choices[0].message.content
    assert events[-1].usage.completion_tokens == 8
    assert all(event.usage for event in events)


@pytest.mark.essential
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "look_up"}}])
def test_a_tool_that_must_be_called_is_called_with_what_its_schema_says(asking: OpenAI, choice: Any) -> None:
    answer = chat(asking, tools=[TOOL], tool_choice=choice, max_tokens=200)
    call, *_ = answer.choices[0].message.tool_calls
    assert call.function.name == "look_up"
    assert 1 <= json.loads(call.function.arguments)["days"] <= 9


@pytest.mark.essential
def test_structured_outputs(asking: OpenAI) -> None:
    loose = chat(asking, response_format={"type": "json_object"}, max_tokens=20)
    assert loose.choices[0].message.content.lstrip().startswith("{")
    parsed = asking.chat.completions.parse(
        model=NAME, messages=USER, response_format=Verdict, max_tokens=200, temperature=0.0
    )
    assert isinstance(parsed.choices[0].message.parsed, Verdict)
    choice = chat(asking, extra_body={"structured_outputs": {"choice": ["yes", "no"]}})
    assert choice.choices[0].message.content in ("yes", "no")


def test_logprobs_and_several_outputs(asking: OpenAI) -> None:
    answer = chat(asking, logprobs=True, top_logprobs=2, n=3, seed=5, temperature=1.0)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    for choice in answer.choices:
        assert len(choice.logprobs.content) == 8 or choice.finish_reason == "stop"
        assert all(len(token.top_logprobs) == 2 for token in choice.logprobs.content)
    assert answer.usage.completion_tokens == sum(len(each.logprobs.content) for each in answer.choices)


def test_outputs_are_those_that_vllm_makes_of_the_whole_call(asking: OpenAI, gateway: Running) -> None:
    """Of one `seed` each output has its own, as there; and the usage is the same."""
    asked = {
        "model": NAME,
        "prompt": ["Why?", "How so?"],
        "n": 2,
        "seed": 5,
        "temperature": 1.0,
        "max_tokens": 8,
    }
    theirs = post(f"{gateway.url}/own/v1/completions", json=asked, timeout=300.0).json()
    ours = asking.completions.create(**asked)
    assert [each.text for each in ours.choices] == [each["text"] for each in theirs["choices"]]
    assert len({each.text for each in ours.choices}) == 4
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert getattr(ours.usage, name) == theirs["usage"][name]
    *events, last = asking.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    texts = ["", "", "", ""]
    for event in events:
        texts[event.choices[0].index] += event.choices[0].text
    assert texts == [each.text for each in ours.choices]
    assert (last.choices, last.usage.total_tokens) == ([], ours.usage.total_tokens)
    greedy = asked | {"temperature": 0.0}
    assert post(f"{gateway.url}/own/v1/completions", json=greedy, timeout=300.0).status_code == 400
    first, second, *_ = (each.text for each in asking.completions.create(**greedy).choices)
    assert first == second


def test_completions_of_every_kind(asking: OpenAI) -> None:
    assert completed(asking, echo=True).choices[0].text.startswith("Why?")
    several = completed(asking, prompt=["Why?", "How?", "Who?"], n=2, temperature=1.0, seed=2)
    assert [choice.index for choice in several.choices] == [0, 1, 2, 3, 4, 5]
    scored = completed(asking, echo=True, logprobs=1).choices[0].logprobs
    assert scored.token_logprobs[0] is None
    assert len(scored.tokens) > 8
    assert completed(asking, logit_bias={"70": 100}, max_tokens=4).usage.completion_tokens == 4


def test_responses(asking: OpenAI) -> None:
    said = asking.responses.create(model=NAME, input="Why?", max_output_tokens=16, temperature=0.0)
    assert said.usage is not None
    assert said.usage.output_tokens == 16
    kinds = [
        event.type
        for event in asking.responses.create(
            model=NAME, input="Why?", max_output_tokens=16, temperature=0.0, stream=True
        )
    ]
    assert kinds[0] == "response.created"
    assert kinds[-1] in ("response.completed", "response.incomplete")


@pytest.mark.essential
def test_what_is_wrong_is_said_as_vllm_says_it(asking: OpenAI, gateway: Running) -> None:
    with pytest.raises(openai.BadRequestError, match="top_p"):
        chat(asking, top_p=3.0)
    with pytest.raises(openai.BadRequestError, match="temperature"):
        chat(asking, temperature=-1.0)
    with pytest.raises(openai.BadRequestError):
        chat(
            asking, messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]
        )
    answer = post(f"{gateway.url}/v1/completions", json={"model": NAME})
    assert answer.status_code == 400
    assert "prompt" in answer.json()["error"]["message"]


def test_a_client_cannot_say_where_kv_is(asking: OpenAI) -> None:
    stolen = {"kv_transfer_params": {"do_remote_decode": True, "remote_block_ids": [[1]]}}
    answer = completed(asking, extra_body=stolen)
    assert answer.usage.completion_tokens == 8
    assert not (answer.model_extra or {}).get("kv_transfer_params")


def test_the_default_bound_holds_where_nothing_was_said(asking: OpenAI, gateway: Running) -> None:
    most = gateway.app.state.settings.default_max_tokens
    answer = asking.chat.completions.create(
        model=NAME, messages=USER, temperature=0.0, extra_body={"ignore_eos": True}
    )
    assert answer.usage is not None
    assert answer.usage.completion_tokens == most


def test_who_leaves_frees_the_engine(asking: OpenAI, mixed: Mixed) -> None:
    engine, gateway = mixed.engine, mixed.gateway
    aborted = gateway.app.state.metrics.requests["aborted"]
    for stream in (True, False):
        asked = {"model": NAME, "prompt": "Why?", "max_tokens": 1900, "ignore_eos": True, "stream": stream}
        with (
            suppress(httpx.ReadTimeout),
            httpx.stream("POST", f"{gateway.url}/v1/completions", json=asked, timeout=1.0) as answer,
        ):
            next(answer.iter_raw())
        wait_until(lambda: (engine.stats().running, engine.stats().waiting) == (0, 0))
    wait_until(lambda: gateway.app.state.metrics.requests["aborted"] == aborted + 2)
    assert chat(asking).usage.completion_tokens == 8


def test_what_makes_no_output_is_vllms_too(asking: OpenAI, gateway: Running) -> None:
    counted = dict(gateway.app.state.metrics.requests)
    made = post(f"{gateway.url}/tokenize", json={"model": NAME, "prompt": "Why?"}).json()
    assert made["count"] == len(made["tokens"]) > 1
    back = post(f"{gateway.url}/detokenize", json={"model": NAME, "tokens": made["tokens"]}).json()
    assert back["prompt"].endswith("Why?")
    assert httpx.get(f"{gateway.url}/version", timeout=60.0).json()["version"]
    with pytest.raises(openai.NotFoundError):
        asking.embeddings.create(model=NAME, input="Why?")
    assert dict(gateway.app.state.metrics.requests) == counted


def test_tokens_are_counted_as_the_engine_made_them(asking: OpenAI, gateway: Running) -> None:
    metrics = gateway.app.state.metrics
    before = metrics.output_tokens
    made = chat(asking, n=2, temperature=1.0, seed=3).usage.completion_tokens
    made += completed(asking, prompt=["a", "b"]).usage.completion_tokens
    wait_until(lambda: metrics.output_tokens - before == made)


@pytest.mark.parametrize(("column", "place"), [("vLLM, mixed", ""), ("vLLM's server", "/own")])
def test_what_is_taken_is_what_the_page_says(gateway: Running, column: str, place: str) -> None:
    read = fields_of_vllm() if place else through_gateway(fields_of_vllm())
    hold(column, outcomes(f"{gateway.url}{place}", NAME, read))


CALLED = {"type": "function_call", "call_id": "c1", "name": "look_up", "arguments": '{"days": 2}'}
ITEMS = [*USER, CALLED, {"type": "function_call_output", "call_id": "c1", "output": "sun"}, *USER]
PARTS = [{"role": "user", "content": [{"type": "text", "text": "Why?"}, {"type": "text", "text": "How?"}]}]


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/v1/chat/completions", {"messages": PARTS}),
        ("/v1/chat/completions", {"messages": [*USER, {"role": "assistant", "content": None}, *USER]}),
        ("/v1/responses", {"input": "Why?"}),
        ("/v1/responses", {"input": ITEMS, "instructions": "Be terse."}),
    ],
)
def test_conversations_are_counted_as_vllm_reads_them(gateway: Running, path: str, said: Any) -> None:
    counted = gateway.app.state.metrics.input_tokens.series["ok"]
    before = counted.total
    usage = post(f"{gateway.url}{path}", json={"model": NAME, **said}, timeout=300.0).json()["usage"]
    read = usage["prompt_tokens"] if "prompt_tokens" in usage else usage["input_tokens"]
    wait_until(lambda: counted.total - before == read)


@pytest.mark.parametrize("tool", [guidellm, aiperf])
def test_load_tools_report_what_was_made(
    gateway: Running, model: Path, tmp_path: Path, tool: Callable[..., Figures]
) -> None:
    before = counted(gateway)
    theirs = tool(gateway.url, NAME, model, tmp_path)
    ours = counted(gateway)
    assert theirs[:COUNTS] == tuple(b - a for a, b in zip(before, ours, strict=True))[:COUNTS]
    assert theirs[:2] == (REQUESTS, 0)
    assert theirs.output_tokens == REQUESTS * OUTPUT_TOKENS
    assert theirs.itl_s > 0.0
    assert theirs.ttft_s > 0.0


@pytest.mark.essential
def test_an_adapter_is_a_model_of_its_own_name(asking: OpenAI) -> None:
    assert [each.id for each in asking.models.list().data] == [NAME, "loud", "other"]
    assert asking.models.retrieve("loud").model_extra["parent"] == NAME
    plain, loud = chat(asking), chat(asking, model="loud")
    assert loud.model == "loud"
    assert loud.choices[0].message.content != plain.choices[0].message.content
    assert chat(asking, model="loud").choices[0].message.content == loud.choices[0].message.content
    with pytest.raises(openai.NotFoundError):
        chat(asking, model="quiet")


def test_adapters_beyond_what_a_batch_has_room_for_take_turns(mixed: Mixed, asking: OpenAI) -> None:
    def stats() -> EngineStats:
        found: EngineStats = mixed.engine.stats()
        return found

    said = {}
    for name in ("loud", "other", "loud", "other"):
        answer = chat(asking, model=name).choices[0].message.content
        assert said.setdefault(name, answer) == answer
        wait_until(lambda name=name: stats().adapters == (name,))
    assert said["loud"] != said["other"]
    assert stats().adapter_room == 1
