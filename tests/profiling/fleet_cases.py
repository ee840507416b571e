"""Simulated replicas that serve random traffic, and say of themselves what vLLM does; also over HTTP."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np
from aiohttp import web

from headway.config import resolve_profile
from headway.planning.types import Role, Slo
from headway.profiling.fleet_probing import (
    FleetEvidence,
    FleetOptions,
    fleet_meta,
    fleet_profile,
    rebased,
    watch_fleet,
)
from headway.profiling.fleet_replica import ReplicaLoad
from headway.profiling.sweep.measure import Arrival, StreamTimes
from headway.profiling.sweep.points import Limits
from interp import Profile, load_profile
from serve_apps.engines import make_engine
from serve_apps.engines.protocol import EngineRequest
from tests.engines.engine_cases import MIXED, config_of
from tests.engines.virtual_loop import run
from tests.http_thread import served

SLO = Slo(ttft_s=1.0, itl_s=0.05)


@dataclass(eq=False)
class SimulatedReplica:
    """A mixed engine by the profile `truth`, with the totals that its metrics would have."""

    truth: str
    settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._engine = make_engine(config_of(MIXED, profile=self.truth, **self.settings), Role.MIXED, "one")
        self._numbers = count()
        self._prompts = self._first_s = self._in_time = self._gaps = self._gap_s = 0.0
        self.late_of_users = self.served_of_users = 0

    @property
    def sizes(self) -> Any:
        return self._engine.sizes()

    async def load(self) -> ReplicaLoad:
        stats = self._engine.stats()
        return ReplicaLoad(
            at_s=asyncio.get_running_loop().time(),
            running=stats.running,
            waiting=stats.waiting,
            kv_usage=stats.kv_usage,
            prompts=self._prompts,
            first_token_s=self._first_s,
            first_in_time=self._in_time,
            prompt_tokens=stats.prompt_tokens,
            computed_tokens=stats.prompt_tokens - stats.cached_tokens,
            gaps=self._gaps,
            gap_s=self._gap_s,
        )

    async def stream(self, prompt: Sequence[int], output_tokens: int) -> StreamTimes:
        sent_s = asyncio.get_running_loop().time()
        arrivals = [arrival async for arrival in self.arrivals(prompt, output_tokens)]
        return StreamTimes(sent_s=sent_s, arrivals=tuple(arrivals))

    async def arrivals(self, prompt: Sequence[int], output_tokens: int) -> AsyncIterator[Arrival]:
        now_s = asyncio.get_running_loop().time
        request = EngineRequest(
            request_id=f"r{next(self._numbers)}",
            model="m",
            prompt=prompt,
            input_tokens=len(prompt),
            max_tokens=output_tokens,
        )
        sent_s, last_s = now_s(), 0.0
        async for chunk in self._engine.decode(request, None):
            if not last_s:
                self._prompts += 1
                self._first_s += now_s() - sent_s
                self._in_time += now_s() - sent_s <= SLO.ttft_s
            else:
                self._gaps += chunk.tokens
                self._gap_s += now_s() - last_s
            last_s = now_s()
            yield Arrival(last_s, chunk.tokens)

    async def users(self, rate_rps: float, seed: int, isl: float = 1500.0, osl: float = 200.0) -> None:
        """Requests of exponential gaps and log-normal lengths, until cancelled."""
        rng = np.random.default_rng(seed)

        async def one(tokens: int, output: int) -> None:
            times = await self.stream(range(tokens), output)
            self.served_of_users += 1
            self.late_of_users += times.ttft_s > SLO.ttft_s

        async with asyncio.TaskGroup() as group:
            while True:
                await asyncio.sleep(rng.exponential(1.0 / rate_rps))
                lengths = rng.lognormal(0.0, 0.5, 2) * (isl, osl)
                group.create_task(one(*(max(1, int(length)) for length in lengths)))


TRUTH, BASE = "llama-3.1-8b_a100_tp1", "llama-3.1-8b_h100_tp1"
KNOWN = load_profile(resolve_profile(TRUTH))


@dataclass(frozen=True)
class Watched:
    """A fleet that was watched, and what became of its users' requests."""

    base: Profile
    evidence: FleetEvidence
    late: int
    served: int

    @property
    def profile(self) -> Profile:
        return fleet_profile(self.base, self.evidence)

    @property
    def meta(self) -> Any:
        return fleet_meta(self.base, self.evidence, 2)["fleet"]


