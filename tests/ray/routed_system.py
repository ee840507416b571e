"""An application whose requests the Router places, its gateway, and a client for it.

Engines are simulated at a twentieth of their speed: some 150 ms a token. SLOs are in that time, and generous
beside what engines take, so that a busy machine decides nothing.
"""

import asyncio
import json
import os
import signal
import urllib.request
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import ray
from ray import serve
from ray.exceptions import RayError

from actors import control_plane, names
from headway.config import load_config
from tests.patience import PATIENCE_S
from tests.ray.clusters import wait_until
from tests.ray.live_system import pids

MODEL = "llama-3.1-8b"
ROUTED = {
    "engine.time_scale": 0.05,
    "engine.max_batch_size": 4,
    "gateway.port": 0,
    "routing.profile": "slo",
    # A busy machine is no reason to place without the router.
    "routing.call_timeout_ms": 10_000,
    "pools": {"mixed": {"min_replicas": 2, "max_replicas": 2}},
}


@dataclass(frozen=True)
class Answered:
    """How a request ended: status, tokens, headers, and the kind of error in the stream."""

    status: int
    tokens: int
    headers: Mapping[str, str]
    error: str | None = None


@dataclass(frozen=True)
class Gateway:
    url: str

    def play(self, scenario: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run(asyncio.wait_for(scenario, PATIENCE_S))

    async def ask(
        self, http: aiohttp.ClientSession, input_tokens: int, max_tokens: int, **headers: str
    ) -> Answered:
        body = {"model": MODEL, "prompt": [1] * input_tokens, "max_tokens": max_tokens, "stream": True}
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        async with http.post(f"{self.url}/v1/completions", json=body, headers=sent) as answer:
            if answer.status != 200:
                return Answered(answer.status, 0, answer.headers)
            lines = [line[6:] async for line in answer.content if line.startswith(b"data: ")]
        events = [json.loads(line) for line in lines if not line.startswith(b"[DONE]")]
        error = next((event["error"]["code"] for event in events if "error" in event), None)
        tokens = sum(len(event["choices"][0]["text"].split()) for event in events if "choices" in event)
        return Answered(answer.status, tokens, answer.headers, error)


@contextmanager
def deployed(**settings: Any) -> Iterator[Gateway]:
    from serve_apps.builders import application

    app = application(load_config(None, {**ROUTED, **settings}), control_plane=False)
    handle = serve.run(app, name="routed", external_scaler_enabled=True)
    try:
        (address,) = handle.addresses.remote().result()
        wait_until(lambda: _ready(address))
        yield Gateway(address)
    finally:
        serve.delete("routed")
        control_plane.stop(purge=True)


def _ready(url: str) -> bool:
    """Whether all pools have replicas, and the Router has answered."""
    try:
        with urllib.request.urlopen(f"{url}/ready", timeout=10):
            return True
    except OSError:
        return False


def router_status() -> Mapping[str, Any]:
    actor = ray.get_actor(names.router(MODEL), namespace=names.NAMESPACE)
    status: Mapping[str, Any] = ray.get(actor.status.remote(), timeout=30)
    return status


def router_says(what: Callable[[Mapping[str, Any]], bool]) -> bool:
    """Whether its status is so; while it is away it says nothing."""
    try:
        return what(router_status())
    except (RayError, ValueError):
        return False


def kill_router() -> None:
    os.kill(pids(names.router(MODEL))[names.router(MODEL)], signal.SIGKILL)
