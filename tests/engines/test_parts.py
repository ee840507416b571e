"""Mixed simulated engines that share requests, the prefix cache, and what routers and operators can see.

Model times on a clock that jumps. Whoever comes while nothing else runs takes what the profile says.
"""

import asyncio

import pytest

from headway.engine import IterationTimes, engine_profile, engine_rules
from headway.planning.types import Role
from serve_apps.engines.protocol import EngineRequest, EngineStats, RequestAborted, TokenChunk
from serve_apps.engines.simulated import InjectedFault, SimulatedEngine
from tests.engines.engine_cases import MIXED, SPLIT, collect, config_of, count_of, handle, request, route
from tests.engines.virtual_loop import run

TRANSFER = {"latency_ms": 100, "bytes_per_token": 1}
WHOLE = {"chunk_tokens": 100_000}
BLOCK = 512


def engine_of(role: Role = Role.MIXED, **engine) -> SimulatedEngine:
    return SimulatedEngine(config_of(MIXED if role is Role.MIXED else SPLIT, **engine), role, f"{role}-1")


def iteration_times(**engine) -> IterationTimes:
    return IterationTimes(engine_profile(config_of(MIXED, **engine)))


def now_s() -> float:
    return asyncio.get_running_loop().time()


def turn(request_id: str, blocks: list[int], max_tokens=4) -> EngineRequest:
    """A prompt of whole blocks."""
    tokens = BLOCK * len(blocks)
    return request(
        request_id, input_tokens=tokens, max_tokens=max_tokens, route=route(request_id, tokens, blocks=blocks)
    )


async def times_of(stream) -> list[float]:
    return [now_s() async for _ in stream]


def totals(stats: EngineStats) -> tuple[int, int, int]:
    return stats.prompt_tokens, stats.cached_tokens, stats.external_tokens


def test_two_mixed_engines_share_a_request_on_time():
    async def share() -> tuple[float, list[float]]:
        kv = await first.prefill(asked)
        prefilled_s = now_s()
        assert (first.stats().running, first.stats().held_kv_tokens) == (0, 1000)
        token_s = await times_of(second.decode(asked, kv))
        assert first.stats().held_kv_tokens == 0
        return prefilled_s, token_s

    asked = request(input_tokens=1000, max_tokens=3)
    first, second = (engine_of(kv_transfer=TRANSFER, **WHOLE) for _ in range(2))
    prefilled_s, token_s = run(share())
    times = iteration_times(**WHOLE)
    assert prefilled_s == pytest.approx(times.empty_s + times.work_s(1000) - times.work_s(0), abs=1e-9)
    steps_s = [times.itl_s(1, 1000 + n) for n in range(3)]
    rules = engine_rules(config_of(MIXED, kv_transfer=TRANSFER), engine_profile(config_of()))
    starts_s = prefilled_s + rules.transfer_s(1000)
    assert token_s == pytest.approx([starts_s + sum(steps_s[: n + 1]) for n in range(3)], abs=1e-9)


def test_prefilled_requests_do_not_wait_behind_prompts():
    async def first_token_s(kv) -> float:
        engine = engine_of(chunk_tokens=256, kv_transfer=TRANSFER)
        long = asyncio.create_task(collect(engine.decode(request("long", input_tokens=20_000), None)))
        await asyncio.sleep(0)
        stream = engine.decode(request("r", input_tokens=20), kv)
        await anext(stream)
        came_s = now_s()
        await stream.aclose()
        await long
        return came_s

    times = iteration_times()
    chunk_s = times.work_s(20_000) - times.work_s(20_000 - 256) + times.empty_s
    assert run(first_token_s(handle())) < 0.101 + 3 * chunk_s
    assert run(first_token_s(None)) > times.work_s(20_000)


