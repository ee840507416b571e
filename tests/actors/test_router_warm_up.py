"""What is compiled when first used is used before the first request comes."""

import subprocess
import sys
from typing import Any

import pytest

from actors.performance_model import load_profiles
from actors.router import live_router
from actors.routing.rehearsal import rehearse
from headway.config import Role, load_config
from headway.engine import engine_profile
from headway.routing import ReplicaUpdate, RouteRequest
from headway.routing.decide import headroom, offload
from headway.routing.predict import latency

MIXED: Any = {"mixed": {}}
SPLIT: Any = {"prefill": {}, "decode": {}}


@pytest.mark.parametrize("pools", [MIXED, SPLIT])
@pytest.mark.parametrize("profile", ["slo", "least_load"])
def test_refusals_and_offload_are_warm(monkeypatch: pytest.MonkeyPatch, pools: Any, profile: str) -> None:
    called: set[str] = set()

    def spy(module: Any, name: str) -> None:
        function = getattr(module, name)

        def spied(*given: Any) -> Any:
            called.add(name)
            return function(*given)

        monkeypatch.setattr(module, name, spied)

    spy(latency, "alone")
    spy(latency, "forecast")
    spy(latency, "corrected")
    spy(offload, "decide")
    config = load_config(None, {"pools": pools, "routing.profile": profile, "routing.offload.mode": "cost"})
    rehearse(live_router(config, load_profiles(config)), config)
    wanted = {"alone", "forecast", "corrected"} | ({"decide"} if pools is MIXED else set())
    assert called == wanted
    assert headroom.judge.signatures  # type: ignore[attr-defined] # a dispatcher of numba


FLOODED = """
import sys

import numpy as np
from numba.core.dispatcher import Dispatcher

from actors.performance_model import load_profiles
from actors.router import live_router
from actors.routing.rehearsal import as_believed, rehearse
from headway.config import Role, load_config
from headway.routing import OutputProgress, ReplicaLoad, ReplicaUpdate, RequestSlo, RouteRequest


def compiled():
    return {
        (each.py_func.__module__, each.py_func.__name__, signature)
        for name, module in list(sys.modules.items())
        if name.startswith(("headway", "interp"))
        for each in vars(module).values()
        if isinstance(each, Dispatcher)
        for signature in each.signatures
    }


def from_ray():
    # Arrays that Ray brings are not to be written to: to numba that is another type.
    believed = as_believed()
    believed.ttft.learned.centre.weights.setflags(write=False)
    return believed


pools = dict.fromkeys(sys.argv[2:], {})
config = load_config(None, {"pools": pools, "routing.profile": sys.argv[1], "engine.max_batch_size": 6})
profiles = load_profiles(config)
rehearse(live_router(config, profiles), config)
before = compiled()
router, draw, there, held = live_router(config, profiles), np.random.default_rng(0), {}, 0
replicas = [(f"{role}-{number}", Role(role)) for role in config.pools for number in range(3)]
for name, role in replicas:
    router.replica_changed(0.0, ReplicaUpdate(replica=name, role=role))
slos = [RequestSlo(), RequestSlo(ttft_s=0.5, tpot_s=0.02), RequestSlo(ttft_s=5.0), RequestSlo(ttft_s=0.01)]
for number in range(600):
    now_s = 0.02 * number
    if number == 300:
        router.use_model(from_ray())
    asked = RouteRequest(
        request_id=str(number),
        arrival_s=now_s,
        input_tokens=int(draw.integers(50, 4000)),
        max_tokens=64,
        tenant="flood" if number % 7 else "small",
        slo=slos[number % 4],
        critical=number % 5 == 0,
        session=f"s{number % 9}",
        blocks=tuple(range(number % 5)),
    )
    outcomes = [router.submit(now_s, asked), router.expire(now_s)]
    for name, since_s in list(there.items()):
        if now_s > since_s + 0.5:
            outcomes += [router.prefilled(now_s, name), router.first_token(now_s, name)]
        if now_s > since_s + 1.5:
            outcomes.append(router.progress(now_s, [OutputProgress(name, 20)]))
        if now_s > since_s + 3.0:
            outcomes.append(router.complete(now_s, name, 40))
            del there[name]
    if number % 25 == 0:
        load = ReplicaLoad(running=6, waiting=number % 3, kv_usage=0.3, busy_s=now_s)
        for name, role in replicas:
            outcomes.append(router.replica_changed(now_s, ReplicaUpdate(replica=name, role=role, load=load)))
    there |= {each.request_id: now_s for outcome in outcomes for each in outcome.placements}
    held = max(held, router.queued)
print(held, sorted((module, name) for module, name, _ in compiled() - before))
"""
"""A flood on a router of its own, and the number that it held at most and what was compiled for it."""


@pytest.mark.parametrize(
    "profile", ["slo", *(pytest.param(each, marks=pytest.mark.slow) for each in ("pull", "default"))]
)
@pytest.mark.parametrize("pools", [MIXED, SPLIT])
def test_a_flood_finds_everything_compiled(pools: Any, profile: str) -> None:
    # In a process of its own: in this one other tests have had things compiled.
    command = [sys.executable, "-c", FLOODED, profile, *pools]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    held, compiled = done.stdout.split(maxsplit=1)
    assert int(held) > 0
    assert compiled.strip() == "[]"


@pytest.mark.parametrize(
    ("settings", "profiled"),
    [
        ({"engine.kind": "vllm"}, True),
        ({"engine.kind": "vllm", "engine.prefix_cache_tokens": 51_200}, False),
        ({"engine.kind": "vllm", "engine.vllm.args": {"enable_prefix_caching": False}}, None),
        ({}, None),
    ],
)
def test_an_engine_that_caches_in_its_kv_cache_needs_no_size(settings: Any, profiled: bool | None) -> None:
    config = load_config(None, {"pools": MIXED, "routing.profile": "least_load", **settings})
    router = live_router(config, load_profiles(config))
    kv_tokens = engine_profile(config).decode.table.max_kv_tokens
    size = {True: int(kv_tokens) // 512, False: 100, None: 0}[profiled]
    router.replica_changed(0.0, ReplicaUpdate(replica="a", role=Role.MIXED))

    def cached(blocks: int) -> int:
        """Blocks that are cached of a prompt when it comes again."""
        for name in ("first", "again"):
            asked = RouteRequest(
                request_id=name,
                arrival_s=0.0,
                input_tokens=512 * blocks + 1,
                max_tokens=1,
                blocks=tuple(range(blocks)),
            )
            (placement,) = router.submit(0.0, asked).placements
            router.complete(0.0, name, 1)
        return placement.cached_tokens // 512

    assert cached(size) == size
    assert cached(size + 1) < size + 1
