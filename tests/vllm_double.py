"""A stand-in for a vLLM server: completions and vLLM's metric names, on a real port, without a model.

    python -m tests.vllm_double PORT MODEL

Requests take the time of a small engine: PREFILL_S a token, then GAP_S a token, at most BATCH at once. The
names and labels are those of vLLM 0.32 as run; nothing else of it is there.
"""

import asyncio
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from tests.patience import PATIENCE_S
from tests.ports import free_port

PREFILL_S, GAP_S, BATCH = 1e-4, 0.01, 8
TOKENS = tuple(float(2**power) for power in range(15))
SECONDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    """What one engine counts."""

    def __init__(self, model: str) -> None:
        self.registry = CollectorRegistry()
        labels = {"model_name": model, "engine": "0"}

        def made(kind: Any, name: str, *more: str, **options: Any) -> Any:
            metric = kind(f"vllm:{name}", name, (*labels, *more), registry=self.registry, **options)
            return metric if more else metric.labels(**labels)

        self.running, self.waiting = made(Gauge, "num_requests_running"), made(Gauge, "num_requests_waiting")
        self.kv_usage = made(Gauge, "kv_cache_usage_perc")
        self._success = made(Counter, "request_success", "finished_reason")
        self.success = self._success.labels(**labels, finished_reason="length")
        self.hits = made(Counter, "prefix_cache_hits")
        self.prompt = made(Histogram, "request_prompt_tokens", buckets=TOKENS)
        self.generated = made(Histogram, "request_generation_tokens", buckets=TOKENS)
        self.ttft = made(Histogram, "time_to_first_token_seconds", buckets=SECONDS)
        self.itl = made(Histogram, "inter_token_latency_seconds", buckets=SECONDS)
        self.e2e = made(Histogram, "e2e_request_latency_seconds", buckets=SECONDS)
        self.queue = made(Histogram, "request_queue_time_seconds", buckets=SECONDS)


class Server:
    """One engine."""

    def __init__(self, model: str) -> None:
        self.model, self.metrics = model, Metrics(model)
        self._places, self._busy = asyncio.Semaphore(BATCH), 0

    async def complete(self, request: web.Request) -> web.StreamResponse:
        """One completion, of as many words as asked for."""
        body = await request.json()
        prompt = body.get("prompt", "")
        tokens = len(prompt) if isinstance(prompt, list) else len(str(prompt).split())
        wanted = int(body.get("max_tokens") or 16)
        began, it = time.monotonic(), self.metrics
        it.waiting.inc()
        async with self._places:
            it.waiting.dec()
            it.running.inc()
            it.queue.observe(time.monotonic() - began)
            self._busy += 1
            it.kv_usage.set(0.05 * self._busy)
            try:
                await asyncio.sleep(tokens * PREFILL_S)
                it.ttft.observe(time.monotonic() - began)
                for _ in range(wanted - 1):
                    before = time.monotonic()
                    await asyncio.sleep(GAP_S)
                    it.itl.observe(time.monotonic() - before)
            finally:
                it.running.dec()
                self._busy -= 1
        it.prompt.observe(tokens)
        it.generated.observe(wanted)
        it.e2e.observe(time.monotonic() - began)
        it.success.inc()
        usage = {"prompt_tokens": tokens, "completion_tokens": wanted}
        return web.json_response(
            {"model": self.model, "choices": [{"text": " word" * wanted}], "usage": usage}
        )

    async def show(self, _: web.Request) -> web.Response:
        """Its metrics."""
        return web.Response(body=generate_latest(self.metrics.registry), content_type="text/plain")

    async def models(self, _: web.Request) -> web.Response:
        """The one model, and where its weights would be."""
        one = {"id": self.model, "object": "model", "root": "/models/Llama-3.1-8B"}
        return web.json_response({"object": "list", "data": [one]})

    def app(self) -> web.Application:
        app = web.Application(client_max_size=2**26)
        app.router.add_post("/v1/completions", self.complete)
        app.router.add_get("/v1/models", self.models)
        app.router.add_get("/metrics", self.show)
        return app


@contextmanager
def vllm_doubles(count: int, model: str, ports: Sequence[int] = ()) -> Iterator[Sequence[str]]:
    """The `host:port` of so many servers, each a process."""
    ports = ports or [free_port() for _ in range(count)]
    with ExitStack() as stack:
        for port in ports:
            command = [sys.executable, "-m", "tests.vllm_double", str(port), model]
            process = stack.enter_context(subprocess.Popen(command))
            stack.callback(process.kill)
        deadline_s = time.monotonic() + PATIENCE_S
        for port in ports:
            while not _answers(port):
                assert time.monotonic() < deadline_s, f"no server on {port}"
                time.sleep(0.05)
        yield [f"127.0.0.1:{port}" for port in ports]


def _answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=1) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


if __name__ == "__main__":
    web.run_app(Server(sys.argv[2]).app(), host="127.0.0.1", port=int(sys.argv[1]), print=None)
