"""Bodies that go to the engine as they came, over a scripted backend; tests/vllm has real engines."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import openai
import pytest

from headway.config import HeadwayConfig
from serve_apps.engines.protocol import TokenChunk
from serve_apps.faults import InvalidRequest
from serve_apps.gateway.backend import Readiness, RefusedByEngine
from serve_apps.gateway.prompts import BYTES_PER_TOKEN
from serve_apps.gateway.reading import CallReader
from serve_apps.gateway.responses import CHAT_COMPLETIONS, COMPLETIONS, HEARTBEAT, RESPONSES
from tests.gateway.conftest import client
from tests.gateway.doubles import ScriptedBackend, Step
from tests.gateway.serving import Running, ask_in_no_time, get, post, serving, until
from tests.patience import PATIENCE_S

USER = {"role": "user", "content": "Hi"}
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
PATH = "/v1/chat/completions"


@pytest.fixture
def pass_to() -> Iterator[Callable[..., Running]]:
    """`pass_to(backend, **settings)`: a gateway over it, whose replicas do both phases."""
    with ExitStack() as stack:

        def start(backend: ScriptedBackend, **settings: Any) -> Running:
            config = HeadwayConfig.model_validate({"model": "m", "pools": {"mixed": {}}} | settings)
            return stack.enter_context(serving(config, backend))

        yield start


def answered(*parts: bytes, tokens: int = 1) -> list[Step]:
    last = len(parts) - 1
    return [TokenChunk(part, tokens, "stop" if at == last else None) for at, part in enumerate(parts)]


def test_a_body_reaches_the_engine_byte_by_byte_and_so_does_its_answer(
    pass_to: Callable[..., Running],
) -> None:
    backend = ScriptedBackend(answered(b'{"id": "x", ', b'"choices": []}'))
    body = b'{"model":"m","messages":[{"role":"user","content":"Hi"}],  "top_k": 5, "unheard_of": [1e0]}'
    url = pass_to(backend).url
    answer = post(f"{url}{PATH}", content=body)
    assert (answer.status_code, answer.content) == (200, b'{"id": "x", "choices": []}')
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-headway-token-count"] == "estimated"
    (request,) = backend.requests
    assert (request.call.path, request.call.body) == (PATH, body)
    assert request.call == (PATH, body, False, False, True, ())
    assert request.input_tokens == -(-len("user: Hi\nassistant:") // BYTES_PER_TOKEN)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/responses"])
def test_streams_are_the_engines_events(pass_to: Callable[..., Running], path: str) -> None:
    events = [b"data: {}\n\n", b": alive\n\n", b"data: [DONE]\n\n"]
    running = pass_to(ScriptedBackend(answered(*events)))
    with httpx.stream("POST", f"{running.url}{path}", json={"stream": True}, timeout=PATIENCE_S) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert b"".join(answer.iter_raw()) == b"".join(events)
    metrics = running.app.state.metrics
    until(lambda: metrics.requests["ok"] == 1)
    assert metrics.output_tokens == 3
    assert metrics.finished["stop"] == 1


MIXED = HeadwayConfig.model_validate({"model": "m", "pools": {"mixed": {}}, "gateway": {"heartbeat_s": 0.3}})


def test_a_silent_stream_has_heartbeats_and_no_other() -> None:
    backend = ScriptedBackend([1.0, *answered(b"data: {}\n\n", b"data: [DONE]\n\n")])
    said, app = ask_in_no_time(MIXED, backend, PATH, {"stream": True})
    assert said.content == 3 * HEARTBEAT + b"data: {}\n\ndata: [DONE]\n\n"
    assert app.state.metrics.request_ttft.series["ok"].total == pytest.approx(1.0)
    backend.script = [1.0, TokenChunk(b"", 1), RefusedByEngine(400, b'{"error": {}}')]
    said, _ = ask_in_no_time(MIXED, backend, PATH, {"stream": True})
    assert said.status_code == 200
    assert said.content == 3 * HEARTBEAT + b'data: {"error": {}}\n\ndata: [DONE]\n\n'
    backend.script = [1.0, *answered(b"{}")]
    assert ask_in_no_time(MIXED, backend, PATH, {})[0].content == b"{}"


def test_a_stream_that_begins_without_a_replica_says_when_one_should_serve() -> None:
    asleep = Readiness(ok=True, empty="starting", serves_in_s=11.2)
    backend = ScriptedBackend([1.0, *answered(b"data: [DONE]\n\n")], readiness=asleep)
    said, _ = ask_in_no_time(MIXED, backend, PATH, {"stream": True})
    assert said.headers["x-headway-model-state"] == "starting"
    assert said.headers["x-headway-serves-in-s"] == "12"
    backend.readiness = Readiness(ok=True)
    said, _ = ask_in_no_time(MIXED, backend, PATH, {"stream": True})
    assert "x-headway-model-state" not in said.headers


def test_tokens_without_bytes_have_their_time_and_no_event() -> None:
    script = [TokenChunk(b"", 1), 0.4, TokenChunk(b"", 1), TokenChunk(b"{}", 1, "length", 7)]
    said, app = ask_in_no_time(MIXED, ScriptedBackend(script), PATH, {})
    assert said.json() == {}
    metrics = app.state.metrics
    assert (metrics.requests["ok"], metrics.output_tokens) == (1, 3)
    assert metrics.request_ttft.series["ok"].total == 0.0
    assert metrics.durations.series["ok"].total == pytest.approx(0.4)


def test_refusals_are_the_engines_own_words(pass_to: Callable[..., Running]) -> None:
    body = json.dumps({"error": {"message": "no such parser", "code": 400}}).encode()
    backend = ScriptedBackend([RefusedByEngine(400, body)])
    running = pass_to(backend)
    with client(running) as asking, pytest.raises(openai.BadRequestError, match="no such parser"):
        asking.chat.completions.create(model="m", messages=[USER], tools=[TOOL])
    until(lambda: running.app.state.metrics.requests["invalid"] == 1)
    backend.script = [RefusedByEngine(501, body)]
    assert post(f"{running.url}{PATH}", json={"messages": [USER]}).status_code == 501
    until(lambda: running.app.state.metrics.requests["failed"] == 1)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"prompt": 5},
        {"messages": [5]},
        {"messages": [{"content": [{"type": "image_url"}]}]},
        {"prompt": [[-1]]},
    ],
)
def test_what_is_no_prompt_is_estimated_and_the_engines_to_refuse(
    pass_to: Callable[..., Running], fields: dict[str, Any]
) -> None:
    backend = ScriptedBackend(answered(b"{}"))
    answer = post(f"{pass_to(backend).url}{PATH}", json=fields)
    assert answer.status_code == 200
    (request,) = backend.requests
    assert request.input_tokens == max(1, -(-len(answer.request.content) // BYTES_PER_TOKEN))


def test_what_makes_no_output_is_asked_of_an_engine(pass_to: Callable[..., Running]) -> None:
    running = pass_to(ScriptedBackend())
    for path in ("/v1/embeddings", "/tokenize", "/detokenize"):
        assert post(f"{running.url}{path}", json={}).json() == {"path": path}
    assert get(f"{running.url}/version").json() == {"path": "/version"}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (b"[1]", "object"),
        (b"{", "JSON"),
        (b'{"stream": "true"}', "'stream'"),
        (b'{"max_tokens": 1.5}', "'max_tokens'"),
        (b'{"max_completion_tokens": -1}', "'max_completion_tokens'"),
        (b'{"n": true}', "'n'"),
        (b'{"model": 3}', "'model'"),
        (b"[" * 100_000, "JSON"),
        (b'{"n": 0}', "'n'"),
        (b'{"n": 129}', "'n': 129 outputs, and a call has at most 128"),
        (b'{"n": 3, "prompt": [' + b'"a",' * 64 + b'"a"]}', "'n': 195 outputs"),
        (b'{"prompt": [' + b'"a",' * 128 + b'"a"]}', "'prompt': 129 outputs"),
        (b'{"use_beam_search": true, "n": 100000}', "'n'"),
        (b'{"use_beam_search": "false", "n": 100}', "'use_beam_search'"),
        (b'{"n": 2, "best_of": 3}', "'best_of'"),
        (b'{"messages": [' + b"0," * 10_000 + b"0]}", "'messages'"),
        (b'{"max_tokens": -5}', "'max_tokens': it should be from 1 to 2147483647"),
        (b'{"max_completion_tokens": 0}', "'max_completion_tokens': it should be from 1 to 2147483647"),
    ],
)
def test_what_the_gateway_decides_by_is_what_it_should_be(fields: bytes, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        CallReader(separate=False).read(COMPLETIONS, (), fields)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"use_beam_search": True}, "use_beam_search"),
        ({"prompt_logprobs": 0}, "prompt_logprobs"),
        ({"echo": True, "logprobs": 1}, "echo"),
    ],
)
def test_what_two_replicas_cannot_share(fields: dict[str, Any], param: str) -> None:
    body = json.dumps(fields).encode()
    with pytest.raises(InvalidRequest, match="separate prefill and decode") as refused:
        CallReader(separate=True).read(CHAT_COMPLETIONS, (), body)
    assert refused.value.param == param
    (read,) = CallReader(separate=False).read(CHAT_COMPLETIONS, (), body)
    assert not read.calls[0].divisible


def test_what_two_replicas_can_share() -> None:
    asked = {"n": 1, "prompt": [[1, 2]], "echo": True, "max_output_tokens": 9, "logprobs": None}
    (read,) = CallReader(separate=True).read(RESPONSES, (), json.dumps(asked).encode())
    assert read.max_tokens == 9
    assert read.calls[0].bounded


def test_a_trace_goes_on_to_the_engine(pass_to: Callable[..., Running]) -> None:
    backend = ScriptedBackend(answered(b"{}"))
    trace = {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "tracestate": "a=b"}
    headers = trace | {"baggage": "no"}
    assert post(f"{pass_to(backend).url}{PATH}", json={}, headers=headers).status_code == 200
    (request,) = backend.requests
    assert {name.decode(): value.decode() for name, value in request.call.trace} == trace


def test_another_model_is_not_asked_of_the_engine(pass_to: Callable[..., Running]) -> None:
    backend = ScriptedBackend(answered(b"{}"))
    url = pass_to(backend).url
    assert post(f"{url}{PATH}", json={"model": "other"}).status_code == 404
    assert not backend.requests
