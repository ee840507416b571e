"""Shared by the tests of the collector: a clock, a collector in a process, HTTP servers of any behaviour."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest

from actors.collector.exposition import LineReader, Samples
from actors.collector.interval import Measured
from actors.collector.presets import PRESETS, Preset
from actors.collector.series import ModelSeries
from actors.collector.tracker import Tracker
from actors.metric_collector import MetricCollector
from headway.config import HeadwayConfig
from tests.clocks import Clock
from tests.exporter import MODEL, Exporter
from tests.patience import PATIENCE_S
from tests.stores import MemoryStore

HEADWAY = PRESETS["headway"]

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Pages:
    """A tracker that is given pages."""

    def __init__(self, preset: Preset = HEADWAY, model: str = MODEL, scrape_interval_s: float = 1.0) -> None:
        series = ModelSeries(preset, model)
        self.lines, self.tracker = LineReader(series.names), Tracker(series, scrape_interval_s)

    def read(self, page: "str | Process", at_s: float) -> Samples:
        samples = self.lines.read(page if isinstance(page, str) else page.text())
        self.tracker.add(samples, at_s)
        return samples

    def measure(self, start_s: float, end_s: float) -> Measured:
        return self.tracker.measure(start_s, end_s)


class Process(Exporter):
    """An exporter that is read in memory."""

    def __init__(self) -> None:
        self.model = MODEL
        self.restart()

    def restart(self) -> None:
        self._make(CollectorRegistry())

    def text(self) -> str:
        return generate_latest(self.registry).decode()


def settings(source: str, url: str | None, model: str = MODEL, **metrics: Any) -> HeadwayConfig:
    # Reads in the background would make the test's clock matter: none but those at `collect`.
    given_settings = {
        "source": source,
        "url": url,
        "scrape_interval_s": 3600.0,
        "timeout_s": PATIENCE_S,
        **metrics,
    }
    return HeadwayConfig.model_validate({"model": model, "metrics": given_settings})


@asynccontextmanager
async def collecting(
    source: str, url: str | None, store: MemoryStore | None = None, clock: Clock | None = None, **metrics: Any
) -> AsyncIterator[MetricCollector]:
    config = settings(source, url, **metrics)
    collector = MetricCollector(config.model_dump_json(), "headway", store or MemoryStore(), clock or Clock())
    try:
        yield collector
    finally:
        await collector.close()


@asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
