import asyncio
from contextlib import aclosing

import pytest

from serve_apps.calls import ChunkStream, FeedSender
from serve_apps.engines.protocol import TokenChunk


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_what_comes_in_one_step_leaves_in_one_frame():
    async def scenario() -> None:
        outlet, frames = FeedSender(), []

        async def read() -> None:
            async with aclosing(outlet.frames()) as all_frames:
                async for frame in all_frames:
                    frames.append(list(frame))  # noqa: PERF401 - looked at while it goes on

        reader = asyncio.create_task(read())
        await settle()
        for key in range(3):
            outlet.put(key, TokenChunk(f"t{key}", 1))
        await settle()
        outlet.put(1, TokenChunk("end", 2, "length", 640))
        await settle()
        assert frames == [
            [(key, f"t{key}", 1, None, None) for key in range(3)],
            [(1, "end", 2, "length", 640)],
        ]
        reader.cancel()
        await asyncio.wait([reader])
        assert reader.cancelled()

    asyncio.run(scenario())


def test_what_was_put_before_anybody_read_is_in_the_first_frame():
    async def scenario() -> None:
        outlet = FeedSender()
        outlet.put(7, TokenChunk("early", 1))
        async with aclosing(outlet.frames()) as frames:
            assert await anext(frames) == [(7, "early", 1, None, None)]

    asyncio.run(scenario())


def test_a_stream_ends_when_it_has_all_chunks_also_when_the_end_is_known_first():
    async def scenario() -> None:
        stream = ChunkStream()
        stream.end(2)
        taking = asyncio.create_task(stream.next())
        await settle()
        assert not taking.done()
        stream.put(TokenChunk("a", 1))
        assert await taking == TokenChunk("a", 1)
        stream.put(TokenChunk("b", 1, "length"))
        assert await stream.next() == TokenChunk("b", 1, "length")
        assert await stream.next() is None

    asyncio.run(scenario())


def test_a_slow_taker_gets_one_joined_chunk():
    async def scenario() -> None:
        stream = ChunkStream()
        for text in "abc":
            stream.put(TokenChunk(text, 2))
        stream.put(TokenChunk("d", 1, "length", 5))
        stream.end(4)
        assert await stream.next() == TokenChunk("abcd", 7, "length", 5)
        assert await stream.next() is None

    asyncio.run(scenario())


def test_an_error_comes_after_what_came_before_it_and_the_first_one_counts():
    async def scenario() -> None:
        stream = ChunkStream()
        stream.put(TokenChunk("a", 1))
        stream.fail(ValueError("first"))
        stream.fail(ValueError("second"))
        assert await stream.next() == TokenChunk("a", 1)
        for _ in range(2):
            with pytest.raises(ValueError, match="first"):
                await stream.next()

    asyncio.run(scenario())


def test_a_waiting_taker_hears_of_an_error():
    async def scenario() -> None:
        stream = ChunkStream()
        taking = asyncio.create_task(stream.next())
        await settle()
        stream.fail(ValueError("lost"))
        with pytest.raises(ValueError, match="lost"):
            await taking

    asyncio.run(scenario())
