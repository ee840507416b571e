"""What only shows below the client library: sockets that close, headers, paths, methods, bodies."""

import asyncio
import http.client
import json
import socket

import pytest
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Message

from headway.config import HeadwayConfig
from serve_apps.engines.protocol import TokenChunk
from serve_apps.gateway import generation, reading
from serve_apps.gateway.app import make_app
from serve_apps.gateway.backend import Readiness
from serve_apps.gateway.responses import COMPLETIONS
from tests.engines.virtual_loop import run
from tests.gateway.conftest import Serve
from tests.gateway.doubles import LOADS, WAIT, ScriptedBackend, chunks
from tests.gateway.serving import Running, serving, until
from tests.patience import PATIENCE_S

ASKED = {"model": "m", "prompt": "Hi"}


def call(running: Running, method: str, path: str, body: bytes | str = b"", **headers: str):
    """Status, headers and body of one request."""
    connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=PATIENCE_S)
    try:
        connection.request(
            method, path, body, {name.replace("_", "-"): value for name, value in headers.items()}
        )
        response = connection.getresponse()
        return response.status, response.headers, response.read()
    finally:
        connection.close()


def post(running: Running, fields: object, path: str = "/v1/completions", **headers: str):
    return call(running, "POST", path, json.dumps(fields), **headers)


def open_request(running: Running, fields: object) -> socket.socket:
    """A connection with a request sent on it."""
    body = json.dumps(fields).encode()
    connection = socket.create_connection(("127.0.0.1", running.port), timeout=PATIENCE_S)
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
    connection.sendall(head.encode() + body)
    return connection


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("tokens", [0, 1])
def test_a_client_that_is_gone_ends_its_request_and_is_not_judged(serve: Serve, stream, tokens):
    backend = ScriptedBackend([*[TokenChunk("a", 1)] * tokens, WAIT])
    running = serve(backend)
    connection = open_request(running, ASKED | {"stream": stream})
    until(lambda: (backend.begun, running.app.state.metrics.output_tokens) == (1, tokens))
    connection.close()
    until(lambda: backend.aborted == 1)
    until(lambda: running.app.state.metrics.requests["aborted"] == 1)
    assert running.app.state.traffic.requests == 0
    assert running.app.state.metrics.slo_requests == {True: 0, False: 0}


def test_a_client_gone_while_it_sends_its_body(serve: Serve):
    backend = ScriptedBackend([WAIT])
    running = serve(backend)
    connection = socket.create_connection(("127.0.0.1", running.port))
    connection.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
    connection.close()
    until(lambda: running.app.state.metrics.requests["aborted"] == 1)
    assert backend.begun == 0


def test_a_failed_stream_ends_with_its_error_as_in_vllm(serve: Serve):
    _, _, body = post(serve([TokenChunk("a", 1)]), ASKED | {"stream": True})
    *_, error, done, rest = body.decode().split("\n\n")
    assert json.loads(error.removeprefix("data: "))["error"]["code"] == "replica_lost"
    assert (done, rest) == ("data: [DONE]", "")


def test_every_response_says_request_and_engine(serve: Serve):
    running = serve(chunks("a"))
    answers = [
        post(running, ASKED, x_request_id="mine-1"),
        post(running, ASKED | {"n": 0.5}, x_request_id="mine-1"),
        call(running, "GET", "/v1/models", x_request_id="mine-1"),
        call(running, "GET", "/nowhere", x_request_id="mine-1"),
    ]
    assert [status for status, _, _ in answers] == [200, 400, 200, 404]
    assert all(headers.get_all("x-request-id") == ["mine-1"] for _, headers, _ in answers)
    assert all(headers["x-headway-engine"] == "simulated" for _, headers, _ in answers)


@pytest.mark.parametrize("strange", ["", "with space", "x" * 129, "tab\there", "caf\xe9"])
def test_a_strange_request_id_is_replaced(serve: Serve, strange):
    _, headers, _ = post(serve(chunks("a")), ASKED, x_request_id=strange)
    assert headers["x-request-id"].startswith("req-")


