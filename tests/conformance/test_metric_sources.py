"""Both sources of metrics against the same process: the same numbers, resets and faults included.

What happens to the process is driven by the test, with a model of its own; a beacon in its metrics tells when
Prometheus has scraped it.
"""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Iterator
from math import isnan, nan

import pytest
from prometheus_api_client import PrometheusConnect
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from actors.collector.measured import HealthStatus, Increase, Measured, latency
from actors.metric_collector import MetricCollector
from headway.config import HeadwayConfig
from headway.planning import Role
from serve_apps.gateway.fleet import Labelled
from tests.exporter import Exporter
from tests.prometheus_process import PrometheusProcess
from tests.stores import MemoryStore

pytestmark = pytest.mark.anyio

DEADLINE_S = 60.0
_counter = itertools.count(1)


class World:
    """A process with metrics, and a collector of one kind that reads it."""

    def __init__(
        self, exporter: Exporter, prometheus: PrometheusProcess | None, preset: str = "headway"
    ) -> None:
        self.exporter = exporter
        self._prometheus = prometheus
        source, url = ("prometheus", prometheus.url) if prometheus else ("gateway", exporter.url)
        config = HeadwayConfig.model_validate(
            {
                "model": exporter.model,
                "metrics": {"source": source, "url": url, "preset": preset, "scrape_interval_s": 0.2},
            }
        )
        self.collector = MetricCollector(config.model_dump_json(), "", MemoryStore())
        self._began_s = 0.0

    async def begin(self) -> None:
        """An interval begins now."""
        await self.seen()
        self._began_s = time.time()
        await self.collector.collect(1.0)

    async def end(self) -> Measured:
        """It ends."""
        await self.seen()
        return await self.collector.collect(time.time() - self._began_s)

    async def seen(self) -> None:
        """Until the source has read what there is now."""
        beacon = next(_counter)
        self.exporter.beacon.set(beacon)
        if self._prometheus is not None:
            await until_scraped(self._prometheus, beacon)
        else:
            await self._until_read()

    async def _until_read(self) -> None:
        reads = (await self.collector.status())["reads"]
        async with asyncio.timeout(DEADLINE_S):
            while (await self.collector.status())["reads"] < reads + 2:
                await asyncio.sleep(0.02)


async def until_scraped(prometheus: PrometheusProcess, beacon: int) -> None:
    client = PrometheusConnect(url=prometheus.url, retry=0)
    # An interval ends up to a tenth of a second before now (`promql.on_grid`).
    query = f"(beacon == {beacon}) and timestamp(beacon) < time() - 0.1"
    async with asyncio.timeout(DEADLINE_S):
        while not await asyncio.to_thread(client.custom_query, query):
            await asyncio.sleep(0.05)


@pytest.fixture(scope="module")
def exporter():
    exporter = Exporter()
    yield exporter
    exporter.stop()


@pytest.fixture(scope="module")
def prometheus(exporter, tmp_path_factory):
    process = PrometheusProcess(tmp_path_factory.mktemp("prometheus"), f"127.0.0.1:{exporter.port}")
    yield process
    process.stop()


@pytest.fixture(params=["gateway", "prometheus"])
async def world(request, exporter) -> AsyncIterator[World]:
    prometheus = request.getfixturevalue("prometheus") if request.param == "prometheus" else None
    exporter.serve_model(f"model-{next(_counter)}")
    world = World(exporter, prometheus)
    await world.seen()
    yield world
    await world.collector.close()


async def until_ok(world: World) -> None:
    """Until an interval can be measured: Prometheus has looked at the process for long enough."""
    async with asyncio.timeout(DEADLINE_S):
        while (health := (await world.collector.collect(0.5)).health).status is not HealthStatus.OK:
            # Replicas that run requests of the test before this one.
            if "stands still" in health.detail:
                return
            assert health.status in {HealthStatus.STARTING, HealthStatus.PARTIAL}, health
            await asyncio.sleep(0.1)


