"""uvicorn still has what we use of it, and a response's head leaves with its first bytes."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from inspect import signature
from typing import Any
from unittest.mock import Mock

import pytest
import uvicorn
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from serve_apps.compat_uvicorn import JoinedHead
from tests.scenarios import scenarios

USED: Mapping[str, Mapping[str, str]] = {
    "protocol": {
        "_start_asgi_task": "learns which request of a connection runs",
        "connections": "bounds their number, and finds those that are stalled",
        "cycle": "tells whether a request is under way",
        "flow": "tells whether the client is slower than its answer",
        "headers": "bounds their number",
        "pipeline": "bounds the requests that wait behind one",
        "scope": "offers `PUSH` to the application",
        "send_400_response": "answers what is no HTTP",
        "on_response_complete": "learns when a connection waits for its next request",
    },
    "cycle": {
        "disconnected": "tells a request that its client has gone",
        "message_event": "wakes that request",
        "response_complete": "tells whether a request is under way",
        "response_started": "tells whether a refusal can still be sent",
        "transport": "joins a response's head and its first bytes",
    },
    "flow": {"write_paused": "tells whether the client is slower than its answer"},
    "server": {
        "lifespan": "hands the application's state to connections that we accept",
        "server_state": "hands connections to the server that it has to wait for",
        "servers": "closes listening sockets before the requests in flight have ended",
        "started": "tells when the server answers",
    },
}


def test_uvicorn_still_has_what_we_use_of_it():
    async def serving() -> dict[str, object]:
        server = uvicorn.Server(uvicorn.Config(Mock(), port=0, lifespan="off", log_config=None))
        task = asyncio.create_task(server.serve())
        while not getattr(server, "started", True) and not task.done():
            await asyncio.sleep(0)
        cycle = RequestResponseCycle(**{name: Mock() for name in signature(RequestResponseCycle).parameters})
        protocol = HttpToolsProtocol(server.config, ServerState(), {})
        server.should_exit = True
        await task
        return {"protocol": protocol, "cycle": cycle, "flow": FlowControl(Mock()), "server": server}

    found = asyncio.run(serving())
    gone = [
        f"uvicorn {uvicorn.__version__}: {type(found[kind]).__name__}.{name} is gone, which {why}"
        for kind, names in USED.items()
        for name, why in names.items()
        if not hasattr(found[kind], name)
    ]
    assert not gone, "\n".join(gone)


class Transport:
    """A transport that keeps what is written, and its flow control."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.closed = self.write_paused = False

    def write(self, data: bytes) -> None:
        assert not self.closed
        self.written.append(data)

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed


def play(scenario: Callable[[Transport, JoinedHead], Coroutine[Any, Any, None]]) -> None:
    async def on_a_loop() -> None:
        connection = Transport()
        await scenario(connection, JoinedHead(connection, connection))  # type: ignore[arg-type] # a double

    asyncio.run(on_a_loop())


on_connection = scenarios(play)()


@on_connection
async def test_head_and_first_bytes_leave_together_and_all_else_at_once(
    connection: Transport, response: JoinedHead, /
):
    response.write(b"head ")
    assert connection.written == []
    response.write(b"first")
    assert connection.written == [b"head first"]
    response.write(b"second")
    await asyncio.sleep(0)
    assert connection.written == [b"head first", b"second"]


@on_connection
async def test_a_head_without_a_body_leaves_with_the_next_pass(
    connection: Transport, response: JoinedHead, /
):
    response.write(b"head")
    await asyncio.sleep(0)
    assert connection.written == [b"head"]
    response.write(b"later")
    assert connection.written == [b"head", b"later"]


@on_connection
async def test_a_connection_that_closes_sends_its_head_first(connection: Transport, response: JoinedHead, /):
    response.write(b"head")
    response.close()
    await asyncio.sleep(0)
    assert connection.written == [b"head"]
    assert response.is_closing()


@pytest.mark.parametrize("passes", [0, 1])
@on_connection
async def test_to_a_client_that_is_gone_nothing_is_written(
    connection: Transport, response: JoinedHead, /, passes
):
    response.write(b"head")
    connection.closed = True
    if not passes:
        response.close()
    await asyncio.sleep(0)
    assert connection.written == []


@on_connection
async def test_what_is_pushed_is_a_chunk_and_leaves_at_once(connection: Transport, response: JoinedHead, /):
    response.write(b"head ")
    response.write(b"first")
    assert response.push(b"x" * 20)
    assert connection.written == [b"head first", b"14\r\n" + b"x" * 20 + b"\r\n"]


@pytest.mark.parametrize("why", ["no head yet", "a head alone", "paused", "closed"])
@on_connection
async def test_nothing_is_pushed_out_of_turn(connection: Transport, response: JoinedHead, /, why):
    if why != "no head yet":
        response.write(b"head ")
    if why in ("paused", "closed"):
        response.write(b"first")
    connection.write_paused, connection.closed = why == "paused", why == "closed"
    before = list(connection.written)
    assert not response.push(b"more")
    assert connection.written == before
