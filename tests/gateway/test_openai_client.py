"""The official client against a real server: answers, streams, cancellation, and every error by its class."""

import json

import openai
import pytest

from headway.config import HeadwayConfig
from serve_apps.engines.protocol import TokenChunk
from serve_apps.gateway.backend import BackendError, NotReady, Overloaded, ReplicaLost, TimedOut, TooLong
from tests.gateway.conftest import Serve, client
from tests.gateway.doubles import WAIT, ScriptedBackend, chunks
from tests.gateway.serving import Running, ask_in_no_time, until

HELLO = chunks("Hel", "lo ", "wor", "ld ☺ \ud83d\ude00".encode("utf-16", "surrogatepass").decode("utf-16"))
TEXT = "Hello world ☺ 😀"
MESSAGES = [{"role": "user", "content": "Hi"}]


def backend_of(running: Running) -> ScriptedBackend:
    backend = running.app.state.traffic.backend
    assert isinstance(backend, ScriptedBackend)
    return backend


def test_completion(serve: Serve):
    with client(serve(HELLO)) as api:
        answer = api.completions.create(model="m", prompt="Hello there", max_tokens=4)
    assert answer.choices[0].text == TEXT
    assert answer.choices[0].finish_reason == "length"
    assert answer.object == "text_completion"
    assert answer.system_fingerprint == "headway-simulated"
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (
        3,
        4,
        7,
    )


def test_chat(serve: Serve):
    running = serve(HELLO)
    parts = [{"type": "text", "text": "Why "}, {"type": "text", "text": "blue?"}]
    messages = [{"role": "system", "content": "Be terse."}, {"role": "user", "content": parts}]
    with client(running) as api:
        answer = api.chat.completions.create(model="m", messages=messages)
    assert answer.choices[0].message.content == TEXT
    assert answer.choices[0].message.role == "assistant"
    assert answer.object == "chat.completion"
    assert backend_of(running).parts[0].prompt == "system: Be terse.\nuser: Why blue?\nassistant:"
    until(lambda: backend_of(running).completed == 1)
    assert backend_of(running).aborted == 0


def test_streams(serve: Serve):
    with client(serve(HELLO)) as api:
        texts = list(api.completions.create(model="m", prompt="Hi", stream=True))
        chat = list(api.chat.completions.create(model="m", messages=MESSAGES, stream=True))
    assert "".join(event.choices[0].text for event in texts) == TEXT
    assert [event.choices[0].finish_reason for event in texts] == [None, None, None, "length"]
    assert len({event.id for event in texts}) == 1
    assert all(event.usage is None for event in texts)
    assert "".join(event.choices[0].delta.content for event in chat) == TEXT
    assert [event.choices[0].delta.role for event in chat] == ["assistant", None, None, None]
    assert chat[-1].choices[0].finish_reason == "length"
    assert chat[0].object == "chat.completion.chunk"


def test_a_stop_string_ends_the_output_and_aborts_the_engine(serve: Serve):
    running = serve([*chunks("Hel", "lo w", "orld")[:-1], WAIT])
    with client(running) as api:
        answer = api.completions.create(model="m", prompt="Hi", stop=["o w", "zzz"])
    assert answer.choices[0].text == "Hell"
    assert answer.choices[0].finish_reason == "stop"
    assert backend_of(running).parts[0].stop == ("o w", "zzz")
    until(lambda: backend_of(running).aborted == 1)


def test_sampling_reaches_the_engine_as_it_was_said(serve: Serve):
    running = serve(HELLO)
    said = {"temperature": 0.5, "top_p": 0.9, "seed": 7, "presence_penalty": -1, "frequency_penalty": 2}
    with client(running) as api:
        api.chat.completions.create(
            model="m", messages=MESSAGES, max_completion_tokens=9, user="u", metadata={"k": "v"}, n=1, **said
        )
    request = backend_of(running).parts[0]
    assert request.sampling == said
    assert request.max_tokens == 9


def test_models(serve: Serve):
    with client(serve(HELLO)) as api:
        (listed,) = api.models.list().data
        assert listed == api.models.retrieve("m")
        with pytest.raises(openai.NotFoundError) as raised:
            api.models.retrieve("org/other")
    assert listed.id == "m"
    assert listed.model_extra["simulated"] is True
    assert raised.value.code == "model_not_found"


