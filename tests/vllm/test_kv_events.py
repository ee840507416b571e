"""vLLM's prefix cache as the router knows it: KV events, an engine that evicts, the whole live path."""

import asyncio
import os
import time
import urllib.request
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.kv_events import KEY_TOKENS, SETTINGS, Errors, Round
from headway.config import Role, load_config
from serve_apps.engines import make_engine
from serve_apps.engines.vllm.kv_events import KvEvents
from serve_apps.gateway.request import prefix_blocks
from tests.engines.engine_cases import until
from tests.ray.clusters import wait_until
from tests.vllm.served import NAME, Served, served

WAIT_S = 60.0
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
            await until(lambda: len(publisher._buffer) == 2, WAIT_S)
            events.loaded(1000, SIZE)
            events.start()
            await until(lambda: held(events) == keys(1, 2), WAIT_S)
            publisher.publish(stored(3))
            await until(lambda: held(events) == keys(1, 2, 3), WAIT_S)
            assert not Path(events._directory).exists(), "nothing is left if the replica is killed"

    asyncio.run(listen())


def test_what_cannot_be_said_again_leaves_the_cache_unknown_until_it_is_cleared() -> None:
    async def listen() -> None:
        events = KvEvents()
        with publishing(events, buffer_steps=1) as publisher:
            publisher.publish(stored(1))
            publisher.publish(stored(2))
            await until(lambda: [number for number, _ in publisher._buffer] == [1], WAIT_S)
            events.loaded(1000, SIZE)
            events.start()
            await until(lambda: held(events) is None, WAIT_S)
            publisher.publish(cleared())
            publisher.publish(stored(3))
            await until(lambda: held(events) == keys(3), WAIT_S)

    asyncio.run(listen())


def test_events_know_what_an_engine_evicted_and_what_it_said_itself(model: Path) -> None:
    config = load_config(None, {**SETTINGS, "engine.vllm.model": str(model)})

    async def play() -> Errors:
        with warnings.catch_warnings(action="ignore"):
            engine: Any = make_engine(config, Role.MIXED, "r")
        try:
            played = Round(config, engine, seed=0, at_once=1)
            errors = await played.run()
            assert engine.known_blocks(None).held
            assert await engine._llm.reset_prefix_cache()
            # vLLM says so with its next step.
            await played._ask("short", [64])
            await until(lambda: engine.known_blocks(None).held == (), WAIT_S)
            return errors
        finally:
            engine.close()

    with mock.patch.dict(os.environ):
        errors = asyncio.run(play())
    # Some of it was evicted, or else there would be nothing to know.
    assert errors.too_many["unsized"] > 0.03 * errors.prompt
    # Keys of 512 tokens say nothing of what is cached beyond the last whole one.
    beyond = {source: wrong - errors.rounding for source, wrong in errors.wrong.items()}
    assert beyond["events"] < 0.02 * errors.prompt
    assert beyond["estimate"] > 2 * beyond["events"]
    assert beyond["unsized"] > 4 * beyond["events"]


@pytest.fixture(scope="module")
def mixed(ray_cluster: str, model: Path) -> Iterator[Served]:
    from actors import control_plane

    settings = {
        "pools": {"mixed": {"min_replicas": 2, "max_replicas": 2}},
        "routing.profile": "prefix",
        # A busy machine is no reason to place without the router.
        "routing.call_timeout_ms": 10_000,
    }
    with served(model, **settings) as running:
        try:
            yield running
        finally:
            control_plane.stop(purge=True)


def tokens(system: Served) -> dict[tuple[str, str], float]:
    """Of prompts, by source and kind."""
    with urllib.request.urlopen(f"{system.url}/metrics", timeout=30) as answer:
        families = text_string_to_metric_families(answer.read().decode())
        return {
            (sample.labels["source"], sample.labels["kind"]): sample.value
            for family in families
            for sample in family.samples
            if sample.name == "headway_router_prefix_tokens_total"
        }


def test_what_replicas_cache_reaches_the_router_which_says_how_right_it_was(mixed: Served) -> None:
    """Without a setting: vLLM caches prefixes, and says so."""
    shared = [100 + number % 200 for number in range(2 * KEY_TOKENS + 40)]
    placed = []

    def ask() -> bool:
        answer = mixed.client().completions.with_raw_response.create(
            model=NAME,
            prompt=[*shared, 64 + len(placed)],
            max_tokens=2,
            extra_headers={"x-headway-explain": "true"},
        )
        placed.append(answer.headers["x-headway-replica"])
        usage = answer.parse().usage
        assert usage is not None
        return tokens(mixed).get(("events", "expected"), 0.0) >= 2 * KEY_TOKENS

    wait_until(ask, WAIT_S)
    before = tokens(mixed)
    for _ in range(4):
        ask()
    after = tokens(mixed)
    grown = {kind: after["events", kind] - before["events", kind] for _, kind in after if _ == "events"}
    # Blocks of 32 tokens: 1056 of 1064 are found, and 1024 are whole keys.
    assert grown["prompt"] == 4 * (len(shared) + 1)
    assert (grown["expected"], grown["cached"], grown["error"]) == (4 * 1024, 4 * 1056, 4 * 32)
    assert len(set(placed[-4:])) == 1, "all go where the prefix is"
