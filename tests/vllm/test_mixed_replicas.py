"""Two mixed replicas of real vLLM: the router knows their prefix caches, and has long prompts move."""

import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from openai import OpenAI
from prometheus_client.parser import text_string_to_metric_families
from ray import serve

from actors import control_plane
from headway.config import load_config
from headway.engine import EngineRules
from tests.ports import free_port
from tests.ray.clusters import wait_until
from tests.vllm.served import APP, NAME, TINY, Served

KEY_TOKENS = EngineRules().block_tokens
SHARED = [100 + number % 200 for number in range(2 * KEY_TOKENS + 40)]
HEAVY_TOKENS = 1200
"""More than the prompts that share a prefix have."""

SETTINGS = {
    "pools": {"mixed": {"min_replicas": 2, "max_replicas": 2}},
    "routing.profile": "prefix",
    # A busy machine is no reason to place without the router, or to take a prompt back.
    "routing.call_timeout_ms": 10_000,
    "routing.offload": {
        "mode": "always",
        "warm_tokens": 1100,
        "heavy_tokens": HEAVY_TOKENS,
        "deadline_factor": 1.0,
        "deadline_slack_ms": 60_000,
    },
}
SHORT, LONG = "Why?", "The planner reads the load and counts. " * 120


@pytest.fixture(scope="module")
def pair(ray_cluster: str, model: Path) -> Iterator[Served]:
    from serve_apps.builders import application

    port = free_port()
    config = load_config(None, {**TINY, "engine.vllm.model": str(model), "gateway.port": port, **SETTINGS})
    serve.run(application(config, control_plane=False), name=APP, external_scaler_enabled=True)
    try:
        yield Served(url=f"http://127.0.0.1:{port}")
    finally:
        serve.delete(APP)
        control_plane.stop(purge=True)


def events(pair: Served) -> Counter[str]:
    """Tokens of prompts as KV events have them, by kind."""
    with urllib.request.urlopen(f"{pair.url}/metrics", timeout=60) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    return Counter(
        {
            sample.labels["kind"]: int(sample.value)
            for family in families
            for sample in family.samples
            if sample.name == "headway_router_prefix_tokens_total" and sample.labels["source"] == "events"
        }
    )


def test_what_replicas_cache_reaches_the_router_which_says_how_right_it_was(pair: Served) -> None:
    """Without a setting: vLLM caches prefixes, and says so."""
    placed = []

    def ask() -> bool:
        answer = pair.client().completions.with_raw_response.create(
            model=NAME,
            prompt=[*SHARED, 64 + len(placed)],
            max_tokens=2,
            extra_headers={"x-headway-explain": "true"},
        )
        placed.append(answer.headers["x-headway-replica"])
        assert answer.parse().usage is not None
        return events(pair)["expected"] >= 2 * KEY_TOKENS

    wait_until(ask)
    before = events(pair)
    for _ in range(4):
        ask()
    grown = events(pair)
    grown.subtract(before)
    # Blocks of 32 tokens: 1056 of 1064 are found, and 1024 are whole keys.
    assert grown["prompt"] == 4 * (len(SHARED) + 1)
    assert (grown["expected"], grown["cached"], grown["error"]) == (4 * 1024, 4 * 1056, 4 * 32)
    assert len(set(placed[-4:])) == 1, "all go where the prefix is"


def asked(client: OpenAI, prompt: str) -> tuple[str, dict[str, str]]:
    answer = client.completions.with_raw_response.create(
        model=NAME,
        prompt=prompt,
        max_tokens=16,
        temperature=0,
        extra_headers={"x-headway-explain": "true"},
    )
    return answer.parse().choices[0].text, dict(answer.headers)


def test_a_long_prompt_is_computed_on_one_replica_and_decoded_on_the_other(pair: Served) -> None:
    with pair.client() as client:
        _, short = asked(client, SHORT)
        text, long = asked(client, LONG)
        again, _ = asked(client, LONG)
    assert short["x-headway-prefill-replica"] == short["x-headway-replica"]
    assert long["x-headway-route-class"] == "HEAVY_P2P"
    prefill, decode = long["x-headway-prefill-replica"], long["x-headway-replica"]
    assert prefill != decode
    assert text == again
    wait_until(lambda: all(one.kv_usage == 0.0 for one in pair.all_stats("Mixed").values()))
    seen = pair.all_stats("Mixed")
    assert seen[decode].external_tokens > 64
    assert seen[prefill].output_tokens > 0
