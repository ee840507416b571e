"""The simulated engine: model times on a clock that jumps, faults, what it says, what it costs to start."""

import asyncio
import dataclasses
import subprocess
import sys
import time

import numpy as np
import pytest

from headway.config import SimulationSettings
from headway.config.models import SimulatedEngineSettings
from headway.engine import IterationTimes, engine_profile, engine_rules
from headway.planning.types import Role
from serve_apps.engines.protocol import (
    EngineError,
    EngineFailed,
    EngineRequest,
    KvHandle,
    LoadedAdapters,
)
from serve_apps.engines.simulated import InjectedFault, SimulatedEngine, slowness_of
from serve_apps.engines.simulated.content import words
from tests.engines.engine_cases import (
    MIXED,
    SPLIT,
    collect,
    config_of,
    count_of,
    handle,
    load_of,
    pools_of,
    request,
    route,
    text_of,
)
from tests.engines.virtual_loop import on_virtual_time, run
from tests.patience import PATIENCE_S
from tests.simulation import worlds

IDLE = (0, 0, 0.0)
HANDLE = KvHandle(request_id="r", engine_id="p", input_tokens=20)


def engine_of(role: Role, **engine) -> SimulatedEngine:
    return SimulatedEngine(config_of(pools_of(role), **engine), role, f"{role}-1")


def stream_of(engine: SimulatedEngine, asked):
    kv = KvHandle(request_id=asked.request_id, engine_id="p", input_tokens=asked.input_tokens)
    return engine.decode(asked, kv if engine.role is Role.DECODE else None)


async def times_of(stream) -> list[float]:
    """When each chunk came."""
    clock = asyncio.get_running_loop().time
    return [clock() async for _ in stream]


@pytest.mark.parametrize(
    ("speeds", "queueing_s", "slower", "faster"),
    [
        ({}, 0.0, 1.0, 1.0),
        ({"prefill_speed": 0.5, "decode_speed": 2.0, "queueing_ms": 250.0}, 0.25, 2.0, 2.0),
    ],
    ids=["as profiled", "by simulation.engine"],
)
@on_virtual_time
async def test_a_request_takes_what_the_profile_or_simulation_engine_has_and_reports_it(
    speeds, queueing_s, slower, faster
):
    asked = request(input_tokens=1000, max_tokens=40)
    simulation = SimulationSettings(engine=SimulatedEngineSettings(**speeds))
    config = config_of().model_copy(update={"simulation": simulation})
    prefill, decode = (SimulatedEngine(config, role, role.value) for role in (Role.PREFILL, Role.DECODE))
    kv, clock = await prefill.prefill(asked), asyncio.get_running_loop().time
    prefilled_s = clock()
    came = [(clock(), chunk) async for chunk in decode.decode(asked, kv)]
    token_s, chunks = zip(*came, strict=True)
    profile = engine_profile(config_of())
    assert prefilled_s == pytest.approx(queueing_s + slower * profile.prefill.ttft_s(1000), abs=1e-6)
    assert kv.times == pytest.approx((None, queueing_s, None, prefilled_s), abs=1e-6)
    transfer_s = engine_rules(config_of(), profile).transfer_s(1000)
    steps = np.cumsum([IterationTimes(profile).itl_s(1, 1000 + n) / faster for n in range(40)])
    assert token_s == pytest.approx(prefilled_s + transfer_s + steps, abs=1e-6)
    reported = (transfer_s, transfer_s, transfer_s + steps[0], transfer_s + steps[-1])
    assert chunks[-1].times == pytest.approx(reported, abs=1e-6)


def test_slowness_over_time_and_of_some_engines():
    def slowness(number: int = 0, **engine):
        simulation = SimulationSettings(engine=SimulatedEngineSettings(**engine))
        return slowness_of(config_of().model_copy(update={"simulation": simulation}), f"Decode#{number}")

    assert slowness() is None
    assert slowness(queueing_ms=5.0) is None
    begun_s = time.time() - 100.0
    later = slowness(prefill_speed={0: 1, 60: 0.5}, decode_speed={0: 1, 600: 0.5}, began_s=begun_s)
    assert later() == (2.0, 1.0)
    slow = [slowness(number, slow_replicas={"share": 0.25, "speed": 0.5})()[1] for number in range(200)]
    assert set(slow) == {1.0, 2.0}
    assert 25 <= slow.count(2.0) <= 75


