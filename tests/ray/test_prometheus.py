"""A real Prometheus scrapes the real gateway while our own load generator plays real HTTP against it.

The gateway runs on uvicorn with a simulated engine behind it (no Ray: nothing here depends on it), slowed
down so that the client's own overhead is small against the latencies. The generator's TTFT counts from the
time a request was due and its durations to the last token read: they hold that overhead, and still agree
within 2 %.
"""

import asyncio
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from math import isnan
from pathlib import Path

import pytest
import uvicorn

from actors.collector.interval import HealthStatus, Measured
from actors.metric_collector import MetricCollector
from headway.config import HeadwayConfig
from headway.loadgen import LoadPlan, LoadTally, replay
from headway.planning import Role, Slo
from headway.workload import open_trace
from serve_apps.gateway.app import make_app
from tests.gateway.one_engine import OneEngine
from tests.ports import free_port
from tests.prometheus_process import PrometheusProcess
from tests.stores import MemoryStore

pytestmark = pytest.mark.anyio

DEADLINE_S = 90.0
WITHIN = 0.02
FRESH_S = 4.0
SLO = Slo(ttft_s=30.0, itl_s=5.0)


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


def settings(**metrics: object) -> HeadwayConfig:
    return HeadwayConfig.model_validate(
        {
            "slo": {"ttft_ms": SLO.ttft_s * 1e3, "itl_ms": SLO.itl_s * 1e3},
            "pools": {"mixed": {}},
            "engine": {"time_scale": 0.2},
            "metrics": {"timeout_s": 10.0, "stale_after_s": FRESH_S, **metrics},
        }
    )


@contextmanager
def gateway_at(port: int) -> Iterator[str]:
    """A gateway process's worth of state on this port: entered again, everything counts from 0."""
    config = settings()
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        app = make_app(config, OneEngine(config))
        server = uvicorn.Server(
            uvicorn.Config(app, log_config=None, access_log=False, timeout_graceful_shutdown=1)
        )
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            deadline_s = time.monotonic() + DEADLINE_S
            while not server.started:
                assert time.monotonic() < deadline_s, "the gateway did not start"
                time.sleep(0.01)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.should_exit = True
            thread.join(DEADLINE_S)


@pytest.fixture(scope="module")
def port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def prometheus(port, tmp_path_factory) -> Iterator[PrometheusProcess]:
    process = PrometheusProcess(tmp_path_factory.mktemp("prometheus"), f"127.0.0.1:{port}")
    yield process
    process.stop()


@asynccontextmanager
async def collecting(**metrics: object) -> AsyncIterator[MetricCollector]:
    collector = MetricCollector(settings(**metrics).model_dump_json(), "", MemoryStore())
    try:
        yield collector
    finally:
        await collector.close()


@pytest.fixture
async def collector(prometheus) -> AsyncIterator[MetricCollector]:
    async with collecting(source="prometheus", url=prometheus.url) as collector:
        yield collector


def write_trace(path: Path, requests: int, every_s: float) -> Path:
    """Requests of three sizes, at a steady rate."""
    sizes = ((500, 6), (2000, 12), (4000, 18))
    rows = [f"{index * every_s},{sizes[index % 3][0]},{sizes[index % 3][1]}" for index in range(requests)]
    path.write_text("\n".join(["timestamp_s,input_tokens,output_tokens", *rows]) + "\n")
    return path


async def load(url: str, path: Path) -> LoadTally:
    plan = LoadPlan(url=url, model=settings().model, slo=SLO)
    with open_trace(str(path)) as trace:
        return await replay(trace, plan)


async def until_ok(collector: MetricCollector, interval_s: float) -> tuple[Measured, list[HealthStatus]]:
    """The first interval that can be measured, and the health of those before it."""
    before: list[HealthStatus] = []
    async with asyncio.timeout(DEADLINE_S):
        while (found := await collector.collect(interval_s)).health.status is not HealthStatus.OK:
            before.append(found.health.status)
            assert isnan(found.requests), "what could not be measured must not look like zero traffic"
            await asyncio.sleep(0.2)
    return found, before


async def until_counted(collector: MetricCollector, began_s: float, completed: int) -> Measured:
    """The interval since then, once Prometheus has seen so many requests end."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            found = await collector.collect(time.time() - began_s)
            if found.health.status is HealthStatus.OK and found.completed >= completed:
                return found
            await asyncio.sleep(0.2)


def agrees(found: Measured, client: LoadTally) -> None:
    """What the collector says against what the load generator saw."""
    assert client.completed == client.requests
    assert (found.requests, found.completed) == (client.requests, client.completed)
    assert found.attainment == client.attainment == 1.0
    assert found.isl_tokens == pytest.approx(client.input_tokens / client.requests, rel=WITHIN)
    assert found.osl_tokens == pytest.approx(client.output_tokens / client.completed, rel=WITHIN)
    seen = {name: client.latencies[f"{name}_s"].mean_s for name in ("ttft", "itl", "e2e")}
    assert found.ttft_s.mean == pytest.approx(seen["ttft"], rel=WITHIN)
    assert found.itl_s.mean == pytest.approx(seen["itl"], rel=WITHIN)
    assert found.request_duration_s == pytest.approx(seen["e2e"], rel=WITHIN)


async def test_the_collectors_numbers_are_the_load_generators(port, prometheus, collector, tmp_path):
    with gateway_at(port) as url:
        await until_ok(collector, 2.0)
        began_s = time.time()
        async with collecting(source="gateway", url=url) as embedded:
            await embedded.collect(1.0)
            client = await load(url, write_trace(tmp_path / "trace.csv", 36, 0.12))
            by_prometheus = await until_counted(collector, began_s, client.completed)
            by_scrape = await embedded.collect(time.time() - began_s)
        agrees(by_prometheus, client)
        agrees(by_scrape, client)
        assert by_prometheus.ttft_s.p95 == pytest.approx(by_scrape.ttft_s.p95)
        assert by_prometheus.load[Role.MIXED].running > 0


async def test_prometheus_stopped_and_started_again(port, prometheus, collector, tmp_path):
    with gateway_at(port) as url:
        await until_ok(collector, 2.0)
        prometheus.stop()
        down = await collector.collect(2.0)
        assert down.health.status is HealthStatus.DOWN
        assert isnan(down.requests)
        assert not (await collector.ready())[0]
        unseen = await load(url, write_trace(tmp_path / "trace.csv", 12, 0.05))
        await asyncio.sleep(2.0 * FRESH_S)
        prometheus.start()
        found, before = await until_ok(collector, 2.0)
        assert set(before) <= {HealthStatus.DOWN, HealthStatus.STALE, HealthStatus.STARTING}
        assert HealthStatus.STARTING in before
        assert found.requests < unseen.requests, "what came while nobody looked is not this interval's"
        began_s = time.time()
        client = await load(url, write_trace(tmp_path / "more.csv", 6, 0.1))
        assert (await until_counted(collector, began_s, client.completed)).requests == client.requests
