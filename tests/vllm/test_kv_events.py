"""vLLM's prefix cache as the router knows it: KV events, and an engine that evicts."""

import asyncio
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.kv_events import KEY_TOKENS, Errors, Round
from serve_apps.engines.vllm.kv_events import KvEvents
from serve_apps.gateway.prompts import prefix_blocks
from tests.patience import eventually
from tests.vllm.one_vllm import Mixed

SIZE = 16


@contextmanager
def publishing(events: KvEvents, **settings: Any) -> Iterator[Any]:
    """vLLM's own publisher, without an engine."""
    with warnings.catch_warnings(action="ignore"):
        from vllm.config import KVEventsConfig
        from vllm.distributed.kv_events import EventPublisherFactory

    publisher = EventPublisherFactory.create(KVEventsConfig(**{**events.config, **settings}))
    try:
        yield publisher
    finally:
        publisher.shutdown()
        events.close()


def prompt(number: int) -> list[int]:
    return [number] * KEY_TOKENS


def stored(number: int) -> Any:
    from vllm.distributed.kv_events import BlockStored, KVEventBatch

    names = [f"{number}/{place}".encode() for place in range(KEY_TOKENS // SIZE)]
    event = BlockStored(
        block_hashes=names,
        parent_block_hash=None,
        token_ids=prompt(number),
        block_size=SIZE,
        lora_id=None,
        medium="GPU",
        lora_name=None,
        group_idx=0,
    )
    return KVEventBatch(ts=time.time(), events=[event])


def cleared() -> Any:
    from vllm.distributed.kv_events import AllBlocksCleared, KVEventBatch

    return KVEventBatch(ts=time.time(), events=[AllBlocksCleared()])


def held(events: KvEvents) -> set[int] | None:
    said = events.book and events.book.since(None)
    return None if said is None else set(said.held)


def keys(*numbers: int) -> set[int]:
    return {key for number in numbers for key in prefix_blocks(prompt(number), KEY_TOKENS)}


def test_what_was_said_before_anybody_listened_is_said_again() -> None:
    async def listen() -> None:
        events = KvEvents()
        with publishing(events) as publisher:
            publisher.publish(stored(1))
            publisher.publish(stored(2))
            await eventually(lambda: len(publisher._buffer) == 2)
            events.loaded(1000, SIZE)
            events.start()
            await eventually(lambda: held(events) == keys(1, 2))
            publisher.publish(stored(3))
            await eventually(lambda: held(events) == keys(1, 2, 3))
            assert not Path(events._directory).exists(), "nothing is left if the replica is killed"

    asyncio.run(listen())


def test_what_cannot_be_said_again_leaves_the_cache_unknown_until_it_is_cleared() -> None:
    async def listen() -> None:
        events = KvEvents()
        with publishing(events, buffer_steps=1) as publisher:
            publisher.publish(stored(1))
            publisher.publish(stored(2))
            await eventually(lambda: [number for number, _ in publisher._buffer] == [1])
            events.loaded(1000, SIZE)
            events.start()
            await eventually(lambda: held(events) is None)
            publisher.publish(cleared())
            publisher.publish(stored(3))
            await eventually(lambda: held(events) == keys(3))

    asyncio.run(listen())


def test_events_know_what_an_engine_evicted_and_what_it_said_itself(mixed: Mixed) -> None:
    config, engine = mixed.config, mixed.engine

    async def forget() -> None:
        """vLLM says so with its next step; nothing is forgotten while a request holds some of it."""
        while not await engine._llm.reset_prefix_cache():
            await asyncio.sleep(0.5)
        await Round(config, engine, seed=0)._ask("short", [64])
        await eventually(lambda: engine.known_blocks(None).held == ())

    async def play() -> Errors:
        await forget()
        errors = await Round(config, engine, seed=0, at_once=1).run()
        assert engine.known_blocks(None).held
        await forget()
        return errors

    errors = mixed.run(play())
    # Some of it was evicted, or else there would be nothing to know.
    assert errors.too_many["unsized"] > 0.03 * errors.prompt
    # Keys of 512 tokens say nothing of what is cached beyond the last whole one.
    beyond = {source: wrong - errors.rounding for source, wrong in errors.wrong.items()}
    assert beyond["events"] < 0.02 * errors.prompt
    assert beyond["estimate"] > 2 * beyond["events"]
    assert beyond["unsized"] > 4 * beyond["events"]