def test_a_turn_of_a_conversation_computes_only_what_is_new():
    async def talk() -> list[float]:
        seconds = []
        for number in (1, 2, 3):
            begun_s = now_s()
            await engine.prefill(turn(str(number), list(range(10 * number))))
            seconds.append(now_s() - begun_s)
        return seconds

    engine = engine_of(Role.PREFILL, prefix_cache_tokens=1_000_000)
    alone_s = iteration_times().ttft_s(10 * BLOCK)
    assert run(talk()) == pytest.approx([alone_s] * 3, abs=1e-9)
    assert totals(run_stats(engine)) == (60 * BLOCK, 30 * BLOCK, 0)


def run_stats(engine: SimulatedEngine) -> EngineStats:
    async def look() -> EngineStats:
        return engine.stats()

    return run(look())


def test_received_kv_counts_as_external_and_is_cached():
    async def talk() -> list[tuple[int, int, int]]:
        seen = []
        await collect(engine.decode(turn("1", [1, 2]), handle("1", 2 * BLOCK)))
        seen.append(totals(engine.stats()))
        await collect(engine.decode(turn("2", [1, 2, 3]), None))
        seen.append(totals(engine.stats()))
        await collect(engine.decode(turn("3", [1, 2, 3, 4]), handle("3", 4 * BLOCK)))
        return [*seen, totals(engine.stats())]

    engine = engine_of(prefix_cache_tokens=1_000_000)
    assert run(talk()) == [
        (2 * BLOCK, 0, 2 * BLOCK),
        (5 * BLOCK, 2 * BLOCK, 2 * BLOCK),
        (9 * BLOCK, 5 * BLOCK, 3 * BLOCK),
    ]


def test_the_last_chunk_says_what_of_the_prompt_was_cached():
    async def talk() -> list[list[int | None]]:
        await collect(mixed.decode(turn("1", [1, 2]), None))
        here = [chunk.cached_tokens async for chunk in mixed.decode(turn("2", [1, 2, 3]), None)]
        await prefill.prefill(turn("1", [1, 2]))
        kv = await prefill.prefill(turn("3", [1, 2, 3]))
        assert kv.cached_tokens == 2 * BLOCK
        elsewhere = [chunk.cached_tokens async for chunk in mixed.decode(turn("3", [1, 2, 3]), kv)]
        return [here, elsewhere]

    mixed, prefill = (engine_of(role, prefix_cache_tokens=10_000) for role in (Role.MIXED, Role.PREFILL))
    assert run(talk()) == [[None, None, None, 2 * BLOCK]] * 2


def test_only_what_is_not_cached_travels():
    async def first_token_s() -> float:
        await collect(engine.decode(turn("1", [1, 2]), None))
        begun_s = now_s()
        stream = engine.decode(turn("2", [1, 2, 3]), handle("2", 3 * BLOCK))
        await anext(stream)
        first_s = now_s() - begun_s
        await stream.aclose()
        return first_s

    transfer = {"latency_ms": 100, "bytes_per_token": 1000, "bandwidth_gb_s": 0.001}
    engine = engine_of(prefix_cache_tokens=1_000_000, kv_transfer=transfer)
    expected_s = 0.1 + BLOCK * 1000 / 1e6 + iteration_times().itl_s(1, 3 * BLOCK)
    assert run(first_token_s()) == pytest.approx(expected_s, abs=1e-9)


@pytest.mark.parametrize(
    ("known", "engine"), [({"block_tokens": 16}, {"prefix_cache_tokens": 1_000_000}), ({}, {})]
)
def test_blocks_of_another_size_or_without_a_cache_are_not_used(known, engine):
    async def twice() -> EngineStats:
        for name in "ab":
            asked = request(name, input_tokens=1024, route=route(name, 1024, blocks=[1, 2], **known))
            await collect(mixed.decode(asked, None))
        return mixed.stats()

    mixed = engine_of(**engine)
    assert totals(run(twice())) == (2048, 0, 0)