@pytest.mark.parametrize("mixed", [False, True], ids=["disaggregated", "mixed"])
def test_a_trace_in_virtual_time_equals_the_simulator(mixed):
    """Deployment and simulator serve the same trace alike, to what a timer may be late on this clock."""
    config = config_of(MIXED if mixed else SPLIT)
    trace = worlds.poisson_trace(seed=9, count=80, rate_rps=25.0, isl_mean=2000, osl_mean=100)
    initial = {Role.MIXED: 1} if mixed else {Role.PREFILL: 1, Role.DECODE: 1}
    profile = engine_profile(config)
    setting = worlds.scenario(profile, initial, engine=engine_rules(config, profile))
    _, records = worlds.run(setting, trace)

    async def serve(number: int) -> tuple[float, float]:
        asked = request(
            str(number),
            input_tokens=int(trace.input_tokens[number]),
            max_tokens=int(trace.output_tokens[number]),
        )
        await asyncio.sleep(float(trace.arrival_s[number]))
        kv = None if mixed else await prefill.prefill(asked)
        times_s = await times_of(decode.decode(asked, kv))
        return times_s[0], times_s[-1]

    async def serve_all() -> list[tuple[float, float]]:
        return await asyncio.gather(*(serve(number) for number in range(80)))

    prefill, decode = engine_of(Role.PREFILL), engine_of(Role.MIXED if mixed else Role.DECODE)
    first_s, finished_s = np.array(run(serve_all())).T
    assert np.abs(first_s - records["first_token_s"]).max() < 1e-6
    assert np.abs(finished_s - records["finished_s"]).max() < 1e-6


def test_time_scale_stretches_the_profile_but_not_the_transfer():
    async def prefill_s(engine) -> float:
        await engine.prefill(request(input_tokens=1000))
        return asyncio.get_running_loop().time()

    plain, slow = (run(prefill_s(engine_of(Role.PREFILL, time_scale=scale))) for scale in (1.0, 0.1))
    assert slow == pytest.approx(10 * plain, rel=1e-9)
    config = config_of(time_scale=0.1)
    assert engine_rules(config, engine_profile(config)).transfer_s(1000) == pytest.approx(
        0.005 + 131.072e6 / 25e9
    )


def test_a_late_loop_makes_streams_coarser_but_not_slower():
    async def serve(busy_s: float):
        loop, engine = asyncio.get_running_loop(), engine_of(Role.DECODE)
        chunks, stream = [], engine.decode(request(max_tokens=200), HANDLE)
        async for chunk in stream:
            chunks.append(chunk)
            if len(chunks) == 1:
                loop.pass_time(busy_s)
        return chunks, loop.time()

    on_time, ends_s = run(serve(0.0))
    late, late_ends_s = run(serve(0.5))
    assert len(on_time) == 200
    assert 1 < len(late) < 150
    assert (count_of(late), text_of(late)) == (200, text_of(on_time))
    assert late_ends_s == pytest.approx(ends_s, abs=1e-6)


@on_virtual_time
async def test_prefilled_kv_is_held_until_its_transfer_is_over_or_it_is_aborted():
    engine, seen = engine_of(Role.PREFILL, kv_transfer={"latency_ms": 1000, "bytes_per_token": 1}), []

    def held() -> None:
        seen.append(engine.stats().held_kv_tokens)

    await engine.prefill(request("a", input_tokens=300))
    await engine.prefill(request("b", input_tokens=50))
    held()
    await engine.abort("a")
    held()
    await asyncio.sleep(0.6)
    await engine.prefill(request("b", input_tokens=50))
    await asyncio.sleep(0.6)  # a second try is not released with the first
    held()
    await asyncio.sleep(0.6)
    held()
    assert seen == [350, 50, 50, 0]


def test_what_the_settings_allow_bounds_a_request():
    async def ask(tokens: int) -> int:
        return count_of(await collect(stream_of(engine, request(input_tokens=20, max_tokens=tokens))))

    engine = engine_of(Role.MIXED, max_model_tokens=100)
    assert run(ask(80)) == 80
    with pytest.raises(EngineError, match="20 input and 81 output tokens are more than the 100"):
        run(ask(81))


