"""How well the router knows one vLLM engine's prefix cache: by its KV events, and estimated.

Conversations over shared system prompts go to a real vLLM engine (CPU build, tiny model) whose KV cache is
too small for all of them. Four routers see the same requests, and expect cached tokens at the placement of
each. What the engine then found cached is the truth.

    events     hears every 0.1 s what the engine says of its cache
    late       every 0.5 s, which is more than live in proportion: this cache turns over in seconds
    estimate   is told its size, and nothing else
    unsized    takes its size from the profile, which is of another machine

    error      sum of |expected − cached| over that of the prompts' tokens, in each round
    too many   the part of it where less was cached than expected
    rounding   what keys of 512 tokens cannot help: what is cached beyond the last whole key

A round begins with an empty cache. In each turn all conversations go on, in any order.
"""

import asyncio
import json
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np

from headway.config import HeadwayConfig, Role, load_config
from headway.engine import EngineRules, engine_profile
from headway.routing import ReplicaLoad, ReplicaUpdate, Router, RouteRequest, make_router
from serve_apps.engines.protocol import ClientCall, EngineRequest
from serve_apps.gateway.prompts import prefix_blocks

ROUNDS = 5
TURNS, CONVERSATIONS, SYSTEMS, AT_ONCE = 4, 16, 4, 3
SYSTEM_TOKENS, OUTPUT_TOKENS = 1060, 48
REPORTS_S: Mapping[str, float] = {"events": 0.1, "late": 0.5}
KEY_TOKENS = EngineRules().block_tokens
SETTINGS: Mapping[str, Any] = {
    "model": "tiny-llama",
    "pools": {"mixed": {}},
    "routing.profile": "prefix",
    "engine.kind": "vllm",
    "engine.max_model_tokens": 4096,
    "engine.max_batch_size": 16,
    "engine.vllm.dtype": "float32",
    "engine.vllm.device": "cpu",
    "engine.vllm.host": "127.0.0.1",
    "engine.vllm.args": {"enforce_eager": True, "block_size": 32, "kv_cache_memory_bytes": 20 << 20},
}


@dataclass
class Errors:
    """Of one round, in tokens: of all prompts, cached, and wrong by source."""

    prompt: int = 0
    cached: int = 0
    rounding: int = 0
    requests: int = 0
    took_s: float = 0.0
    wrong: Counter[str] = field(default_factory=Counter)
    too_many: Counter[str] = field(default_factory=Counter)


