import asyncio
import logging
import uuid
from collections.abc import AsyncGenerator

import aiohttp
import pytest

from headway.config import HeadwayConfig
from serve_apps.engines.protocol import EngineRequest, TokenChunk
from serve_apps.gateway.app import make_app
from serve_apps.gateway.backend import ChunkSink, Timeline
from serve_apps.http_server import HttpServer, listening_socket
from serve_apps.timed_protocol import Limits
from tests.gateway.doubles import ScriptedBackend
from tests.patience import PATIENCE_S, with_longer_limits
from tests.ports import free_port

pytestmark = pytest.mark.anyio


def app_that(started: asyncio.Event, release: asyncio.Event):
    async def app(scope, receive, send) -> None:
        if scope["type"] == "lifespan":
            for phase in ("startup", "shutdown"):
                await receive()
                await send({"type": f"lifespan.{phase}.complete"})
            return
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"first ", "more_body": True})
        started.set()
        await release.wait()
        await send({"type": "http.response.body", "body": b"last"})

    return app


def test_a_taken_port_is_no_reason_to_fail(caplog):
    with listening_socket("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]

        async def scenario() -> HttpServer:
            server = HttpServer(app_that(asyncio.Event(), asyncio.Event()), "127.0.0.1", port)
            await server.start()
            await server.stop()
            return server

        with caplog.at_level(logging.WARNING, "ray.serve"):
            server = asyncio.run(scenario())
    assert server.port > port
    assert server.address == f"http://127.0.0.1:{server.port}"
    said = f"port {port} is taken, listening on {server.address}"
    assert any(said in record.getMessage() for record in caplog.records)


async def test_stopping_refuses_new_requests_and_lets_streams_finish():
    started, release = asyncio.Event(), asyncio.Event()
    server = HttpServer(app_that(started, release), "127.0.0.1", 0)
    await server.start()
    async with aiohttp.ClientSession() as client:
        async with client.get(server.address) as response:
            await started.wait()
            stopping = asyncio.create_task(server.stop())
            await refused(server)
            assert not stopping.done()
            release.set()
            assert await response.read() == b"first last"
        await asyncio.wait_for(stopping, PATIENCE_S)


@pytest.mark.parametrize("among", [1, 2])
async def test_servers_of_a_place_share_its_port_and_the_first_ends_without_a_reset(among: int):
    started, asked, release, place = asyncio.Event(), asyncio.Event(), asyncio.Event(), uuid.uuid4().hex
    old = HttpServer(app_that(started, release), "127.0.0.1", free_port(), place=place, among=among)
    await old.start()
    stream = asyncio.create_task(whole_answer(old))
    await started.wait()
    new = HttpServer(app_that(asked, release), "127.0.0.1", old.port, place=place, among=among)
    await new.start()
    assert new.port == old.port
    release.set()
    stopping = asyncio.create_task(old.stop())
    for _ in range(20):
        assert await whole_answer(new) == b"first last"
    await stopping
    assert await stream == b"first last"
    asked.clear()
    assert await whole_answer(new) == b"first last"
    assert asked.is_set()
    await new.stop()


async def test_clients_that_come_together_are_shared_among_the_servers_of_a_place():
    place, port, release, answers = uuid.uuid4().hex, free_port(), asyncio.Event(), 40
    took = [0, 0]

    def counting(number: int):
        app = app_that(asyncio.Event(), release)

        async def counted(scope, receive, send) -> None:
            took[number] += scope["type"] == "http"
            await app(scope, receive, send)

        return counted

    servers = [HttpServer(counting(n), "127.0.0.1", port, place=place, among=2) for n in range(2)]
    for server in servers:
        await server.start()
    asked = [asyncio.create_task(whole_answer(servers[0])) for _ in range(answers)]
    while sum(took) < answers:
        await asyncio.sleep(0.01)
    assert min(took) >= answers // 4, took
    release.set()
    assert await asyncio.gather(*asked) == [b"first last"] * answers
    for server in servers:
        await server.stop()


class Handing(ScriptedBackend):
    """Yields the first chunk and the last; what is between goes to the sink."""

    handed = 0

    async def generate(
        self, request: EngineRequest, timeline: Timeline | None = None, sink: ChunkSink | None = None
    ) -> AsyncGenerator[TokenChunk, None]:
        assert sink is not None
        del request, timeline
        yield TokenChunk(b"data: 0\n\n", 1)
        for number in range(1, 4):
            self.handed += sink(TokenChunk(b"data: %d\n\n" % number, 1), True)
        yield TokenChunk(b"data: [DONE]\n\n", 1, "length")


@pytest.mark.parametrize("heartbeat_s", [None, 60.0])
@pytest.mark.parametrize("stream", [True, False])
async def test_what_is_taken_at_once_is_part_of_the_answer_in_its_place(stream, heartbeat_s):
    backend = Handing()
    config = HeadwayConfig.model_validate({"model": "m", "gateway": {"heartbeat_s": heartbeat_s}})
    app = make_app(config, backend)
    server = HttpServer(app, "127.0.0.1", 0)
    await server.start()
    asked = {"model": "m", "prompt": "a", "max_tokens": 5, "stream": stream}
    async with (
        aiohttp.ClientSession() as client,
        client.post(f"{server.address}/v1/completions", json=asked) as response,
    ):
        events = (await response.read()).split(b"\n\n")
    assert events == [b"data: 0", b"data: 1", b"data: 2", b"data: 3", b"data: [DONE]", b""]
    assert backend.handed == 3
    assert app.state.metrics.output_tokens == 5
    await server.stop()


async def whole_answer(server: HttpServer) -> bytes:
    """To a client with a connection of its own."""
    async with aiohttp.ClientSession() as client, client.get(server.address) as response:
        return await response.read()


async def refused(server: HttpServer) -> None:
    """Return once nobody listens there any more."""
    while True:
        try:
            _, writer = await asyncio.open_connection(server.host, server.port)
        except (ConnectionRefusedError, ConnectionResetError):
            return
        writer.close()
        await asyncio.sleep(0.01)


def test_a_host_that_is_not_ours_is_an_error():
    async def scenario() -> None:
        await HttpServer(app_that(asyncio.Event(), asyncio.Event()), "192.0.2.1", 0).start()

    with pytest.raises(OSError, match="assign"):
        asyncio.run(scenario())


def test_ipv6_addresses_are_written_as_urls_want_them():
    server = HttpServer(app_that, "::1", 80)
    assert server.address == "http://[::1]:80"


async def raw(server: HttpServer, *parts: bytes) -> bytes:
    """What comes until the server hangs up."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    for part in parts:
        writer.write(part)
        await writer.drain()
    said = await reader.read()
    writer.close()
    return said


def answering(*asked: bytes, within_s: float = 0.2) -> bytes:
    """What a server with so much patience answers to these bytes, before it hangs up."""

    async def scenario() -> bytes:
        release = asyncio.Event()
        release.set()
        app = app_that(asyncio.Event(), release)
        server = HttpServer(app, "127.0.0.1", 0, limits=Limits(headers_within_s=within_s))
        await server.start()
        try:
            async with asyncio.timeout(PATIENCE_S):
                return await raw(server, *asked)
        finally:
            await server.stop()

    return asyncio.run(scenario())


REQUEST = b"GET / HTTP/1.1\r\nhost: x\r\n"


@pytest.mark.parametrize("half", [b"", b"\r\n", b"GET ", REQUEST])
def test_a_connection_without_a_request_ends(half):
    assert answering(*([half] if half else [])).startswith(b"HTTP/1.1 408 ")


def test_half_a_request_behind_a_whole_one_ends_after_its_answer():
    def ends(limit_s: float) -> None:
        said = answering(REQUEST + b"\r\n", REQUEST, within_s=limit_s)
        assert said.startswith(b"HTTP/1.1 200 ")
        assert b"last" in said
        assert b"HTTP/1.1 408 " in said

    with_longer_limits(ends, 0.2, 2.0, 20.0)


def test_a_request_that_would_be_a_websocket_is_answered_as_any_other():
    wish = b"connection: Upgrade, close\r\nupgrade: %s\r\n"
    for kind in (b"websocket", b"h2c"):
        body = b"content-length: 2\r\n\r\n{}"
        asked = b"POST / HTTP/1.1\r\nhost: x\r\n" + wish % kind + body
        assert answering(asked, within_s=PATIENCE_S).startswith(b"HTTP/1.1 200 ")