def test_how_tokens_were_counted_is_said(serve: Serve):
    running = serve(chunks("a"))
    assert post(running, ASKED)[1]["x-headway-token-count"] == "estimated"
    assert post(running, ASKED | {"prompt": [1, 2]})[1]["x-headway-token-count"] == "exact"


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/v1/nothing", 404, "not_found"),
        ("GET", "/", 404, "not_found"),
        ("POST", "/v1/completions/", 404, "not_found"),
        ("GET", "/v1/completions", 405, "method_not_allowed"),
        ("DELETE", "/v1/chat/completions", 405, "method_not_allowed"),
        ("POST", "/v1/models", 405, "method_not_allowed"),
    ],
)
def test_paths_and_methods(serve: Serve, method, path, status, code):
    got, headers, body = call(serve(chunks("a")), method, path)
    error = json.loads(body)["error"]
    assert (got, error["code"], error["type"]) == (status, code, "invalid_request_error")
    assert ("allow" in headers) == (status == 405)


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'"x"', b"null", b"\xff\xfe", b'{"model": NaN}', b"[" * 9999]
)
def test_bodies_that_are_no_json_object(serve: Serve, body):
    status, _, answer = call(serve(chunks("a")), "POST", "/v1/completions", body)
    assert status == 400
    assert json.loads(answer)["error"]["param"] is None


def test_a_body_too_large_is_refused_before_it_is_read(serve: Serve):
    running = serve(chunks("a"))
    with socket.create_connection(("127.0.0.1", running.port), timeout=PATIENCE_S) as connection:
        size = reading.MOST_BODY_BYTES + 1
        connection.sendall(
            f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {size}\r\n\r\n".encode()
        )
        assert connection.recv(100).startswith(b"HTTP/1.1 413 ")


def test_a_body_too_large_without_a_length_is_refused(serve: Serve, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(reading, "MOST_BODY_BYTES", 1000)
    running = serve(chunks("a"))
    connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=PATIENCE_S)
    connection.request("POST", "/v1/completions", (b"x" * 500 for _ in range(3)), encode_chunked=True)
    response = connection.getresponse()
    assert response.status == 413
    assert json.loads(response.read())["error"]["code"] == "request_too_large"
    connection.close()


def test_the_limit_is_the_configured_one_where_the_cache_holds_it():
    config = HeadwayConfig.model_validate({"model": "m", "engine": {"max_model_tokens": 100}})
    assert make_app(config, ScriptedBackend()).state.identity.max_tokens == 100
    beyond = HeadwayConfig.model_validate({"engine": {"max_model_tokens": 10**9}})
    default = make_app(HeadwayConfig(), ScriptedBackend()).state.identity.max_tokens
    assert make_app(beyond, ScriptedBackend()).state.identity.max_tokens == default < 10**9


@pytest.mark.parametrize(("prompt", "max_tokens", "status"), [(90, 10, 200), (90, 11, 413), (100, None, 413)])
def test_input_and_output_must_fit(prompt, max_tokens, status, serve: Serve):
    running = serve(chunks("a"))
    limit = running.app.state.identity.max_tokens
    fields = ASKED | {"prompt": [1] * (limit - 100 + prompt), "max_tokens": max_tokens}
    got, _, body = post(running, fields)
    assert got == status
    if status == 413:
        error = json.loads(body)["error"]
        assert (error["code"], error["param"]) == ("context_length_exceeded", "prompt")
        assert running.app.state.metrics.requests["too_long"] == 1


def test_a_request_that_does_not_say_gets_the_room_there_is(serve: Serve):
    running = serve(chunks("a"), default_max_tokens=256)
    limit = running.app.state.identity.max_tokens
    path = "/v1/chat/completions"
    post(running, {"messages": [{"role": "user", "content": "Hi"}]}, path)
    post(running, {"messages": [{"role": "user", "content": "1234" * (limit - 13)}]}, path)
    post(running, ASKED)
    requests = running.app.state.traffic.backend.requests
    assert [request.max_tokens for request in requests] == [256, 8, COMPLETIONS.own_bound]


def test_health_and_readiness(serve: Serve):
    backend = ScriptedBackend([])
    running = serve(backend)
    assert call(running, "GET", "/ready")[0] == 200
    backend.readiness = Readiness(ok=False, reason="no running decode replica")
    status, headers, body = call(running, "GET", "/ready")
    assert (status, headers["retry-after"]) == (503, "1")
    assert json.loads(body)["reason"] == "no running decode replica"
    assert call(running, "GET", "/health")[0] == 200


