"""Sources of metrics: addresses, answers of Prometheus, failures of the other side."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from math import isnan, nan

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from actors.collector.exposition import SourceDownError, metrics_url, redacted
from actors.collector.interval import HealthStatus
from actors.collector.prometheus_source import (
    Coverage,
    Point,
    coverage_health,
    coverage_of,
    points,
)
from actors.collector.raw_samples import RawSeries, raw_series
from tests.actors.collector_cases import collecting, serving
from tests.clocks import Clock
from tests.exporter import Exporter
from tests.patience import PATIENCE_S
from tests.ports import free_port
from tests.stores import FailingStore, GatedStore, MemoryStore

pytestmark = pytest.mark.anyio

SOURCES = ("gateway", "prometheus")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@pytest.fixture
def exporter():
    exporter = Exporter()
    yield exporter
    exporter.stop()


def answering(status: int = 200, text: str = "") -> Handler:
    async def handler(_request: web.Request) -> web.StreamResponse:
        return web.Response(status=status, text=text)

    return handler


async def hanging_up(request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize(
    ("handler", "told"),
    [
        (answering(500, "broken"), "500"),
        (answering(404), "404"),
        (answering(302), ""),
        (answering(text="<html>hello</html>\n"), "not"),
        (answering(text='{"status": "success", "data": []}\n'), "not"),
        (answering(text='{"status": "success", "data": {"result": [{"value": 7}]}}\n'), "not"),
        (hanging_up, ""),
    ],
)
async def test_a_server_that_misbehaves_is_down(source, handler, told):
    async with serving(handler) as url, collecting(source, url) as collector:
        found = await collector.collect(10.0)
        assert found.health.status is HealthStatus.DOWN
        assert told in found.health.detail
        assert url in found.health.detail
        assert isnan(found.requests)
        assert (found.start_s, found.end_s) == (990.0, 1_000.0)
        ok, reason = await collector.ready()
        assert not ok
        assert reason
        status = await collector.status()
        assert (status["health"], status["errors"], status["intervals"]) == ("down", 0, 1)


@pytest.mark.parametrize("source", SOURCES)
async def test_nobody_there_is_down(source):
    async with collecting(source, f"http://127.0.0.1:{free_port()}") as collector:
        health = (await collector.collect(10.0)).health
        assert health.status is HealthStatus.DOWN
        assert "onnect" in health.detail


@pytest.mark.parametrize("source", SOURCES)
async def test_a_server_that_does_not_answer_is_down_at_the_deadline_and_frees_its_callers(source):
    released = asyncio.Event()
    asked = 0

    async def stuck(_request: web.Request) -> web.StreamResponse:
        nonlocal asked
        asked += 1
        await released.wait()
        return web.Response(status=503)

    looks = 0
    async with serving(stuck) as url, collecting(source, url, timeout_s=0.05) as collector:
        # On a busy machine the time may be over before the server has heard of it.
        while looks < 7 or asked < 4:
            health = (await collector.collect(10.0)).health
            assert health.status is HealthStatus.DOWN
            assert "no answer within 0.05 s" in health.detail or "timed out" in health.detail
            looks += 1
        released.set()


async def test_more_than_a_gateway_says_is_not_read():
    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(20 * 16):
            await response.write(b"# " + b"x" * 2**16 + b"\n")
        return response

    async with serving(endless) as url, collecting("gateway", url, max_answer_mib=16) as collector:
        assert "over 16 MiB (metrics.max_answer_mib)" in (await collector.collect(10.0)).health.detail


async def test_credentials_in_an_address_are_not_shown():
    url = f"http://me:secret@127.0.0.1:{free_port()}"
    for source in SOURCES:
        async with collecting(source, url) as collector:
            told = (await collector.collect(10.0)).health.detail + str(await collector.status())
            assert "secret" not in told
            assert "127.0.0.1" in told


async def test_what_was_stored_by_something_else_is_ignored(exporter):
    store = MemoryStore()
    store.put("collector/state", b"rubbish")
    async with collecting("gateway", exporter.url, store) as collector:
        assert (await collector.collect(10.0)).health.status is HealthStatus.STARTING


async def test_a_store_that_fails_costs_no_interval(exporter, caplog):
    clock, store = Clock(), FailingStore()
    store.fault = RuntimeError("no such store")
    async with collecting("gateway", exporter.url, store, clock) as collector:
        await collector.collect(10.0)
        exporter.serve([0.1] * 3)
        clock.now_s += 10.0
        found = await collector.collect(10.0)
        assert (found.health.status, found.requests) == (HealthStatus.OK, 3.0)
    assert "the store does not take collector/state" in caplog.text
    assert "no such store" in caplog.text


async def test_a_store_that_does_not_answer_blocks_no_event_loop(exporter, monkeypatch):
    store, clock = GatedStore(), Clock()
    monkeypatch.setattr("actors.collector.scrape.WRITTEN_S", 0.05)
    async with collecting("gateway", exporter.url, store, clock) as collector:
        await collector.collect(10.0)
        clock.now_s += 10.0
        exporter.serve([0.1] * 3)
        found = await collector.collect(10.0)
        assert found.requests == 3.0
        assert store.keys() == []
        monkeypatch.setattr("actors.collector.scrape.WRITTEN_S", PATIENCE_S)
        store.open.set()
    assert store.keys() == ["collector/state"]


def test_addresses():
    assert metrics_url("http://a:1/") == metrics_url("http://a:1/metrics") == "http://a:1/metrics"
    assert redacted("https://me:secret@a:1/b") == "https://a:1/b"


GOOD = Coverage(newest=999.0, known=1.0, scraping=2.0, resumed=nan)


@pytest.mark.parametrize(
    ("coverage", "status"),
    [
        (GOOD, HealthStatus.OK),
        (Coverage(), HealthStatus.STARTING),
        (Coverage(known=1.0, scraping=2.0), HealthStatus.STALE),
        (Coverage(newest=969.0, known=1.0, scraping=2.0), HealthStatus.STALE),
        (Coverage(newest=999.0, known=1.0), HealthStatus.STARTING),
        (Coverage(newest=999.0, known=1.0, scraping=2.0, resumed=1.0), HealthStatus.STARTING),
        (Coverage(newest=999.0, ahead=1_200.0, known=1.0, scraping=2.0), HealthStatus.STALE),
        (Coverage(ahead=1_200.0), HealthStatus.STALE),
    ],
)
def test_what_the_coverage_of_an_interval_means(coverage, status):
    assert coverage_health(coverage, 1_000.0, 30.0, "x").status is status


def test_targets_that_cannot_be_scraped_are_named():
    answer = [Point("newest", {}, 999.0), *(Point("unread", {"instance": f"{x}:1"}, 0.0) for x in "dcba")]
    coverage = coverage_of(answer, "model_name")
    assert (coverage.newest, coverage.unread) == (999.0, ("a:1", "b:1", "c:1", "d:1"))


json = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["metric", "value", "what", "le", "x"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(json | st.lists(st.fixed_dictionaries({"metric": json, "value": json, "values": json}), max_size=2))
def test_no_answer_raises_anything_but_that_it_is_none(answer):
    with suppress(SourceDownError):
        assert all(isinstance(point, Point) for point in points(answer))
    with suppress(SourceDownError):
        assert all(isinstance(series, RawSeries) for series in raw_series(answer, {}, None))


@pytest.mark.parametrize("kind", SOURCES)
@pytest.mark.parametrize("address", ["http://user:s3cret@127.0.0.1:1x", "user:s3cret@127.0.0.1:1"])
def test_an_address_that_is_none_does_not_show_its_password(address: str, kind: str) -> None:
    async def detail() -> str:
        async with collecting(kind, address) as collector:
            return (await collector.ready())[1]

    said = asyncio.run(detail())
    assert "is not an http address" in said
    assert "127.0.0.1:1" in said
    assert "s3cret" not in said
