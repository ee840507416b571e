"""Requests, and what to do with streams, for the tests of engines."""

from collections.abc import AsyncIterator

from headway.config import HeadwayConfig
from headway.planning.types import Role
from headway.routing.types import RouteRequest
from serve_apps.engines.protocol import Engine, EngineRequest, KvHandle, TokenChunk
from tests.patience import eventually

until = eventually

SPLIT = {"prefill": {}, "decode": {}}
MIXED = {"mixed": {}}


def config_of(pools=SPLIT, **engine) -> HeadwayConfig:
    return HeadwayConfig.model_validate({"engine": engine, "pools": pools})


def pools_of(role: Role) -> dict[str, dict]:
    return MIXED if role is Role.MIXED else SPLIT


def request(
    request_id="r", prompt="what is it?", max_tokens=8, input_tokens=20, route=None, **sampling
) -> EngineRequest:
    return EngineRequest(
        request_id=request_id,
        model="m",
        prompt=prompt,
        input_tokens=input_tokens,
        max_tokens=max_tokens,
        sampling=sampling,
        route=route,
    )


def route(request_id="r", input_tokens=20, max_tokens=8, **known) -> RouteRequest:
    """What a router knows of a request."""
    return RouteRequest(
        request_id=request_id, arrival_s=0.0, input_tokens=input_tokens, max_tokens=max_tokens, **known
    )


def handle(request_id="r", input_tokens=20) -> KvHandle:
    """KV from a prefill engine that is not there."""
    return KvHandle(request_id=request_id, engine_id="p", input_tokens=input_tokens)


async def collect(stream: AsyncIterator[TokenChunk]) -> list[TokenChunk]:
    return [chunk async for chunk in stream]


def text_of(chunks: list[TokenChunk]) -> str:
    return "".join(chunk.text for chunk in chunks)


def count_of(chunks: list[TokenChunk]) -> int:
    return sum(chunk.tokens for chunk in chunks)


def load_of(engine: Engine) -> tuple[int, int, float]:
    stats = engine.stats()
    return stats.running, stats.waiting, stats.kv_usage
