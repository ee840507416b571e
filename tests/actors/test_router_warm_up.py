"""What is compiled when first used is used before the first request comes."""

from typing import Any

import pytest

from actors.performance_model import load_profiles
from actors.router import _made, _warm_up
from headway.config import load_config
from headway.engine import engine_profile
from headway.routing import latency, offloading
from headway.routing.plugins import headroom

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
    spy(offloading, "decide")
    config = load_config(None, {"pools": pools, "routing.profile": profile, "routing.offload.mode": "cost"})
    _warm_up(config, load_profiles(config))
    wanted = {"alone", "forecast", "corrected"} | ({"decide"} if pools is MIXED else set())
    assert called == wanted
    assert headroom.judge.signatures  # type: ignore[attr-defined] # a dispatcher of numba


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
    config = load_config(None, {"pools": MIXED, **settings})
    router = _made(config, load_profiles(config))
    kv_tokens = engine_profile(config).decode.table.max_kv_tokens
    size = {True: kv_tokens // 512, False: 100, None: 0}[profiled]
    index = router._state.prefixes
    index.insert(0, range(2000))
    assert len(index) == size
