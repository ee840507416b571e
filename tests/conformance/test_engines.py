"""What every engine must do, simulated or real: streams, handles, aborts, cancellation, stats.

An engine under test is a maker per role; a new engine is one more entry of `MAKERS`.
"""

import asyncio
import pickle
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from headway.planning.types import Role
from serve_apps.engines import make_engine
from serve_apps.engines.protocol import (
    Engine,
    EngineError,
    EngineRequest,
    KvHandle,
    PromptTooLong,
    RequestAborted,
    TokenChunk,
)
from tests.engines.engine_cases import (
    collect,
    config_of,
    count_of,
    handle,
    load_of,
    pools_of,
    request,
    text_of,
    until,
)
from tests.engines.virtual_loop import on_virtual_time, run

NO_LOAD = (0, 0, 0.0)
MANY = 4_000
LONG = 100_000_000


def simulated(role: Role) -> Engine:
    """Its clock is the event loop's, which jumps: nothing ends before a test has looked."""
    return make_engine(config_of(pools_of(role)), role, f"{role}-1")


MAKERS = {"simulated": simulated}


@pytest.fixture(params=MAKERS.values(), ids=MAKERS.keys())
def make(request):
    return request.param


class Served:
    """A deployment: one mixed engine, or a prefill and a decode engine that exchange pickled values."""

    def __init__(self, make, mixed: bool) -> None:
        self.prefill: Engine | None = None if mixed else make(Role.PREFILL)
        self.decode: Engine = make(Role.MIXED if mixed else Role.DECODE)

    async def generate(self, asked: EngineRequest) -> AsyncGenerator[TokenChunk, None]:
        kv = await self.prefill.prefill(sent(asked)) if self.prefill else None
        stream = self.decode.decode(sent(asked), sent(kv))
        try:
            async for chunk in stream:
                yield sent(chunk)
        finally:
            await stream.aclose()

    def load(self) -> list[tuple[int, int, float]]:
        return [load_of(engine) for engine in (self.prefill, self.decode) if engine is not None]

    @property
    def idle(self) -> bool:
        return all(load == NO_LOAD for load in self.load())