CLASSES = [
    (NotReady("no running decode replica"), openai.InternalServerError, 503, "not_ready", "not_ready"),
    (Overloaded("too much", retry_after_s=2.5), openai.RateLimitError, 429, "rate_limit_exceeded", "shed"),
    (TooLong("too long"), openai.APIStatusError, 413, "context_length_exceeded", "too_long"),
    (TimedOut("too late"), openai.InternalServerError, 504, "timeout", "timeout"),
    (ReplicaLost("gone"), openai.InternalServerError, 502, "replica_lost", "failed"),
    (BackendError("odd"), openai.InternalServerError, 500, "internal_error", "failed"),
]


@pytest.mark.parametrize(("error", "kind", "status", "code", "outcome"), CLASSES)
def test_errors_before_the_first_token(serve: Serve, error, kind, status, code, outcome):
    running = serve([error])
    with client(running) as api, pytest.raises(kind) as raised:
        api.completions.create(model="m", prompt="Hi", stream=True)
    assert raised.value.status_code == status
    assert raised.value.code == code
    assert str(error) in raised.value.message
    assert running.app.state.metrics.requests[outcome] == 1
    retry_after = raised.value.response.headers.get("retry-after")
    assert retry_after in {429: ("3", "4"), 503: ("1", "2")}.get(status, (None,))


@pytest.mark.parametrize(("error", "kind", "status", "code", "outcome"), CLASSES)
def test_errors_in_mid_stream(serve: Serve, error, kind, status, code, outcome):
    running = serve([TokenChunk("a", 1), error])
    with client(running) as api:
        stream = api.completions.create(model="m", prompt="Hi", stream=True)
        assert next(stream).choices[0].text == "a"
        with pytest.raises(openai.APIError) as raised:
            next(stream)
    assert raised.value.code == code
    until(lambda: running.app.state.metrics.requests[outcome] == 1)


def test_an_output_that_just_ends_is_an_error(serve: Serve):
    running = serve([TokenChunk("a", 1)])
    with client(running) as api, pytest.raises(openai.InternalServerError) as raised:
        api.completions.create(model="m", prompt="Hi")
    assert raised.value.status_code == 502


def test_an_error_of_ours_is_a_500_and_counted(serve: Serve, caplog: pytest.LogCaptureFixture):
    running = serve([ZeroDivisionError("secret detail")])
    with client(running) as api, pytest.raises(openai.InternalServerError) as raised:
        api.completions.create(model="m", prompt="Hi")
    assert raised.value.status_code == 500
    assert "secret detail" not in raised.value.message
    assert "secret detail" in caplog.text
    assert running.app.state.metrics.requests["failed"] == 1


@pytest.mark.parametrize("script", [[WAIT], [TokenChunk("a", 1), WAIT]])
@pytest.mark.parametrize("stream", [False, True])
def test_the_deadline_ends_a_request(script, stream):
    config = HeadwayConfig.model_validate({"model": "m", "gateway": {"request_timeout_s": 30.0}})
    backend = ScriptedBackend(script)
    asked = {"model": "m", "prompt": "Hi", "stream": stream}
    said, app = ask_in_no_time(config, backend, "/v1/completions", asked)
    if stream and len(script) > 1:
        first, error, done, _ = said.text.split("\n\n")
        assert json.loads(first.removeprefix("data: "))["choices"][0]["text"] == "a"
        assert (said.status_code, done) == (200, "data: [DONE]")
    else:
        error = said.text
        assert said.status_code == 504
    assert json.loads(error.removeprefix("data: "))["error"]["code"] == "timeout"
    assert backend.aborted == 1
    assert app.state.metrics.requests["timeout"] == 1


def test_more_than_max_requests_are_shed(serve: Serve):
    running = serve([TokenChunk("a", 1), WAIT], max_requests=1)
    with client(running) as api:
        stream = api.completions.create(model="m", prompt="Hi", stream=True)
        next(stream)
        with pytest.raises(openai.RateLimitError) as raised:
            api.completions.create(model="m", prompt="Hi")
        stream.close()
    assert raised.value.response.headers["retry-after"] in ("1", "2")
    assert backend_of(running).begun == 1
    # What is turned away is load all the same.
    assert (running.app.state.metrics.requests["shed"], running.app.state.metrics.arrivals) == (1, 2)
