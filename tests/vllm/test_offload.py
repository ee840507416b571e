"""Elastic offload between real mixed replicas: a long prompt is computed on one and decoded on the other."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from openai import OpenAI
from ray import serve

from serve_apps.engines.protocol import EngineStats
from tests.ray.clusters import replicas, wait_until
from tests.vllm.served import APP, NAME, Served, served

SETTINGS = {
    "pools": {"mixed": {"min_replicas": 2, "max_replicas": 2}},
    "routing.profile": "least_load",
    # A busy machine is no reason to place without the router, or to take a prompt back.
    "routing.call_timeout_ms": 10_000,
    "routing.offload": {
        "mode": "always",
        "warm_tokens": 32,
        "heavy_tokens": 64,
        "deadline_factor": 1.0,
        "deadline_slack_ms": 60_000,
    },
}
TOKENS = 16
SHORT, LONG = "Why?", "The planner reads the load and counts. " * 6


@pytest.fixture(scope="module")
def mixed(ray_cluster: str, model: Path) -> Iterator[Served]:
    from actors import control_plane

    with served(model, **SETTINGS) as running:
        try:
            yield running
        finally:
            control_plane.stop(purge=True)


def stats() -> dict[str, EngineStats]:
    handle = serve.get_deployment_handle("Mixed", APP)
    return {
        name: handle.options(session_id=name).stats.remote().result(timeout_s=60)
        for name in (one["replica_id"] for one in replicas(APP, "Mixed"))
    }


def asked(client: OpenAI, prompt: str) -> tuple[str, dict[str, str]]:
    answer = client.completions.with_raw_response.create(
        model=NAME,
        prompt=prompt,
        max_tokens=TOKENS,
        temperature=0,
        extra_headers={"x-headway-explain": "true"},
    )
    return answer.parse().choices[0].text, dict(answer.headers)


def test_a_long_prompt_is_computed_on_one_replica_and_decoded_on_the_other(mixed: Served) -> None:
    with mixed.client() as client:
        _, short = asked(client, SHORT)
        text, long = asked(client, LONG)
        again, _ = asked(client, LONG)
    assert short["x-headway-prefill-replica"] == short["x-headway-replica"]
    assert long["x-headway-route-class"] == "HEAVY_P2P"
    prefill, decode = long["x-headway-prefill-replica"], long["x-headway-replica"]
    assert prefill != decode
    assert text == again
    wait_until(lambda: all(one.kv_usage == 0.0 for one in stats().values()))
    seen = stats()
    assert seen[decode].external_tokens > 64
    assert seen[prefill].output_tokens > 0