def test_what_an_engine_cannot_do_is_refused():
    with pytest.raises(EngineError, match="prefill engine prefill-1: does not decode"):
        run(collect(engine_of(Role.PREFILL).decode(request(), HANDLE)))
    with pytest.raises(EngineError, match="does not prefill"):
        run(engine_of(Role.DECODE).prefill(request()))
    with pytest.raises(EngineError, match="max_tokens"):
        run(collect(stream_of(engine_of(Role.MIXED), request(max_tokens=0))))


def test_an_empty_prompt_is_one_token():
    chunks = run(collect(stream_of(engine_of(Role.MIXED), request(prompt="", input_tokens=0))))
    assert count_of(chunks) == 8


# The prefix cache.

BLOCK = 512


def turn(request_id: str, blocks: list[int], max_tokens: int = 4) -> EngineRequest:
    """A prompt of whole blocks."""
    tokens = BLOCK * len(blocks)
    return request(
        request_id, input_tokens=tokens, max_tokens=max_tokens, route=route(request_id, tokens, blocks=blocks)
    )


@on_virtual_time
async def test_the_last_chunk_says_what_of_the_prompt_was_cached():
    mixed, prefill = (engine_of(role, prefix_cache_tokens=10_000) for role in (Role.MIXED, Role.PREFILL))
    await collect(mixed.decode(turn("1", [1, 2]), None))
    here = [chunk.cached_tokens async for chunk in mixed.decode(turn("2", [1, 2, 3]), None)]
    await prefill.prefill(turn("1", [1, 2]))
    kv = await prefill.prefill(turn("3", [1, 2, 3]))
    assert kv.cached_tokens == 2 * BLOCK
    elsewhere = [chunk.cached_tokens async for chunk in mixed.decode(turn("3", [1, 2, 3]), kv)]
    assert [here, elsewhere] == [[None, None, None, 2 * BLOCK]] * 2


@on_virtual_time
async def test_only_what_is_not_cached_travels():
    transfer = {"latency_ms": 100, "bytes_per_token": 1000, "bandwidth_gb_s": 0.001}
    engine = engine_of(Role.MIXED, prefix_cache_tokens=1_000_000, kv_transfer=transfer)
    expected_s = (
        0.1 + BLOCK * 1000 / 1e6 + IterationTimes(engine_profile(config_of(MIXED))).itl_s(1, 3 * BLOCK)
    )
    await collect(engine.decode(turn("1", [1, 2]), None))
    begun_s = asyncio.get_running_loop().time()
    stream = engine.decode(turn("2", [1, 2, 3]), handle("2", 3 * BLOCK))
    await anext(stream)
    first_s = asyncio.get_running_loop().time() - begun_s
    await stream.aclose()
    assert first_s == pytest.approx(expected_s, abs=1e-9)


@pytest.mark.parametrize(
    ("known", "engine"), [({"block_tokens": 16}, {"prefix_cache_tokens": 1_000_000}), ({}, {})]
)
@on_virtual_time
async def test_blocks_of_another_size_or_without_a_cache_are_not_used(known, engine):
    mixed = engine_of(Role.MIXED, **engine)
    for name in "ab":
        asked = request(name, input_tokens=1024, route=route(name, 1024, blocks=[1, 2], **known))
        await collect(mixed.decode(asked, None))
    stats = mixed.stats()
    assert (stats.prompt_tokens, stats.cached_tokens, stats.external_tokens) == (2048, 0, 0)


# Faults.


@on_virtual_time
async def test_a_failed_engine_raises_everywhere_and_for_good():
    engine = engine_of(Role.MIXED)
    streams = [
        asyncio.create_task(collect(stream_of(engine, request(str(n), max_tokens=500)))) for n in range(3)
    ]
    await asyncio.sleep(0.5)
    engine.inject(InjectedFault("fail"))
    for stream in streams:
        with pytest.raises(EngineFailed):
            await stream
    engine.inject(InjectedFault.CLEAR)
    with pytest.raises(EngineFailed):
        engine.stats()
    with pytest.raises(EngineFailed):
        await collect(stream_of(engine, request()))
    await engine.abort("r")