class OnePage(Collector):
    """The counts of several gateways on one page, as whichever of them answers shows them."""

    def __init__(self) -> None:
        self.gateways: dict[str, Exporter] = {}

    def begin(self, name: str, model: str) -> Exporter:
        self.gateways[name] = Unserved(port=1)
        self.gateways[name].serve_model(model)
        return self.gateways[name]

    def collect(self) -> Iterator[Metric]:
        families: dict[str, Metric] = {}
        for name, gateway in self.gateways.items():
            for family in Labelled(gateway.registry, name, alike=False).collect():
                families.setdefault(family.name, family).samples.extend(
                    [] if families[family.name] is family else family.samples
                )
        yield from families.values()


class Unserved(Exporter):
    """Counts without a port."""

    def start(self) -> None:
        self._make(CollectorRegistry())


async def test_the_gateways_of_one_page_are_added_up(world):
    page, model = OnePage(), world.exporter.model
    first, second = page.begin("a", model), page.begin("b", model)
    world.exporter.registry.register(page)
    try:
        await world.seen()
        await until_ok(world)
        await world.begin()
        first.serve([0.1] * 5, isl=100.0)
        second.serve([0.3] * 7, isl=400.0)
        await world.seen()
        del page.gateways["b"]
        first.serve([0.1], isl=100.0)
        page.begin("c", model).serve([0.1] * 4, isl=100.0)
        found = await world.end()
    finally:
        world.exporter.registry.unregister(page)
    assert found.health.status is HealthStatus.OK, found.health
    assert (found.requests, found.completed) == (17.0, 17.0)
    assert found.isl_tokens == pytest.approx((7 * 400 + 10 * 100) / 17)
    assert found.ttft_s.count == 17.0


async def test_the_numbers_of_the_traffic(world):
    await until_ok(world)
    await world.begin()
    world.exporter.serve([0.015, 0.03, 0.3] * 20, isl=200.0, gap=0.015, osl=4)
    world.exporter.arrive(1000.0)
    world.exporter.arrive(9000.0, model="other")
    world.exporter.end(0.4, [0.1], met=False, outcome="failed")
    found = await world.end()
    assert found.health.status is HealthStatus.OK
    assert (found.requests, found.completed) == (61.0, 60.0)
    assert found.isl_tokens == pytest.approx((60 * 200 + 1000) / 61)
    assert (found.osl_tokens, found.attainment) == (4.0, pytest.approx(60 / 61))
    assert found.request_duration_s == pytest.approx(0.115 + 0.045)
    assert found.ttft_s.mean == pytest.approx((60 * 0.115 + 0.4) / 61)
    assert found.ttft_s.p50 == pytest.approx(0.02 + 0.03 * 10.5 / 20)
    assert found.ttft_s.p99 == pytest.approx(0.2 + 0.3 * (0.99 * 61 - 40) / 21)
    assert (found.itl_s.count, found.itl_s.mean) == (181.0, pytest.approx((180 * 0.015 + 0.1) / 181))


async def test_what_was_counted_of_the_requests(world):
    """Arrivals by scrape, and the histogram of lengths: not their mean alone."""
    await until_ok(world)
    await world.begin()
    world.exporter.serve([0.1] * 9, isl=0.015, osl=2)
    await world.seen()
    world.exporter.serve([0.1], isl=1.5, osl=2)
    found = await world.end()
    counted = found.counted
    assert (counted.start_s, counted.completed) == (found.start_s, 10.0)
    assert [gain for _, gain in counted.steps if gain] == pytest.approx([9.0, 1.0])
    assert [at_s for at_s, _ in counted.steps] == sorted(at_s for at_s, _ in counted.steps)
    assert found.start_s < counted.steps[0][0] <= counted.steps[-1][0] <= found.end_s
    lengths = counted.input_tokens
    assert {b: c for b, c in zip(lengths.bounds, lengths.counts, strict=False) if c} == {0.02: 9.0, 2.0: 1.0}
    assert lengths.mean == pytest.approx((9 * 0.015 + 1.5) / 10)