def watched(rate_rps: float, *, probes: bool = True, budget_s: float = 300.0) -> Watched:
    """Two replicas of the truth under Poisson traffic in virtual time, watched after its first 20 seconds."""

    async def watch() -> Watched:
        replicas = [SimulatedReplica(TRUTH) for _ in range(2)]
        sizes = replicas[0].sizes
        limits = Limits(max_request_tokens=16_384, max_kv_tokens=sizes.kv_tokens, max_batch=sizes.batch)
        base = rebased(load_profile(resolve_profile(BASE)), limits, 1)
        users = [asyncio.create_task(each.users(rate_rps, seed)) for seed, each in enumerate(replicas)]
        await asyncio.sleep(20.0)
        clock = asyncio.get_running_loop().time
        asked = FleetOptions(slo=SLO, attainment=0.95, budget_s=budget_s, clock=clock, probes=probes)
        evidence = await watch_fleet(replicas, base, limits, asked)
        for task in users:
            task.cancel()
        return Watched(
            base,
            evidence,
            sum(each.late_of_users for each in replicas),
            sum(each.served_of_users for each in replicas),
        )

    found: Watched = run(watch())
    return found


def errors(profile: Profile) -> tuple[float, float]:
    """Median relative errors of TTFT and ITL at the profile's own samples."""
    prefill, decode = profile.prefill.samples, profile.decode.samples
    ttft = np.abs(prefill.ttft_s / KNOWN.prefill.ttft_s(prefill.isl_tokens) - 1.0)
    itl = np.abs(decode.itl_s / KNOWN.decode.itl_s(decode.kv_usage, decode.context_tokens) - 1.0)
    return float(np.median(ttft)), float(np.median(itl))


class VllmServer:
    """A simulated replica behind HTTP with vLLM's metric names, on a loop of its own."""

    def __init__(self, truth: str = TRUTH, **settings: Any) -> None:
        self._replica = SimulatedReplica(truth, settings)

    async def completions(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        answer = web.StreamResponse()
        await answer.prepare(request)
        made = 0
        async for arrival in self._replica.arrivals(body["prompt"], body["max_tokens"]):
            made += int(arrival.tokens)
            said = {"choices": [{"text": "a"}], "usage": {"completion_tokens": made}}
            await answer.write(f"data: {json.dumps(said)}\n\n".encode())
        await answer.write(b"data: [DONE]\n\n")
        return answer

    async def metrics(self, _: web.Request) -> web.Response:
        load, sizes = await self._replica.load(), self._replica.sizes
        return web.Response(
            text=f'vllm:cache_config_info{{block_size="1",num_gpu_blocks="{sizes.kv_tokens}"}} 1\n'
            f"vllm:num_requests_running {load.running}\n"
            f"vllm:num_requests_waiting {load.waiting}\n"
            f"vllm:kv_cache_usage_perc {load.kv_usage}\n"
            f"vllm:time_to_first_token_seconds_count {load.prompts}\n"
            f"vllm:time_to_first_token_seconds_sum {load.first_token_s}\n"
            f'vllm:time_to_first_token_seconds_bucket{{le="{SLO.ttft_s}"}} {load.first_in_time}\n'
            f"vllm:prompt_tokens_total {load.prompt_tokens}\n"
            f"vllm:inter_token_latency_seconds_count {load.gaps}\n"
            f"vllm:inter_token_latency_seconds_sum {load.gap_s}\n"
        )

    async def models(self, _: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "m", "max_model_len": 16_384}]})

    @contextmanager
    def serving(self, rate_rps: float = 0.0) -> Iterator[str]:
        """The address, under Poisson traffic of so many requests a second."""
        app = web.Application(client_max_size=1 << 24)
        app.router.add_post("/v1/completions", self.completions)
        app.router.add_get("/metrics", self.metrics)
        app.router.add_get("/v1/models", self.models)
        with served(app) as (url, loop):
            if rate_rps:
                users = asyncio.run_coroutine_threadsafe(self._replica.users(rate_rps, 1), loop)
            yield url
            if rate_rps:
                users.cancel()