def sent(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


@pytest.fixture(params=[False, True], ids=["disaggregated", "aggregated"])
def served(make, request):
    return Served(make, mixed=request.param)


@pytest.mark.parametrize("max_tokens", [1, 2, 17])
def test_a_stream_has_its_tokens_and_ends_with_one_reason(served, max_tokens):
    chunks = run(collect(served.generate(request(max_tokens=max_tokens))))
    assert count_of(chunks) == max_tokens
    assert all(chunk.tokens >= 1 for chunk in chunks)
    assert [chunk.finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + ["length"]
    assert text_of(chunks)
    assert served.idle


def test_the_last_chunk_says_when_the_engine_did_what(served):
    chunks = run(collect(served.generate(request(max_tokens=8, input_tokens=100))))
    assert [chunk.times for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    times = chunks[-1].times
    assert times is not None
    assert (times.transferred_s is None) == (served.prefill is None)
    in_order = [0.0, *(value for value in times if value is not None)]
    assert in_order == sorted(in_order)
    assert times.first_token_s < times.ended_s


def test_token_ids_are_a_prompt_too(served):
    chunks = run(collect(served.generate(request(prompt=[5, 6, 7], input_tokens=3))))
    assert count_of(chunks) == 8


@on_virtual_time
async def test_the_same_request_says_the_same(served):
    asked = [request(request_id=name, seed=3, temperature=0.0, max_tokens=30) for name in "ab"]
    first, second = tuple([text_of(await collect(served.generate(one))) for one in asked])
    assert first == second


@on_virtual_time
async def test_concurrent_requests_all_get_their_own(served):
    asked = [request(str(n), prompt=f"question {n}", max_tokens=5 + n % 7) for n in range(40)]
    streams = await asyncio.gather(*(collect(served.generate(one)) for one in asked))
    assert [count_of(chunks) for chunks in streams] == [5 + n % 7 for n in range(40)]
    assert served.idle


def handle_for(served: Served) -> KvHandle | None:
    return None if served.prefill is None else handle()


@on_virtual_time
async def test_what_can_never_fit_is_refused(served):
    with pytest.raises(PromptTooLong):
        await collect(served.generate(request(input_tokens=LONG)))
    with pytest.raises(PromptTooLong):
        await collect(served.decode.decode(request(max_tokens=LONG), handle_for(served)))
    assert count_of(await collect(served.generate(request()))) == 8
    assert served.idle


@on_virtual_time
async def test_load_is_seen_while_it_lasts(served):
    stream = served.generate(request(max_tokens=MANY, input_tokens=1000))
    await anext(stream)
    running, _, kv_usage = load_of(served.decode)
    assert running == 1
    assert 0.0 < kv_usage <= 1.0
    await stream.aclose()


@on_virtual_time
async def test_closing_a_stream_frees_its_slot(served):
    stream = served.generate(request(max_tokens=MANY))
    await anext(stream)
    await stream.aclose()
    await until(lambda: served.idle)


@on_virtual_time
async def test_cancelling_the_reader_frees_the_slot(served):
    reader = asyncio.create_task(collect(served.generate(request(max_tokens=MANY))))
    await until(lambda: load_of(served.decode)[0] == 1)
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    await until(lambda: served.idle)


@on_virtual_time
async def test_abort_of_an_unknown_request_is_ignored(served):
    stream = served.generate(request())
    await anext(stream)
    await served.decode.abort("never seen")
    await collect(stream)
    await served.decode.abort("r")


@on_virtual_time
async def test_cancelling_a_prefill_frees_it(make):
    engine = make(Role.PREFILL)
    names = [str(n) for n in range(30)]
    waiting = [asyncio.create_task(engine.prefill(request(name, input_tokens=8_000))) for name in names]
    await until(lambda: load_of(engine)[0] == 1)
    for task in waiting:
        task.cancel()
    ended = await asyncio.gather(*waiting, return_exceptions=True)
    assert any(isinstance(one, asyncio.CancelledError) for one in ended)
    await until(lambda: load_of(engine) == NO_LOAD)


def test_a_handle_says_whose_kv_it_is(make):
    handle = run(make(Role.PREFILL).prefill(request(input_tokens=123)))
    assert (handle.request_id, handle.engine_id, handle.input_tokens) == ("r", "prefill-1", 123)


def test_a_decode_engine_needs_a_handle(make):
    with pytest.raises(EngineError):
        run(collect(make(Role.DECODE).decode(request(), None)))


# A mixed engine does parts of requests too.


@pytest.fixture
def mixed(make) -> Engine:
    return make(Role.MIXED)


@on_virtual_time
async def test_mixed_engines_share_a_request(make):
    first, second = make(Role.MIXED), make(Role.MIXED)
    kv = await first.prefill(sent(request(max_tokens=17)))
    assert load_of(first) == NO_LOAD
    assert count_of(await collect(second.decode(sent(request(max_tokens=17)), sent(kv)))) == 17
    assert load_of(second) == NO_LOAD


@on_virtual_time
async def test_a_shared_request_says_what_a_whole_one_says(mixed):
    asked = request(seed=3, max_tokens=30)
    whole = text_of(await collect(mixed.decode(asked, None)))
    shared = text_of(await collect(mixed.decode(asked, await mixed.prefill(asked))))
    assert whole == shared


@on_virtual_time
async def test_all_kinds_of_work_run_beside_each_other(mixed):
    prompts = [mixed.prefill(request(f"p{n}")) for n in range(10)]
    whole = [collect(mixed.decode(request(f"w{n}", max_tokens=5 + n), None)) for n in range(10)]
    came = [collect(mixed.decode(request(f"c{n}", max_tokens=5 + n), handle(f"c{n}"))) for n in range(10)]
    handles, streams = await asyncio.gather(asyncio.gather(*prompts), asyncio.gather(*whole, *came))
    assert [kv.request_id for kv in handles] == [f"p{n}" for n in range(10)]
    assert [count_of(chunks) for chunks in streams] == [*range(5, 15)] * 2
    assert load_of(mixed) == NO_LOAD


# What runs, and ending it wherever it is.

PARTS = {
    "a prompt for others": (Role.PREFILL, "prefill", None),
    "a decode": (Role.DECODE, "decode", handle()),
    "a prompt for others, mixed": (Role.MIXED, "prefill", None),
    "a decode, mixed": (Role.MIXED, "decode", handle()),
    "both": (Role.MIXED, "decode", None),
}


def begin(engine: Engine, work: str, asked: EngineRequest, kv: KvHandle | None) -> "asyncio.Task[Any]":
    begun = engine.prefill(asked) if work == "prefill" else collect(engine.decode(asked, kv))
    return asyncio.create_task(begun)


@pytest.fixture(params=PARTS.values(), ids=PARTS.keys())
def part(request, make):
    role, work, kv = request.param
    return make(role), work, kv


def here(engine: Engine) -> int:
    """The requests in the engine."""
    return sum(load_of(engine)[:2])


@pytest.mark.parametrize("others", [0, 3], ids=["alone", "behind others"])
@on_virtual_time
async def test_abort_ends_a_request_in_whatever_state_it_is(part, others):
    engine, work, kv = part
    names = [*map(str, range(others)), "r"]
    tasks = [begin(engine, work, request(n, input_tokens=30_000, max_tokens=20), kv) for n in names]
    await until(lambda: here(engine) == len(names))
    await engine.abort("r")
    with pytest.raises(RequestAborted):
        await tasks.pop()
    assert here(engine) == others
    await asyncio.gather(*tasks)
    assert load_of(engine) == NO_LOAD


@on_virtual_time
async def test_a_part_that_comes_again_takes_its_own_place(part):
    engine, work, kv = part
    asked = request(input_tokens=30_000, max_tokens=20)
    first = begin(engine, work, asked, kv)
    await until(lambda: here(engine) == 1)
    second = begin(engine, work, asked, kv)
    with pytest.raises(RequestAborted):
        await first
    await second
    assert load_of(engine) == NO_LOAD


@on_virtual_time
async def test_totals_count_prompts_once(part):
    engine, work, kv = part
    await asyncio.gather(*(begin(engine, work, request(n, input_tokens=100), kv) for n in "abc"))
    stats = engine.stats()
    assert (stats.prompt_tokens, stats.cached_tokens) == (300, 0)
    assert stats.external_tokens == (300 if kv else 0)
    assert stats.busy_s > 0.0
