"""A gateway's lines and a replica's server, over real sockets of loopback; the handle is a double."""

import asyncio
import json
import pickle
import secrets
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import suppress
from typing import Any, cast

import pytest

from actors import wire
from actors.wire import LENGTH, NONCE_BYTES, PROOF_BYTES, Address
from serve_apps.call_server import CallServer
from serve_apps.calls import PIECE_BYTES, ConnectionPool, Output, Unread
from serve_apps.compat_serve import EngineLost, Lost, NotStarted
from serve_apps.deployments import gathered
from serve_apps.engines.protocol import (
    ClientCall,
    EngineError,
    EngineFailed,
    EngineRequest,
    PromptTooLong,
    Refused,
    TokenChunk,
)
from serve_apps.gateway.backend import BackendError, RefusedByEngine, TooLong
from serve_apps.membership import Membership
from tests.memory import grown_bytes
from tests.patience import PATIENCE_S, eventually
from tests.scenarios import scenarios
from tests.serve_apps.serve_doubles import Replica, Result

REPLICA = "replica-1"


class Unreadable(EngineError):
    """Can be pickled, and not read again."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} {two}")


class Bomb:
    """Says when it is unpickled."""

    went_off = False

    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        return _go_off, ()


def _go_off() -> None:
    Bomb.went_off = True


class World:
    """A replica with some methods, and the lines to it."""

    is_initialized = True

    def __init__(self) -> None:
        self.server = CallServer(
            lambda: "127.0.0.1", {"stream": self.stream, "echo": self.echo, "fail": self.fail}
        )
        self.told: Address | None = None
        self.go = asyncio.Event()
        self.running = self.ended = 0
        self.pool = Membership()
        self.pool.update([(REPLICA, {})])
        self.lines = ConnectionPool(self, self.pool)  # type: ignore[arg-type] # a double of Serve's handle

    def options(self, **_: object) -> "World":
        return self

    def remote(self) -> Result:
        return Result(self.server.address() if self.told is None else self._told(self.told))

    async def _told(self, address: Address) -> Address:
        return address

    async def stream(self, name: str, chunks: int) -> AsyncGenerator[TokenChunk, None]:
        """So many at once; then waits for `go` and ends with one more."""
        self.running += 1
        try:
            for number in range(chunks):
                yield TokenChunk(f"{name}{number} ", 1)
            await self.go.wait()
            yield TokenChunk("end", 1, "length", 7)
        finally:
            self.running -= 1
            self.ended += 1

    async def echo(self, value: object) -> object:
        return value

    async def fail(self, error: Exception) -> None:
        raise error

    async def start(self, name: str = "a", chunks: int = 1) -> Output:
        return await self.lines.start(REPLICA, "stream", name, chunks)


async def rest(output: Output) -> list[TokenChunk]:
    chunks = []
    while (chunk := await output.next()) is not None:
        chunks.append(chunk)
    output.close()
    return chunks


def play(scenario: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    async def bounded() -> None:
        world = World()
        try:
            await asyncio.wait_for(scenario(world), PATIENCE_S)
        finally:
            await world.lines.close()
            world.go.set()
            await world.server.close()
            # Transports close with the next pass of the loop.
            await asyncio.sleep(0.01)

    asyncio.run(bounded())


in_world = scenarios(play)()


@in_world
async def test_many_streams_share_one_connection_and_keep_apart(world: World, /):
    outputs = await asyncio.gather(*(world.start(f"{number}.", 3) for number in range(200)))
    await eventually(lambda: world.running == 200)
    world.go.set()
    for number, output in enumerate(outputs):
        text = "".join(str(chunk.text) for chunk in await rest(output))
        assert text == "".join(f"{number}.{at} " for at in range(3)) + "end"
    assert len(world.server.connections) == 1


@in_world
async def test_a_taker_that_is_slow_gets_one_chunk_and_holds_nobody_up(world: World, /):
    slow, quick = await world.start("s", 4), await world.start("q", 1)
    world.go.set()
    assert (await rest(quick))[-1].finish_reason == "length"
    await eventually(lambda: world.ended == 2)
    assert await slow.next() == TokenChunk("s0 s1 s2 s3 end", 5, "length", 7)
    assert await slow.next() is None


@in_world
async def test_a_taker_gets_what_comes_while_the_output_is_waited_for_but_not_the_end(world: World, /):
    output, taken, seen = await world.start(chunks=1), list[TokenChunk](), list[str]()

    def sink(chunk: TokenChunk, waited_for: bool) -> bool:
        seen.append(str(chunk.text))
        taken.extend([chunk] * waited_for)
        return waited_for

    assert await output.next() == TokenChunk("a0 ", 1)
    output.set_sink(sink)
    # Nobody waits: something before it may still be on its way.
    output.put(TokenChunk("b ", 1))
    assert not taken
    assert await output.next() == TokenChunk("b ", 1)
    waiting = asyncio.create_task(output.next())
    await asyncio.sleep(0)
    output.put(TokenChunk("c ", 1))
    assert taken == [TokenChunk("c ", 1)]
    world.go.set()
    assert await waiting == TokenChunk("end", 1, "length", 7)
    assert len(taken) == 1
    assert seen == ["b ", "c ", "end"], "each as it comes, taken or not"
    output.close()


def test_what_waits_for_a_reader_is_packed_and_comes_in_pieces():
    unread, pieces = Unread(), list[TokenChunk]()
    events = [b'data: {"id": "cmpl-0", "choices": [{"text": " word %d"}]}\n\n' % at for at in range(20_000)]
    grown = grown_bytes(lambda: [unread.add(TokenChunk(event, 1)) for event in events][:0])
    assert grown < 0.3 * sum(map(len, events))
    while unread:
        pieces.append(unread.take())
    assert b"".join(cast("bytes", piece.text) for piece in pieces) == b"".join(events)
    assert sum(piece.tokens for piece in pieces) == len(events)
    assert max(len(piece.text) for piece in pieces) <= PIECE_BYTES
    assert unread.packed_bytes == 0


@in_world
async def test_what_a_taker_refuses_waits_and_what_it_fails_at_ends_that_output_alone(world: World, /):
    refusing, failing = await world.start("a", chunks=1), await world.start("b", chunks=1)
    for output in (refusing, failing):
        await output.next()
    refusing.set_sink(lambda *_: False)
    failing.set_sink(lambda *_: bool(1 / 0))
    waiting = [asyncio.create_task(output.next()) for output in (refusing, failing)]
    await asyncio.sleep(0)
    for output in (refusing, failing):
        output.put(TokenChunk("more ", 1))
    with pytest.raises(ZeroDivisionError):
        await waiting[1]
    failing.close()
    assert await waiting[0] == TokenChunk("more ", 1)
    world.go.set()
    assert await rest(refusing) == [TokenChunk("end", 1, "length", 7)]


@in_world
async def test_values_of_many_reads_come_whole(world: World, /):
    value = secrets.token_bytes(5_000_000)
    values = await asyncio.gather(*(world.lines.call(REPLICA, "echo", value) for _ in range(3)))
    assert all(found == value for found in values)


@pytest.mark.parametrize(
    ("raised", "becomes", "says"),
    [
        (EngineFailed("broken"), EngineLost, "broken"),
        (PromptTooLong("9 tokens"), TooLong, "9 tokens"),
        (EngineError("no"), BackendError, "no"),
        (KeyError("odd"), BackendError, "KeyError: 'odd'"),
    ],
)
@in_world
async def test_errors_arrive_as_what_they_mean(world: World, /, raised, becomes, says):
    with pytest.raises(becomes, match=says) as caught:
        await world.lines.call(REPLICA, "fail", raised)
    assert type(caught.value) is becomes


@in_world
async def test_an_engines_own_answer_keeps_its_status(world: World, /):
    with pytest.raises(RefusedByEngine) as caught:
        await world.lines.call(REPLICA, "fail", Refused(422, b"{}"))
    assert (caught.value.status, caught.value.body) == (422, b"{}")


def test_an_answer_that_cannot_be_sent_or_read_harms_no_other():
    async def scenario(world: World) -> None:
        world.server.methods = {**world.server.methods, "odd": odd, "local": local}
        output = await world.start()
        for method in ("odd", "local"):
            with pytest.raises(BackendError):
                await world.lines.call(REPLICA, method)
        world.go.set()
        assert (await rest(output))[-1].text == "end"

    async def odd() -> None:
        raise Unreadable(1, 2)

    async def local() -> object:
        return lambda: None

    play(scenario)


@in_world
async def test_closing_an_output_cancels_its_call_and_no_other(world: World, /):
    first, second = await world.start(), await world.start()
    await eventually(lambda: world.running == 2)
    first.close()
    first.close()
    await eventually(lambda: world.ended == 1)
    world.go.set()
    assert (await rest(second))[-1].text == "end"


@in_world
async def test_a_call_that_is_closed_as_it_begins_leaves_nothing(world: World, /):
    await world.lines.call(REPLICA, "echo", 1)
    (await world.start()).close()
    assert await world.lines.call(REPLICA, "echo", 2) == 2
    (connection,) = world.server.connections
    await eventually(lambda: not connection.tasks)
    assert world.running == 0


@in_world
async def test_a_lost_connection_fails_what_runs_and_the_next_call_has_a_new_one(world: World, /):
    output = await world.start(chunks=2)
    await eventually(lambda: world.running == 1)
    (connection,) = world.server.connections
    assert await world.lines.call(REPLICA, "echo", 1) == 1
    connection.transport.abort()
    assert (await output.next()).text == "a0 a1 "  # type: ignore[union-attr] # there is one
    with pytest.raises(Lost, match="lost"):
        await output.next()
    # The replica, too, has let go of it.
    await eventually(lambda: world.ended == 1)
    await eventually(lambda: bool(world.server.connections))
    assert await world.lines.call(REPLICA, "echo", 3) == 3


@in_world
async def test_calls_of_a_gateway_that_goes_away_are_cancelled(world: World, /):
    output = await world.start()
    await eventually(lambda: world.running == 1)
    await world.lines.close()
    await eventually(lambda: world.ended == 1)
    with pytest.raises(Lost):
        await rest(output)


@in_world
async def test_a_replica_that_ends_waits_for_its_calls_and_takes_no_new_ones(world: World, /):
    output = await world.start()
    await eventually(lambda: world.running == 1)
    closing = asyncio.create_task(world.server.close())
    await asyncio.sleep(0.05)
    assert not closing.done()
    with pytest.raises(NotStarted):
        await world.lines.call(REPLICA, "echo", 1)
    world.go.set()
    assert (await rest(output))[-1].text == "end"
    with pytest.raises(NotStarted):
        await world.lines.call(REPLICA, "echo", 1)
    world.pool.update([])
    await closing
    assert not world.server.connections
    with pytest.raises(NotStarted):
        await world.lines.call(REPLICA, "echo", 1)


@in_world
async def test_a_replica_that_has_left_its_pool_is_let_go_of_with_its_last_call(world: World, /):
    output = await world.start()
    await eventually(lambda: world.running == 1)
    world.pool.update([])
    await asyncio.sleep(0.05)
    assert len(world.server.connections) == 1
    world.go.set()
    await rest(output)
    await eventually(lambda: not world.server.connections)


@in_world
async def test_where_nothing_listens_nothing_has_run(world: World, /):
    address = await world.server.address()
    await world.server.close()
    world.told = address
    with pytest.raises(NotStarted, match="nothing listens"):
        await world.start()


@in_world
async def test_a_gateway_with_another_secret_gets_nowhere(world: World, /):
    address = await world.server.address()
    world.told = address._replace(secret=b"guess")
    with pytest.raises(Lost, match="not the one"):
        await world.start()
    world.told = None
    assert await world.lines.call(REPLICA, "echo", 1) == 1


@pytest.mark.parametrize(
    "says",
    [
        # No nonce; a nonce and a proof of nothing; a frame that is longer than either.
        [pickle.dumps([Bomb()])],
        [bytes(NONCE_BYTES), bytes(PROOF_BYTES)],
        [bytes(NONCE_BYTES), pickle.dumps([Bomb()])],
    ],
)
@in_world
async def test_a_stranger_is_hung_up_on_and_nothing_of_it_is_unpickled(world: World, /, says):
    host, port, _ = await world.server.address()
    reader, writer = await asyncio.open_connection(host, port)
    for frame in says:
        writer.write(LENGTH.pack(len(frame)) + frame)
    with suppress(ConnectionError):
        await reader.read()
    writer.close()
    await eventually(lambda: not world.server.connections)
    assert not Bomb.went_off


@in_world
async def test_a_long_frame_of_a_stranger_is_refused_before_it_is_there(world: World, /):
    host, port, _ = await world.server.address()
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(LENGTH.pack(2**31))
    with suppress(ConnectionError):
        assert await reader.read() == b""
    writer.close()
    await eventually(lambda: not world.server.connections)


def test_a_frame_that_is_too_long_ends_the_connection(monkeypatch):
    async def scenario(world: World) -> None:
        assert await world.lines.call(REPLICA, "echo", bytes(1_000)) == bytes(1_000)
        with pytest.raises(Lost):
            await world.lines.call(REPLICA, "echo", bytes(100_000))

    monkeypatch.setattr(wire, "LONGEST", 50_000)
    play(scenario)


def test_a_silent_stranger_is_hung_up_on(monkeypatch):
    async def scenario(world: World) -> None:
        host, port, _ = await world.server.address()
        reader, writer = await asyncio.open_connection(host, port)
        with suppress(ConnectionError):
            assert await reader.read() == b""
        writer.close()

    monkeypatch.setattr(wire, "PROOF_WITHIN_S", 0.05)
    play(scenario)


@in_world
async def test_whoever_listens_in_a_replicas_place_gets_no_request(world: World, /):
    heard = bytearray()

    async def pretend(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        frame = bytes(NONCE_BYTES + PROOF_BYTES)
        writer.write(LENGTH.pack(len(frame)) + frame)
        with suppress(ConnectionError):
            heard.extend(await reader.read())
        writer.close()

    stranger = await asyncio.start_server(pretend, "127.0.0.1", 0)
    host, port = stranger.sockets[0].getsockname()
    world.told = Address(host, port, b"secret")
    with pytest.raises(Lost, match="not the one"):
        await world.start()
    stranger.close()
    await asyncio.sleep(0.05)
    assert len(heard) <= LENGTH.size + NONCE_BYTES


@pytest.mark.parametrize(("stream", "chunks"), [(True, 8), (False, 2)])
def test_only_an_answer_that_leaves_whole_is_gathered(stream, chunks):
    async def scenario() -> list[TokenChunk]:
        body = json.dumps({"prompt": "x", "stream": stream}).encode()
        call = ClientCall("/v1/completions", body, stream, True)
        asked = EngineRequest(request_id="r", model="m", prompt="", input_tokens=1, max_tokens=8, call=call)
        return [chunk async for chunk in Replica("replica").answer(asked, None)]

    found = asyncio.run(scenario())
    assert [chunk.tokens for chunk in found] == ([1] * 8 if stream else [1, 7])
    assert len(found) == chunks


def test_what_leaves_whole_travels_as_its_first_chunk_and_the_rest():
    async def chunks() -> AsyncGenerator[TokenChunk, None]:
        for number in range(16):
            await asyncio.sleep(0)
            yield TokenChunk(b"" if number < 15 else b"{}", 1, None if number < 15 else "length", number)

    async def scenario() -> None:
        found = [chunk async for chunk in gathered(chunks())]
        assert found == [TokenChunk(b"", 1, None, 0), TokenChunk(b"{}", 15, "length", 15)]

    asyncio.run(scenario())
