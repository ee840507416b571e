"""A real OpenAI endpoint as a target, our own gateway over a simulated engine; what vLLM says of itself."""

import asyncio
from collections.abc import AsyncGenerator, Iterator
from typing import Any

import pytest

from headway.config import HeadwayConfig
from headway.loadgen import LoadPlan
from headway.planning.types import Slo
from headway.profiling import TargetError, UnmeasurableError
from headway.profiling.sweep.endpoint import OpenAiTarget, endpoint_facts, kv_capacity, longest_request
from headway.profiling.sweep.measure import StreamTimes
from serve_apps.engines.protocol import EngineRequest, TokenChunk
from serve_apps.gateway.backend import RefusedByEngine
from tests.gateway.doubles import ScriptedBackend, chunks
from tests.gateway.one_engine import OneEngine
from tests.gateway.serving import Running, serving
from tests.patience import PATIENCE_S

CONFIG = HeadwayConfig.model_validate({"model": "m", "engine": {"max_model_tokens": 4096}})
VLLM = """\
# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="16",cache_dtype="auto",engine="0",num_gpu_blocks="27061",swap="0.5"} 1.0
"""


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    with serving(CONFIG, OneEngine(CONFIG)) as one:
        yield one


def plan(url: str) -> LoadPlan:
    return LoadPlan(url=url, model="m", slo=Slo(ttft_s=1.0, itl_s=1.0), timeout_s=PATIENCE_S)


def ask(asked: LoadPlan, *lengths: tuple[int, int]) -> list[StreamTimes]:
    async def all_of_them() -> list[StreamTimes]:
        async with OpenAiTarget(asked, asyncio.get_running_loop().time) as target:
            return [await target.stream(range(100, 100 + isl), osl) for isl, osl in lengths]

    return asyncio.run(all_of_them())


class Strict(ScriptedBackend):
    """Refuses what is no field of OpenAI's."""

    async def generate(self, request: EngineRequest, *given: Any) -> AsyncGenerator[TokenChunk, None]:
        assert request.call is not None
        if b"ignore_eos" in request.call.body:
            raise RefusedByEngine(400, b'{"error": {"message": "ignore_eos: unknown"}}')
        async for chunk in super().generate(request, *given):
            yield chunk


@pytest.mark.parametrize("tokens", [1, 20])
@pytest.mark.parametrize("kind", [ScriptedBackend, Strict])
def test_every_token_has_its_time(kind: type[ScriptedBackend], tokens: int) -> None:
    """A simulated engine that is late hands out several at once; this one gives each by itself."""
    with serving(CONFIG, kind(chunks(*["word "] * tokens))) as running:
        (times,) = ask(plan(running.url), (50, tokens))
    assert [arrival.tokens for arrival in times.arrivals] == [1.0] * tokens
    in_order = [times.sent_s, *(arrival.at_s for arrival in times.arrivals)]
    assert in_order == sorted(in_order)


def test_what_the_server_refuses_is_a_point_that_cannot_be_measured(running: Running) -> None:
    with pytest.raises(UnmeasurableError, match="5000 input and 1 output tokens"):
        ask(plan(running.url), (5000, 1))


def test_a_server_that_is_not_there_is_one_line() -> None:
    with pytest.raises(TargetError, match=r"http://127\.0\.0\.1:9: .*connection: ") as caught:
        ask(plan("http://127.0.0.1:9"), (5, 1))
    assert "\n" not in str(caught.value)


def test_a_server_need_not_say_anything_of_itself(running: Running) -> None:
    facts = asyncio.run(endpoint_facts(running.url))
    assert facts.kv_tokens is None
    assert asyncio.run(endpoint_facts("http://127.0.0.1:9")).request_tokens is None


def test_vllm_says_its_kv_capacity_and_its_longest_request() -> None:
    assert kv_capacity(VLLM) == 16 * 27061
    assert kv_capacity('vllm:cache_config_info{block_size="16"} 1.0') is None
    assert longest_request('{"data": [{"id": "m", "max_model_len": 2048}]}') == 2048
    for other in ("", "[]", '{"data": []}', '{"data": [{"id": "m"}]}'):
        assert longest_request(other) is None