async def test_intervals_tile(world):
    await until_ok(world)
    await world.begin()
    counted = []
    for count in (3, 0, 7):
        world.exporter.serve([0.1] * count)
        await world.seen()
        now_s = time.time()
        counted.append((await world.collector.collect(now_s - world._began_s)).requests)
        world._began_s = now_s
    assert counted == [3.0, 0.0, 7.0]


async def test_zero_traffic(world):
    world.exporter.serve([0.1] * 5)
    await until_ok(world)
    await world.begin()
    found = await world.end()
    assert (found.health.status, found.requests, found.completed) == (HealthStatus.OK, 0.0, 0.0)
    assert isnan(found.ttft_s.mean)
    assert isnan(found.ttft_s.p99)
    assert isnan(found.attainment)


async def test_a_restart_inside_the_interval_loses_nothing_that_was_read(world):
    world.exporter.serve([0.3] * 20)
    await until_ok(world)
    await world.begin()
    world.exporter.serve([0.1] * 10)
    await world.seen()
    world.exporter.restart()
    await world.seen()
    world.exporter.serve([0.2] * 5)
    found = await world.end()
    assert (found.requests, found.completed, found.osl_tokens) == (15.0, 15.0, 3.0)
    assert found.ttft_s.mean == pytest.approx((10 * 0.1 + 5 * 0.2) / 15)
    assert found.health.status is HealthStatus.OK


async def test_a_counter_that_goes_back_and_returns_is_no_demand_at_all(world):
    """12,086 of one interval's 12,386 requests were those of a counter that went back by 300."""
    world.exporter.serve([0.1] * 20)
    arrivals = world.exporter.arrivals.labels(world.exporter.model)
    arrivals.inc(12_066)
    await until_ok(world)
    await world.begin()
    arrivals._value.set(11_786)
    await world.seen()
    arrivals._value.set(12_386)
    found = await world.end()
    assert isnan(found.requests)
    assert found.health.status is HealthStatus.PARTIAL
    assert "headway_request_arrivals_total" in found.health.detail
    assert "(since " in found.health.detail


async def test_counters_that_stand_still_while_replicas_run_requests_are_no_zero_traffic(world):
    world.exporter.serve([0.1] * 20)
    world.exporter.load("decode", "a", running=4.0, waiting=0.0, kv_usage=0.1)
    await until_ok(world)
    await world.begin()
    found = await world.end()
    assert isnan(found.requests)
    assert "every counter stands still while replicas run" in found.health.detail
    world.exporter.load("decode", "a", running=0.0, waiting=0.0, kv_usage=0.0)


async def test_series_that_are_missing_are_partial(world):
    await until_ok(world)
    await world.begin()
    world.exporter.arrive(100.0)
    world.exporter.ended.labels(world.exporter.model, "ok").inc()
    found = await world.end()
    assert found.health.status is HealthStatus.PARTIAL
    assert all(name in found.health.detail for name in ("osl", "duration", "ttft", "itl"))
    assert (found.requests, found.isl_tokens) == (1.0, 100.0)


async def test_nan_is_partial(world):
    await until_ok(world)
    await world.begin()
    world.exporter.serve([0.1, nan])
    found = await world.end()
    assert found.health.status is HealthStatus.PARTIAL
    assert "ttft" in found.health.detail
    assert isnan(found.ttft_s.mean)
    assert found.requests == 2.0


async def test_the_load_of_pools(world):
    await until_ok(world)
    for replica, running in (("a", 4.0), ("b", 2.0)):
        world.exporter.load("decode", replica, running=running, waiting=1.0, kv_usage=running / 10)
    world.exporter.load("prefill", "p", running=0.0, waiting=3.0, kv_usage=0.0)
    await world.begin()
    found = (await world.end()).load
    assert set(found) == {Role.DECODE, Role.PREFILL}
    assert (found[Role.DECODE].running, found[Role.DECODE].waiting) == pytest.approx((6.0, 2.0))
    assert found[Role.DECODE].kv_usage == pytest.approx(0.3)
    assert found[Role.PREFILL].waiting == pytest.approx(3.0)