class Round:
    """One round on `engine`."""

    def __init__(
        self,
        config: HeadwayConfig,
        engine: Any,  # noqa: ANN401 - VllmEngine
        seed: int,
        at_once: int = AT_ONCE,
    ) -> None:
        self.errors, self._at_once = Errors(), at_once
        self._engine, self._generator = engine, np.random.default_rng(seed)
        profiled = int(engine_profile(config).decode.table.max_kv_tokens)
        sizes = {**dict.fromkeys(REPORTS_S, profiled), "estimate": engine.sizes().kv_tokens}
        sizes["unsized"] = profiled
        self._routers = {name: self._router(config, tokens) for name, tokens in sizes.items()}
        systems = [self._tokens(SYSTEM_TOKENS) for _ in range(SYSTEMS)]
        self._said = [[*systems[number % SYSTEMS]] for number in range(CONVERSATIONS)]
        turns = (self._generator.permutation(CONVERSATIONS) for _ in range(TURNS))
        self._left = [int(number) for turn in turns for number in turn]
        self._busy: set[int] = set()

    async def run(self) -> Errors:
        """All turns of all conversations."""
        reports = [asyncio.create_task(self._report(*each)) for each in REPORTS_S.items()]
        began_s = time.monotonic()
        try:
            await asyncio.gather(*(self._work() for _ in range(self._at_once)))
        finally:
            for each in reports:
                each.cancel()
        self.errors.took_s = time.monotonic() - began_s
        return self.errors

    @staticmethod
    def _router(config: HeadwayConfig, tokens: int) -> Router:
        rules = EngineRules(chunk_tokens=2048, prefix_cache_tokens=tokens)
        made = make_router(config, {"": engine_profile(config)}, rules, np.random.default_rng(0))
        made.replica_changed(time.monotonic(), ReplicaUpdate(replica="r", role=Role.MIXED))
        return made

    def _tokens(self, count: int) -> list[int]:
        return [int(token) for token in self._generator.integers(64, 380, count)]

    async def _report(self, source: str, every_s: float) -> None:
        """What a replica reports, as gateways pass it on."""
        known, since = self._routers[source], None
        while True:
            stats, said = self._engine.stats(), self._engine.known_blocks(since)
            load = ReplicaLoad(running=stats.running, waiting=stats.waiting, kv_usage=stats.kv_usage)
            update = ReplicaUpdate(
                replica="r", role=Role.MIXED, load=load, blocks_at=stats.blocks_at, blocks=said
            )
            since = None if said is None else said.sequence
            known.replica_changed(time.monotonic(), update)
            known.expire(time.monotonic())
            await asyncio.sleep(every_s)

    async def _work(self) -> None:
        while (turn := next((each for each in self._left if each not in self._busy), None)) is not None:
            self._left.remove(turn)
            self._busy.add(turn)
            said = self._said[turn]
            said += self._tokens(int(self._generator.integers(60, 400)))
            said += await self._ask(f"{turn}-{len(said)}", said)
            self._busy.discard(turn)

    async def _ask(self, name: str, prompt: Sequence[int]) -> list[int]:
        """The output's tokens."""
        asked = RouteRequest(
            request_id=name,
            arrival_s=time.monotonic(),
            input_tokens=len(prompt),
            max_tokens=OUTPUT_TOKENS,
            blocks=prefix_blocks(prompt, KEY_TOKENS),
        )
        expected = {}
        for source, router in self._routers.items():
            (placement,) = router.submit(time.monotonic(), asked).placements
            expected[source] = placement.cached_tokens
        body, cached = await self._answer(name, prompt)
        for router in self._routers.values():
            router.first_token(time.monotonic(), name)
            router.complete(time.monotonic(), name, OUTPUT_TOKENS)
        self._count(len(prompt), cached, expected)
        tokens: list[int] = json.loads(body)["choices"][0]["token_ids"]
        return tokens

    async def _answer(self, name: str, prompt: Sequence[int]) -> tuple[bytes, int]:
        body = {
            "prompt": list(prompt),
            "max_tokens": OUTPUT_TOKENS,
            "temperature": 0.0,
            "ignore_eos": True,
            "return_token_ids": True,
        }
        call = ClientCall("/v1/completions", json.dumps(body).encode(), stream=False, bounded=True)
        request = EngineRequest(
            request_id=name,
            model="tiny-llama",
            prompt="",
            input_tokens=len(prompt),
            max_tokens=OUTPUT_TOKENS,
            call=call,
        )
        chunks = [chunk async for chunk in self._engine.decode(request, None)]
        return b"".join(chunk.text for chunk in chunks), chunks[-1].cached_tokens

    def _count(self, prompt: int, cached: int, expected: Mapping[str, int]) -> None:
        errors = self.errors
        errors.requests += 1
        errors.prompt += prompt
        errors.cached += cached
        errors.rounding += cached % KEY_TOKENS
        for source, tokens in expected.items():
            errors.wrong[source] += abs(tokens - cached)
            errors.too_many[source] += max(0, tokens - cached)


async def measured(model: Path, rounds: int) -> list[Errors]:
    """The errors of each round, on an engine of its own."""
    from serve_apps.engines import make_engine

    config = load_config(None, {**SETTINGS, "engine.vllm.model": str(model)})
    engine: Any = make_engine(config, Role.MIXED, "r")
    try:
        found = []
        for seed in range(rounds):
            found.append(await Round(config, engine, seed).run())
            if not await engine._llm.reset_prefix_cache():
                raise RuntimeError("vLLM does not clear its cache")
        return found
    finally:
        engine.close()


def main(data: Path | None = None) -> int:
    """Print the figures."""
    from serve_apps.engines.vllm.loading import quiet
    from serve_apps.engines.vllm.tiny import build

    with tempfile.TemporaryDirectory() as directory, quiet():
        model = Path(directory) / "tiny-llama"
        build(model)
        rounds = asyncio.run(measured(model, ROUNDS))
    asked, tokens = sum(each.requests for each in rounds), sum(each.prompt for each in rounds)
    cached = sum(each.cached for each in rounds)
    new_per_s = (tokens - cached + asked * OUTPUT_TOKENS) / sum(each.took_s for each in rounds)
    print(f"{ROUNDS} rounds, {asked} requests, {tokens / asked:.0f} prompt tokens each")
    print(f"{cached / tokens:.1%} of them cached; {new_per_s:.0f} new tokens a second")
    for source in rounds[0].wrong:
        errors, over = _shares(rounds, "wrong", source), _shares(rounds, "too_many", source)
        print(f"{source:9} error {errors}, too many {over}")
    rounding = [each.rounding / each.prompt for each in rounds]
    print(f"rounding  {_spread(rounding)}")
    return 0


def _shares(rounds: Sequence[Errors], what: str, source: str) -> str:
    return _spread([getattr(each, what)[source] / each.prompt for each in rounds])


def _spread(shares: Sequence[float]) -> str:
    return f"{mean(shares):.1%} ± {stdev(shares):.1%} ({min(shares):.1%} to {max(shares):.1%})"
