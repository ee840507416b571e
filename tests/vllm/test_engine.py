"""What the engine protocol promises, of a real vLLM engine: the mixed one of this process."""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

import pytest

from serve_apps.engines.protocol import EngineRequest, PromptTooLong, RequestAborted, TokenChunk
from tests.engines.engine_cases import collect, count_of, load_of, request, text_of
from tests.patience import eventually
from tests.vllm.one_vllm import LONGEST, Mixed

MANY = 1500
"""Tokens that take seconds."""
NO_LOAD = (0, 0, 0.0)


class Running:
    """The engine, which outlives the tests."""

    def __init__(self, mixed: Mixed) -> None:
        self.engine, self.run = mixed.engine, mixed.run

    async def say(self, asked: EngineRequest) -> list[TokenChunk]:
        return await collect(self.engine.decode(asked, None))

    def begin(self, *names: str, max_tokens: int = MANY) -> list["asyncio.Task[list[TokenChunk]]"]:
        return [asyncio.create_task(self.say(asked(name, max_tokens=max_tokens))) for name in names]

    async def until_here(self, count: int) -> None:
        await eventually(lambda: sum(load_of(self.engine)[:2]) == count)

    async def until_idle(self) -> None:
        await eventually(lambda: load_of(self.engine) == NO_LOAD)


@pytest.fixture
def running(mixed: Mixed) -> Running:
    found = Running(mixed)
    found.run(found.until_idle())
    return found


def asked(name: str = "r", prompt: Sequence[int] = (), **more: Any) -> EngineRequest:
    ids = [*(prompt or range(64, 164))]
    return request(name, prompt=ids, input_tokens=len(ids), temperature=0.0, ignore_eos=True, **more)


@pytest.mark.essential
@pytest.mark.parametrize("max_tokens", [1, 2, 17])
def test_a_stream_has_its_tokens_and_ends_with_one_reason(running: Running, max_tokens: int) -> None:
    chunks = running.run(running.say(asked(max_tokens=max_tokens)))
    assert count_of(chunks) == max_tokens
    assert [chunk.finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + ["length"]
    running.run(running.until_idle())


def test_the_same_request_says_the_same_with_others_beside_it(running: Running) -> None:
    async def both() -> tuple[str, list[list[TokenChunk]]]:
        alone = text_of(await running.say(asked(max_tokens=30)))
        many = [asked(f"{n}", range(64 + n, 164), max_tokens=30 - n) for n in range(12)]
        return alone, await asyncio.gather(*map(running.say, many))

    alone, beside = running.run(both())
    assert text_of(beside[0]) == alone
    assert [count_of(chunks) for chunks in beside] == [30 - n for n in range(12)]


@pytest.mark.essential
def test_what_can_never_fit_is_refused_and_leaves_nothing(running: Running) -> None:
    with pytest.raises(PromptTooLong, match=f"^100 input and {LONGEST} output tokens are more than"):
        running.run(running.say(asked(max_tokens=LONGEST)))
    assert load_of(running.engine) == NO_LOAD


def test_a_request_that_comes_again_takes_its_own_place(running: Running) -> None:
    async def twice() -> None:
        (first,) = running.begin("r")
        await running.until_here(1)
        assert count_of(await running.say(asked(max_tokens=30))) == 30
        with pytest.raises(RequestAborted, match=r"^r: came again$"):
            await first
        await running.until_idle()

    running.run(twice())


@pytest.mark.essential
def test_an_aborted_stream_ends_and_its_neighbour_goes_on(running: Running) -> None:
    async def leave() -> None:
        long, other = running.begin("long") + running.begin("other", max_tokens=200)
        await eventually(lambda: load_of(running.engine)[0] == 2)
        await running.engine.abort("never seen")
        await running.engine.abort("long")
        with pytest.raises(RequestAborted, match=r"^long: aborted$"):
            await long
        assert count_of(await other) == 200
        await running.until_idle()

    running.run(leave())


@pytest.mark.essential
@pytest.mark.parametrize("way", ["closed", "cancelled"])
def test_a_reader_that_leaves_frees_the_kv(running: Running, way: str) -> None:
    async def leave() -> None:
        if way == "cancelled":
            (reader,) = running.begin("r")
            await eventually(lambda: load_of(running.engine)[2] > 0.0)
            reader.cancel()
        else:
            async with aclosing(running.engine.decode(asked(max_tokens=MANY), None)) as stream:
                await anext(stream)
                assert load_of(running.engine)[0] == 1
        await running.until_idle()

    running.run(leave())


def test_an_aborted_prompt_ends(running: Running) -> None:
    # The last test: what nobody fetches stays for NIXL's lease of 30 s.
    async def leave() -> None:
        # More than run at once, each with a prompt of its own: the last one waits.
        prompts = [asked(f"{n}", [64 + n, *range(64, 240)] * 2) for n in range(20)]
        tasks = [asyncio.create_task(running.engine.prefill(prompt)) for prompt in prompts]
        await running.until_here(20)
        await running.engine.abort("19")
        with pytest.raises(RequestAborted):
            await tasks.pop()
        handles = await asyncio.gather(*tasks)
        assert [(kv.request_id, kv.engine_id) for kv in handles] == [(f"{n}", "one") for n in range(19)]

    running.run(leave())