class Vllm:
    """What an engine shows of itself, beside the exporter's own metrics."""

    def __init__(self, exporter: Exporter) -> None:
        labels, registry = ("model_name", "engine"), exporter.registry
        self._registry = registry
        self.ended = Counter("vllm:request_success", "x", (*labels, "finished_reason"), registry=registry)
        self.running = Gauge("vllm:num_requests_running", "x", labels, registry=registry)
        self.waiting = Gauge("vllm:num_requests_waiting", "x", labels, registry=registry)
        self.kv_usage = Gauge("vllm:kv_cache_usage_perc", "x", labels, registry=registry)

    def close(self) -> None:
        for metric in (self.ended, self.running, self.waiting, self.kv_usage):
            self._registry.unregister(metric)

    def show(self, model: str, stopped: int, running: float, waiting: float) -> None:
        self.ended.labels(model, "0", "stop").inc(stopped)
        self.running.labels(model, "0").set(running)
        self.waiting.labels(model, "0").set(waiting)
        self.kv_usage.labels(model, "0").set(0.25)


@pytest.mark.parametrize("source", ["gateway", "prometheus"])
async def test_arrivals_at_engines_that_count_none(source, request, exporter):
    """What ended, and the change of what runs and waits, which may be negative."""
    prometheus = request.getfixturevalue("prometheus") if source == "prometheus" else None
    exporter.serve_model(f"model-{next(_counter)}")
    world, engine = World(exporter, prometheus, "vllm"), Vllm(exporter)
    try:
        engine.show(exporter.model, stopped=10, running=4, waiting=0)
        await world.seen()
        await until_ok(world)
        await world.begin()
        engine.show(exporter.model, stopped=5, running=8, waiting=6)
        grown = await world.end()
        assert (grown.requests, grown.completed) == (15.0, 5.0)
        assert grown.load[Role.MIXED].kv_usage == pytest.approx(0.25)
        await world.begin()
        engine.show(exporter.model, stopped=9, running=7, waiting=0)
        shrunk = await world.end()
        assert (shrunk.requests, shrunk.completed) == (2.0, 9.0)
        assert shrunk.health.detail == "no data for isl, osl, duration, ttft, itl"
    finally:
        engine.close()
        await world.collector.close()


async def test_engines_with_vllms_older_names_count_and_those_that_show_both_count_once(exporter, prometheus):
    exporter.serve_model(f"model-{next(_counter)}")
    world, engine = World(exporter, prometheus, "vllm"), Vllm(exporter)
    labels, registry = ("model_name", "engine"), exporter.registry
    older = [
        Histogram("vllm:time_per_output_token_seconds", "x", labels, buckets=(0.01, 1.0), registry=registry),
        Gauge("vllm:gpu_cache_usage_perc", "x", labels, registry=registry),
    ]
    newer = Histogram("vllm:inter_token_latency_seconds", "x", labels, buckets=(0.01, 1.0), registry=registry)
    gaps, usage = older
    try:
        engine.show(exporter.model, stopped=10, running=4, waiting=0)
        usage.labels(exporter.model, "0").set(0.25)
        usage.labels(exporter.model, "1").set(0.75)
        for histogram, name in ((gaps, "0"), (gaps, "1"), (newer, "0")):
            histogram.labels(exporter.model, name)
        await world.seen()
        await until_ok(world)
        await world.begin()
        engine.show(exporter.model, stopped=5, running=4, waiting=0)
        for histogram, name, times in ((gaps, "0", 8), (newer, "0", 8), (gaps, "1", 2)):
            for _ in range(times):
                histogram.labels(exporter.model, name).observe(0.005 if name == "0" else 0.5)
        found = await world.end()
        assert (found.itl_s.count, found.itl_s.mean) == (10.0, pytest.approx(0.104))
        assert found.load[Role.MIXED].kv_usage == pytest.approx(0.5)
        assert found.health.detail == "no data for isl, osl, duration, ttft"
    finally:
        engine.close()
        for metric in (*older, newer):
            registry.unregister(metric)
        await world.collector.close()


