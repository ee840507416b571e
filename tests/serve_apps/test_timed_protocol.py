"""What one connection may hold of a server, and for how long."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from serve_apps.http_server import HttpServer
from serve_apps.timed_protocol import MOST_HEAD_BYTES, MOST_HEADERS, MOST_PARTS, MOST_PIPELINED, Limits
from tests.patience import PATIENCE_S, eventually, with_longer_limits

pytestmark = pytest.mark.anyio

GET = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"
PIECE = bytes(64 * 2**10)


class Endless:
    """An app whose answers go on until the client is gone; it counts those that run, and that have ended."""

    def __init__(self) -> None:
        self.running = self.ended = 0

    async def __call__(self, scope, receive, send) -> None:
        if scope["type"] == "lifespan":
            for phase in ("startup", "shutdown"):
                await receive()
                await send({"type": f"lifespan.{phase}.complete"})
            return
        self.running += 1
        gone = asyncio.create_task(self._gone(receive))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while not gone.done():
            await send({"type": "http.response.body", "body": PIECE, "more_body": True})
            await asyncio.sleep(0)
        self.ended += 1

    async def _gone(self, receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass


async def echo(scope, receive, send) -> None:
    """An app that answers each request once it is complete."""
    if scope["type"] == "lifespan":
        for phase in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{phase}.complete"})
        return
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


@asynccontextmanager
async def server(app: Callable[..., Awaitable[None]], **settings: Any) -> AsyncIterator[HttpServer]:
    patient: dict[str, Any] = {"headers_within_s": PATIENCE_S, "taken_within_s": PATIENCE_S, **settings}
    made = HttpServer(app, "127.0.0.1", 0, limits=Limits(**patient))
    await made.start()
    try:
        async with asyncio.timeout(PATIENCE_S):
            yield made
    finally:
        await made.stop()


async def connect(to: HttpServer, *parts: bytes) -> socket.socket:
    """A connection on which little is taken in unread, after sending this."""
    sock = socket.socket()
    sock.setblocking(False)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(sock, ("127.0.0.1", to.port))
    for part in parts:
        await loop.sock_sendall(sock, part)
    return sock


async def answer(sock: socket.socket) -> bytes:
    """The next bytes; none: closed, or reset."""
    try:
        return await asyncio.get_running_loop().sock_recv(sock, 4096)
    except ConnectionResetError:
        return b""


async def without_end(sock: socket.socket) -> None:
    """Send, for ever."""
    while True:
        await asyncio.get_running_loop().sock_sendall(sock, PIECE)


def test_a_client_that_takes_nothing_of_its_answer_is_reset_and_one_that_does_is_not() -> None:
    async def scenario(limit_s: float) -> None:
        app = Endless()
        async with server(app, taken_within_s=limit_s) as made:
            stalled = await connect(made, GET)
            with await connect(made, GET) as reading:
                while app.ended == 0:
                    assert await answer(reading)
                    await asyncio.sleep(0.001)
                for _ in range(20):
                    assert await answer(reading)
                assert app.running == 2
                await eventually(lambda: bool(stalled.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)))
                stalled.close()
            await eventually(lambda: app.ended == 2)

    with_longer_limits(lambda limit_s: asyncio.run(scenario(limit_s)), 0.4, 4.0, 40.0)


async def test_who_leaves_is_gone_for_the_request_that_runs_and_not_only_for_the_last_one() -> None:
    app = Endless()
    async with server(app) as made:
        with await connect(made, GET * 3):
            await eventually(lambda: app.running == 1)
        await eventually(lambda: app.ended == 1)
        assert app.running == 1


async def test_one_connection_too_many_takes_the_place_of_the_longest_idle_one() -> None:
    app = Endless()
    async with server(app, most=3) as made:
        with await connect(made, GET) as busy, await connect(made) as idle:
            await eventually(lambda: app.running == 1)
            with await connect(made) as younger, await connect(made, GET) as new:
                assert await answer(idle) == b""
                assert (await answer(new)).startswith(b"HTTP/1.1 200")
                with await connect(made, GET) as newer, await connect(made) as refused:
                    assert await answer(younger) == b""
                    assert (await answer(newer)).startswith(b"HTTP/1.1 200")
                    assert await answer(refused) == b""
                    assert (await answer(busy)).startswith(b"HTTP/1.1 200")


async def test_what_brings_no_request_on_is_not_kept() -> None:
    head, chunked = GET[:-2], b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n"
    cases = (
        (head + b"x: y\r\n" * (2 * MOST_HEADERS), b"HTTP/1.1 431"),
        (head + b"x: " + b"y" * 2 * MOST_HEAD_BYTES, b"HTTP/1.1 431"),
        (b"GET /" + b"y" * 2 * MOST_HEAD_BYTES, b"HTTP/1.1 431"),
        (chunked + b"1\r\nx\r\n" * (4 * MOST_PARTS), b"HTTP/1.1 400"),
        (chunked + b"1\r\nx\r\n0\r\n" + b"x: y\r\n" * (2 * MOST_HEADERS), b"HTTP/1.1 431"),
    )
    async with server(echo) as made:
        for sent, said in cases:
            with await connect(made, sent) as connection:
                assert (await answer(connection)).startswith(said)
                assert await answer(connection) == b""
        allowed = b"100\r\n" + b"x" * 256 + b"\r\n0\r\nx: y\r\n\r\n"
        with await connect(made, chunked + allowed) as connection:
            assert (await answer(connection)).startswith(b"HTTP/1.1 200")


async def test_some_requests_may_come_before_answers_are_read_but_not_any_number() -> None:
    async with server(echo) as made:
        with await connect(made, GET * MOST_PIPELINED) as connection:
            said = b""
            while said.count(b"HTTP/1.1 200") < MOST_PIPELINED:
                more = await answer(connection)
                assert more
                said += more
        with await connect(made, GET * 1000) as connection:
            said = b""
            while more := await answer(connection):
                said += more
            assert said.count(b"HTTP/1.1 200") < 1000


def test_a_body_whose_request_was_answered_early_may_be_sent_to_its_end() -> None:
    size = 4 * 2**20

    async def hasty(scope, receive, send) -> None:
        if scope["type"] == "lifespan":
            await echo(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    async def scenario() -> None:
        async with server(hasty) as made:
            head = b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n" % size
            with await connect(made, head, bytes(size), GET) as connection:
                said = b""
                while said.count(b"HTTP/1.1 200") < 2:
                    more = await answer(connection)
                    assert more
                    said += more
            endless = head.replace(b"%d" % size, b"%d" % (100 * size))
            connection = await connect(made, endless)
            with connection, pytest.raises((BrokenPipeError, ConnectionResetError)):
                await without_end(connection)

    asyncio.run(scenario())


class Dropping:
    """A connection, and a loop whose calls wait to be made."""

    def __init__(self, name: str, calls: list[Callable[[], None]], read: list[str]) -> None:
        self.loop, self._name, self._calls, self._read = self, name, calls, read

    def call_later(self, _: float, callback: Callable[..., None], *arguments: object) -> None:
        self._calls.append(lambda: callback(*arguments))

    def read_on(self) -> None:
        self._read.append(self._name)


def test_what_is_dropped_is_read_of_one_connection_after_the_other():
    calls, read = list[Callable[[], None]](), list[str]()
    limits = Limits(headers_within_s=1.0, taken_within_s=1.0, most=10)
    first, second = (Dropping(name, calls, read) for name in "ab")
    for connection in (first, second):
        limits.drop_later(connection)  # type: ignore[arg-type] # a double
    for seen in (["a"], ["a", "b"], ["a", "b", "a"]):
        assert len(calls) == 1
        calls.pop()()
        assert read == seen
        if seen == ["a"]:
            limits.drop_later(first)  # type: ignore[arg-type] # a double
    assert not calls
