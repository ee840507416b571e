"""A prefill and a decode engine: a request passes both, and counts once, by either source.

The engines are doubles with vLLM's names (`tests.vllm_double`); the Prometheus is real.
"""

import asyncio
import json
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from typing import Any

import pytest

from actors.collector.measured import HealthStatus, Measured
from actors.metric_collector import MetricCollector
from headway.config import HeadwayConfig
from headway.planning import Role
from tests.prometheus_process import PrometheusProcess
from tests.stores import MemoryStore
from tests.vllm_double import vllm_doubles

pytestmark = pytest.mark.anyio

MODEL = "tiny"
DEADLINE_S = 60.0


@pytest.fixture(scope="module")
def engines() -> Iterator[Sequence[str]]:
    """The addresses of a prefill and of a decode engine."""
    with vllm_doubles(2, MODEL) as servers:
        yield servers


@pytest.fixture(scope="module")
def prometheus(
    engines: Sequence[str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PrometheusProcess]:
    process = PrometheusProcess(tmp_path_factory.mktemp("prometheus"), *engines)
    yield process
    process.stop()


def by_prometheus(engines: Sequence[str], url: str) -> Mapping[str, Any]:
    prefill, decode = engines
    roles = {"prefill": {"instance": prefill}, "decode": {"instance": f"~{decode.replace('.', '[.]')}"}}
    return {"source": "prometheus", "url": url, "role_labels": roles, "labels": {"job": "headway"}}


def by_engines(engines: Sequence[str]) -> Mapping[str, Any]:
    found = zip(("prefill", "decode"), engines, strict=True)
    return {"source": "engines", "engines": {role: {"addresses": [address]} for role, address in found}}


def collector(metrics: Mapping[str, Any]) -> MetricCollector:
    config = {
        "model": MODEL,
        "pools": {"prefill": {}, "decode": {}},
        "metrics": {"preset": "vllm", "scrape_interval_s": 0.2, "stale_after_s": 5.0, **metrics},
    }
    return MetricCollector(HeadwayConfig.model_validate(config).model_dump_json(), "", MemoryStore())


def complete(engine: str, tokens: int) -> None:
    body = json.dumps({"model": MODEL, "prompt": "word " * 150, "max_tokens": tokens}).encode()
    urllib.request.urlopen(f"http://{engine}/v1/completions", body, timeout=30).close()


async def test_a_request_counts_once(engines: Sequence[str], prometheus: PrometheusProcess) -> None:
    both = [collector(by_prometheus(engines, prometheus.url)), collector(by_engines(engines))]
    try:
        async with asyncio.timeout(DEADLINE_S):
            while not all([(await each.collect(2.0)).health.status is HealthStatus.OK for each in both]):
                await asyncio.sleep(0.2)
            began_s = time.time()
            for each in both:
                await each.collect(1.0)
            for _ in range(8):
                for engine, tokens in zip(engines, (1, 11), strict=True):
                    await asyncio.to_thread(complete, engine, tokens)
            found: list[Measured] = []
            # Prometheus reads the two engines at moments of its own.
            while not found or any(min(one.completed, one.ttft_s.count) < 8 for one in found):
                await asyncio.sleep(0.3)
                found = [await each.collect(time.time() - began_s) for each in both]
            assert [await each.engines() for each in both] == [{"prefill": 1, "decode": 1}] * 2
    finally:
        for each in both:
            await each.close()
    for measured in found:
        assert measured.health.status is HealthStatus.OK, measured.health.detail
        assert (measured.requests, measured.completed) == (8.0, 8.0)
        assert (measured.isl_tokens, measured.osl_tokens) == (150.0, 11.0)
        assert (measured.ttft_s.count, measured.itl_s.count) == (8.0, 80.0)
        assert set(measured.load) == {Role.PREFILL, Role.DECODE}
        # Whether a scrape saw one of these short requests run is chance.
        assert isfinite(measured.load[Role.DECODE].running)
    assert found[0].ttft_s.mean == pytest.approx(found[1].ttft_s.mean)