def test_busy_time_gives_the_utilisation():
    async def look() -> list[float]:
        engine, seen = engine_of(Role.PREFILL), []
        seen.append(engine.stats().busy_s)
        waiting = asyncio.create_task(engine.prefill(request(input_tokens=8_000)))
        await asyncio.sleep(0.05)
        seen.append(engine.stats().busy_s)
        await waiting
        seen.append(engine.stats().busy_s)
        await asyncio.sleep(9.0)
        return [*seen, engine.stats().busy_s]

    ttft_s = iteration_times().ttft_s(8_000)
    assert ttft_s > 0.05
    assert run(look()) == pytest.approx([0.0, 0.05, ttft_s, ttft_s], abs=1e-9)


def test_a_stalled_engine_is_not_busy():
    async def look() -> list[float]:
        engine = engine_of()
        stream = engine.decode(request(max_tokens=50), None)
        await anext(stream)
        engine.inject(InjectedFault.STALL)
        before_s = engine.stats().busy_s
        await asyncio.sleep(5.0)
        return [before_s, engine.stats().busy_s]

    before_s, after_s = run(look())
    assert before_s == after_s > 0.0


@pytest.mark.parametrize(
    ("wait_s", "load"), [(0.05, (1, 1)), (0.15, (1, 1)), (2.0, (1, 0))], ids=["coming", "queued", "running"]
)
def test_abort_ends_a_prefilled_request_on_a_mixed_engine(wait_s, load):
    async def leave() -> None:
        engine = engine_of(kv_transfer=TRANSFER, max_batch_size=1)
        other = asyncio.create_task(collect(engine.decode(request("other", max_tokens=60), None)))
        await asyncio.sleep(0)
        ended = asyncio.create_task(collect(engine.decode(request(max_tokens=2_000), handle())))
        await asyncio.sleep(wait_s)
        assert (engine.stats().running, engine.stats().waiting) == load
        await engine.abort("r")
        with pytest.raises(RequestAborted):
            await ended
        assert count_of(await other) == 60
        assert (engine.stats().running, engine.stats().waiting, engine.stats().kv_usage) == (0, 0, 0.0)

    run(leave())


# Attempts.


def test_a_new_attempt_begins_afresh_and_on_time():
    async def again() -> tuple[float, list[TokenChunk]]:
        engine = engine_of(kv_transfer=TRANSFER)
        first = asyncio.create_task(collect(engine.decode(request(max_tokens=2_000), None)))
        await asyncio.sleep(1.0)
        stats = engine.stats()
        assert (stats.running, stats.waiting) == (1, 0)
        begun_s = now_s()
        stream = engine.decode(request(max_tokens=3), handle())
        chunks = [await anext(stream)]
        first_s = now_s() - begun_s
        with pytest.raises(RequestAborted, match="r: came again"):
            await first
        chunks += await collect(stream)
        assert (engine.stats().running, engine.stats().waiting, engine.running()) == (0, 0, [])
        return first_s, chunks

    first_s, chunks = run(again())
    assert count_of(chunks) == 3
    transfer_s = 0.1 + 20 / 25e9
    assert transfer_s < first_s < transfer_s + 0.05


def test_the_end_of_an_earlier_attempt_does_not_touch_the_new_one():
    async def again() -> int:
        engine = engine_of()
        first, second = (engine.decode(request(max_tokens=200), None) for _ in range(2))
        await anext(first)
        chunks = [await anext(second)]
        await first.aclose()
        return count_of(chunks + await collect(second))

    assert run(again()) == 200


def test_an_attempt_that_is_refused_leaves_the_earlier_one_alone():
    async def again() -> int:
        engine = engine_of(max_model_tokens=400)
        stream = engine.decode(request(max_tokens=100), None)
        chunks = [await anext(stream)]
        with pytest.raises(Exception, match="more than the 400"):
            await collect(engine.decode(request(max_tokens=1000), None))
        return count_of(chunks + await collect(stream))

    assert run(again()) == 100