async def test_ready_when_the_models_metrics_are_there(world):
    assert await world.collector.ready() == (True, "")


async def test_our_quantiles_are_those_of_promql(exporter, prometheus):
    """The rules of `histogram_quantile`, taken from Prometheus itself."""
    exporter.serve_model(f"model-{next(_counter)}")
    world = World(exporter, prometheus)
    exporter.serve([0.004, 0.015, 0.016, 0.03, 0.06, 0.3, 0.7, 1.5, 5.0, 9.0])
    await world.seen()
    client = PrometheusConnect(url=prometheus.url, retry=0)
    buckets = f'headway_time_to_first_token_seconds_bucket{{model="{exporter.model}"}}'
    raw = await asyncio.to_thread(client.custom_query, buckets)
    ours = latency_of(raw)
    for q, own in ((0.5, ours.p50), (0.95, ours.p95), (0.99, ours.p99)):
        theirs = await asyncio.to_thread(
            client.custom_query, f"histogram_quantile({q}, sum by (le) ({buckets}))"
        )
        assert own == pytest.approx(float(theirs[0]["value"][1]))
    await world.collector.close()


def latency_of(raw):
    pairs = tuple((float(row["metric"]["le"]), float(row["value"][1])) for row in raw)
    return latency(Increase(count=10.0, total=1.0, buckets=pairs))


async def why_not(prometheus: PrometheusProcess, **metrics: object) -> str:
    """What a collector says of a model that is not there."""
    source = {"source": "prometheus", "url": prometheus.url, **metrics}
    config = HeadwayConfig.model_validate({"model": "nobody", "pools": {"mixed": {}}, "metrics": source})
    collector = MetricCollector(config.model_dump_json(), "", MemoryStore())
    try:
        return (await collector.ready())[1]
    finally:
        await collector.close()


async def test_gateways_of_one_model_add_up_and_see_the_same_replicas(tmp_path):
    gateways = [Exporter() for _ in range(3)]
    first, second, other = gateways
    other.model = "other"
    other.restart()
    prometheus = PrometheusProcess(tmp_path, *(f"127.0.0.1:{each.port}" for each in gateways))
    world = World(first, prometheus)

    async def all_seen() -> None:
        for each in gateways:
            await World.seen(World(each, prometheus))

    try:
        for each in gateways:
            each.load("decode", "d0", 4.0, 1.0, 0.5)
        other.load("decode", "d1", 9.0, 9.0, 0.9)
        await until_ok(world)
        await all_seen()
        assert "no series of the model nobody, only of other, tiny; asked" in await why_not(prometheus)
        labels = {"labels": {"namespace": "llm"}, "preset": "vllm"}
        assert "only of other (preset headway), tiny (preset" in await why_not(prometheus, **labels)
        await world.begin()
        first.serve([0.1] * 30)
        second.serve([0.1] * 20)
        other.serve([0.1] * 90)
        await all_seen()
        found = await world.end()
        assert (found.requests, found.completed, found.health.status) == (50.0, 50.0, HealthStatus.OK)
        load = found.load[Role.DECODE]
        assert (load.running, load.waiting, load.kv_usage) == pytest.approx((4.0, 1.0, 0.5))
        # One of them begins anew: what it counted before is in no later interval, and none is lost.
        await world.begin()
        second.restart()
        second.serve([0.1] * 15)
        first.serve([0.1] * 10)
        await all_seen()
        found = await world.end()
        assert (found.requests, found.health.status) == (25.0, HealthStatus.OK)
    finally:
        await world.collector.close()
        prometheus.stop()
        for each in gateways:
            each.stop()