def test_a_stalled_engine_stands_still_and_then_goes_on():
    async def stall() -> None:
        loop, engine, chunks = asyncio.get_running_loop(), engine_of(Role.MIXED), []

        async def read() -> float:
            async for chunk in stream_of(engine, request(max_tokens=100)):
                chunks.append(chunk)  # noqa: PERF401 - seen while it grows
            return loop.time()

        reader = asyncio.create_task(read())
        await asyncio.sleep(0.3)
        engine.inject(InjectedFault.STALL)
        before = count_of(chunks)
        late = asyncio.create_task(collect(stream_of(engine, request("late"))))
        await asyncio.sleep(50.0)
        assert 0 < before == count_of(chunks) < 100
        assert load_of(engine)[:2] == (1, 1)
        engine.inject(InjectedFault.CLEAR)
        assert await reader == pytest.approx(50.0 + await alone_s(), rel=0.05)
        assert count_of(await late) == 8
        assert load_of(engine) == IDLE

    async def alone_s() -> float:
        loop = asyncio.get_running_loop()
        start_s = loop.time()
        await collect(stream_of(engine_of(Role.MIXED), request(max_tokens=100)))
        return loop.time() - start_s

    run(stall())


def test_exit_ends_the_process():
    code = (
        "from tests.engines.engine_cases import *; from tests.engines.virtual_loop import run\n"
        "from serve_apps.engines.simulated import *\n"
        "engine = SimulatedEngine(config_of(), Role.DECODE, 'd')\n"
        "async def leave():\n    engine.inject(InjectedFault.EXIT)\n    print('still here')\nrun(leave())"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    assert (ended.returncode, ended.stdout) == (1, "")


# What it says.


def test_text_is_the_same_whatever_the_prompt_so_that_a_retry_goes_on_elsewhere():
    def text(prompt, **sampling) -> str:
        return text_of(run(collect(stream_of(engine_of(Role.MIXED), request(prompt=prompt, **sampling)))))

    assert text("a", seed=1) == text([1, 2]) == text("\ud800") == words(0, 8)


# Making one.


def test_the_constructor_takes_the_start_up_time(monkeypatch):
    slept_s = []
    monkeypatch.setattr(time, "sleep", slept_s.append)
    engine_of(Role.MIXED, start_up_s=60.0)
    assert slept_s == [60.0]


def test_a_replica_starts_without_a_compiler():
    code = (
        "import sys; from tests.engines.engine_cases import *; from serve_apps.engines import make_engine\n"
        "make_engine(config_of(), Role.DECODE, 'd'); print({'numba', 'pandas', 'ray'} & set(sys.modules))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout == "set()\n"


def test_a_request_waits_for_an_adapter_that_is_not_loaded():
    lora = {"names": ["a", "b"], "at_once": 1, "load_ms": 100.0}
    engine = engine_of(Role.MIXED, lora=lora)

    async def first_token_s(name: str, adapter: str) -> float:
        asked = dataclasses.replace(request(name, max_tokens=1), adapter=adapter)
        began_s = asyncio.get_running_loop().time()
        return (await times_of(engine.decode(asked, None)))[0] - began_s

    async def ask() -> list[float]:
        took_s = [await first_token_s("model", "")]
        for number, adapter in enumerate("aaba"):
            took_s.append(await first_token_s(f"r{number}", adapter))
            assert engine.stats().adapters == (adapter,)
        return took_s

    plain_s, *took_s = run(ask())
    assert [took - plain_s for took in took_s] == pytest.approx([0.1, 0.0, 0.1, 0.1], abs=1e-6)
    assert engine.stats().adapter_room == 1


def test_adapters_in_use_stay():
    loaded = LoadedAdapters(2, "ab", load_s=1.0)
    assert [loaded.begin(name) for name in "abc"] == [0.0, 0.0, 1.0]
    assert loaded.names == ("a", "b", "c")
    loaded.end("b")
    assert loaded.names == ("a", "c")
    assert loaded.begin("c", now_s=0.75) == 0.25
    assert LoadedAdapters(None).names is None