def test_open_paths_need_no_key_and_all_others_do(serve: Serve):
    running = serve(chunks("a"), api_keys=["secret"])
    for path in ("/health", "/ready", "/metrics"):
        assert call(running, "GET", path)[0] == 200
    for path in (
        "/v1/models",
        "/v1/models/m",
        "/nowhere",
        "//",
        "//health",
        "/health/../v1/models",
        "/v1/control/status",
    ):
        status, headers, _ = call(running, "GET", path)
        assert (status, headers["www-authenticate"]) == (401, "Bearer")
    for value in ("", "secret", "Basic secret", "Bearer", "Bearer wrong", "Bearer secret2", "Bearer secre"):
        assert call(running, "GET", "/v1/models", authorization=value)[0] == 401
    assert call(running, "GET", "/v1/models", authorization="bearer secret")[0] == 200


def test_metrics_in_the_form_of_prometheus(serve: Serve):
    running = serve(ScriptedBackend(chunks("a", "b"), loads=LOADS))
    post(running, ASKED)
    status, headers, body = call(running, "GET", "/metrics")
    lines = set(body.decode().splitlines())
    assert status == 200
    assert headers["content-type"].startswith("text/plain; version=0.0.4")
    assert 'headway_requests_total{model="m",outcome="ok"} 1.0' in lines
    assert 'headway_engine_info{kind="simulated",simulated="true"} 1.0' in lines
    assert 'headway_replica_running_requests{replica="d#1",role="decode"} 3.0' in lines
    assert 'headway_replica_kv_usage{replica="p#1",role="prefill"} 0.25' in lines
    accept = "application/openmetrics-text; version=1.0.0"
    _, headers, body = call(running, "GET", "/metrics", accept=accept)
    assert headers["content-type"].startswith("application/openmetrics-text")
    assert body.endswith(b"# EOF\n")


async def _echo(request: Request) -> Response:
    match request.path_params["what"]:
        case "refuse":
            raise HTTPException(409, "in use", headers={"x-why": "so"})
        case "break":
            raise ZeroDivisionError("secret detail")
    return JSONResponse({"got": await request.json()})


def test_extra_routes_share_keys_and_error_form():
    config = HeadwayConfig.model_validate({"model": "m", "gateway": {"api_keys": ["secret"]}})
    routes = [Route("/v1/extra/{what}", _echo, methods=["POST"])]
    key = {"authorization": "Bearer secret"}
    with serving(config, ScriptedBackend(), routes) as running:
        assert post(running, 1, "/v1/extra/x")[0] == 401
        assert json.loads(post(running, 1, "/v1/extra/x", **key)[2]) == {"got": 1}
        status, headers, body = post(running, 1, "/v1/extra/refuse", **key)
        assert (status, headers["x-why"]) == (409, "so")
        assert "in use" in json.loads(body)["error"]["message"]
        status, _, body = post(running, 1, "/v1/extra/break", **key)
        assert (status, json.loads(body)["error"]["code"]) == (500, "internal_error")
        assert b"secret detail" not in body
        assert call(running, "GET", "/v1/extra/x", **key)[0] == 405


def test_a_client_that_reads_nothing_is_let_go_and_counted():
    config = HeadwayConfig.model_validate({"model": "m", "gateway": {"request_timeout_s": 30.0}})
    backend = ScriptedBackend([TokenChunk("a", 1), WAIT])
    app = make_app(config, backend)
    asked = [{"type": "http.request", "body": json.dumps(ASKED | {"stream": True}).encode()}]

    async def receive() -> Message:
        return asked.pop() if asked else await asyncio.Future()

    async def full(_: Message) -> None:
        """The buffers of both sides are: not even the error can leave."""
        await asyncio.Future()

    async def took_s() -> float:
        scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": [], "root_path": ""}
        await app(scope, receive, full)
        return asyncio.get_running_loop().time()

    assert run(took_s()) == pytest.approx(30.0 + generation.FAREWELL_S)
    assert app.state.metrics.requests["timeout"] == backend.aborted == 1
