"""The actor that turns metrics into measured intervals. The Planner asks it once a tick.

`collect` answers with a health status instead of raising: whatever the source does is data. What an interval
needs across a restart of this actor is in the store (gateway source) or in Prometheus itself.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Protocol

from actors.collector.discovery import Discovery, Pods
from actors.collector.engines import EngineFleet
from actors.collector.exposition import SourceDownError
from actors.collector.interval import Health, HealthStatus, Measured, unmeasured
from actors.collector.inventory import Inventory
from actors.collector.pages import HttpPages, Pages, TextReader, gateways_of
from actors.collector.presets import preset
from actors.collector.prometheus_source import PrometheusSource
from actors.collector.scrape import Fleet, GatewayFleet, ScrapeSource
from actors.collector.series import ModelSeries
from actors.collector.tracker import Tracker
from actors.collector.wake_query import WakeQuery
from actors.store import InternalKvStore, Store
from headway.config import HeadwayConfig
from headway.engine.nearest import Told
from headway.planning import Role

MOST_READING = 0.2

_log = logging.getLogger(__name__)


class Source(Protocol):
    """Metrics of one deployment. None of these raises for what the other side does."""

    async def collect(self, start_s: float, end_s: float, since_s: float | None = None) -> Measured:
        """The interval as measured; `end_s` is now.

        It begins where the one before ended, at `since_s` by the source's own times, or else at `start_s`.
        """

    async def probe(self) -> Health:
        """`ok` if the source answers now, else what is wrong."""

    async def engines(self) -> Mapping[Role, int]:
        """Engines that serve the model now, by role; nothing of a role where that does not show."""

    async def inventory(self) -> Inventory:
        """What there is of the preset, and what instead. SourceDownError, TimeoutError."""

    def status(self) -> dict[str, object]:
        """Address, successes and failures so far, for people."""

    async def close(self) -> None:
        """Let go of connections and threads."""


class MetricCollector:
    """Measures intervals; `application` is the Serve application whose gateway is read where no URL is set.

    `store` and `clock` are for tests: the actor has Ray's KV and the real clock.
    """

    def __init__(
        self,
        config_json: str,
        application: str = "",
        store: Store | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._application = application
        self._config = HeadwayConfig.model_validate_json(config_json)
        self._store = InternalKvStore() if store is None else store
        self._clock = clock
        self._source: Source | None = None
        metrics = self._config.metrics
        self._wake = None if metrics.wake is None else WakeQuery(metrics, self._config.model)
        self._background: asyncio.Task[None] | None = None
        self._last: Measured | None = None
        self._ordered: Mapping[Role, int] = {}
        self._intervals = 0
        self._errors = 0

    async def collect(
        self, interval_s: float, since_s: float | None = None, ordered: Mapping[Role, int] | None = None
    ) -> Measured:
        """The interval that ends now: since the one before ended, or so many seconds where there is none.

        `ordered` are the replicas that there should be: an engine beyond them that is gone is not missed.
        """
        self._ordered = ordered or {}
        end_s = self._clock()
        start_s = end_s - interval_s
        try:
            measured = await self._running().collect(start_s, end_s, since_s)
            if self._wake is not None:
                measured = await self._wake.stands_for(measured, self._ordered)
        except Exception as error:  # noqa: BLE001 - the actor's outermost call: the Planner's loop must go on
            self._errors += 1
            _log.exception("an interval could not be measured")
            detail = f"{type(error).__name__} in the collector: {error}"
            measured = unmeasured(since_s or start_s, end_s, HealthStatus.DOWN, detail)
        self._intervals += 1
        self._last = measured
        return measured

    async def ready(self) -> tuple[bool, str]:
        """True if the source answers and shows this model's metrics, else why it does not."""
        try:
            health = await self._running().probe()
        except Exception as error:  # noqa: BLE001 - as in `collect`
            self._errors += 1
            _log.exception("the source could not be probed")
            return False, f"{type(error).__name__} in the collector: {error}"
        return health.status is HealthStatus.OK, health.detail

    async def waiting(self) -> float | None:
        """The requests that wait in front of the engines, by `metrics.wake`; None where it finds nothing.

        SourceDownError: it has no answer.
        """
        return None if self._wake is None else await self._wake.waiting()

    async def inventory(self) -> list[str]:
        """A line for each quantity of the preset: what is there of it; none where nothing can be read."""
        with suppress(SourceDownError, TimeoutError):
            return list((await self._running().inventory()).lines)
        return []

    async def told(self) -> Told:
        """What engines say of model and GPU, where no profile does; nothing where nothing can be read."""
        if self._config.engine.profile is None:
            with suppress(SourceDownError, TimeoutError):
                return (await self._running().inventory()).told
        return Told()

    async def engines(self) -> dict[str, int]:
        """Engines that serve the model now, by role; a role of which that does not show is left out."""
        try:
            found = await self._running().engines()
        except Exception:  # noqa: BLE001 - as in `collect`
            self._errors += 1
            _log.exception("engines could not be counted")
            return {}
        return {role.value: count for role, count in found.items()}

    async def status(self) -> dict[str, Any]:
        """Source, preset, health of the last interval, counts of reads, failures and own errors."""
        settings = self._config.metrics
        health = self._last.health if self._last else None
        return {
            "source": settings.source,
            "preset": settings.preset,
            "health": str(health.status) if health else None,
            "detail": health.detail if health else "",
            "intervals": self._intervals,
            "errors": self._errors,
            **self._running().status(),
        }

    async def close(self) -> None:
        """Stop reading."""
        if self._background is not None:
            self._background.cancel()
            with suppress(asyncio.CancelledError):
                await self._background
            self._background = None
        if self._source is not None:
            await self._source.close()
            self._source = None
        if self._wake is not None:
            await self._wake.close()

    def _running(self) -> Source:
        """The source, made on the event loop that will use it."""
        if self._source is not None:
            return self._source
        settings = self._config.metrics
        if settings.source == "prometheus":
            self._source = PrometheusSource(
                settings.url or "",
                preset(settings.preset, settings.overrides),
                self._config.model,
                timeout_s=settings.timeout_s,
                fresh_s=settings.stale_after_s,
                labels=settings.labels,
                role_labels={Role(role): labels for role, labels in settings.role_labels.items()},
                settings=settings,
                ordered=lambda: self._ordered,
            )
        else:
            engines = settings.source == "engines"
            roles = tuple(map(Role, settings.engines)) if engines else ()
            names = preset(settings.preset, settings.overrides)
            series = ModelSeries(names, self._config.model, roles)
            fleet: Fleet = self._engines(series) if engines else self._gateways(series)
            tracker = Tracker(series, settings.scrape_interval_s)
            source = ScrapeSource(tracker, fleet, self._store, clock=self._clock)
            self._background = asyncio.create_task(self._read_on(source))
            self._source = source
        return self._source

    def _gateways(self, series: ModelSeries) -> GatewayFleet:
        settings = self._config.metrics
        pages: Pages = gateways_of(self._config, self._application, settings.timeout_s)
        if settings.url:
            pages = HttpPages(settings.url, self._http())
        return GatewayFleet(
            series,
            pages,
            clock=self._clock,
            single_requests=settings.preset == "headway",
            classes=tuple(self._config.slo.classes),
        )

    def _engines(self, series: ModelSeries) -> EngineFleet:
        settings, pods = self._config.metrics, Pods(self._config.connector.kubernetes)
        engines = {Role(role): each for role, each in settings.engines.items()}
        discovery = Discovery(
            engines, pods, timeout_s=settings.timeout_s, clock=self._clock, path=series.preset.path
        )
        clock, stale_s, ordered = self._clock, settings.stale_after_s, lambda: self._ordered
        return EngineFleet(series, discovery, self._http(), stale_s=stale_s, clock=clock, ordered=ordered)

    def _http(self) -> TextReader:
        settings = self._config.metrics
        return TextReader(settings.timeout_s, settings)

    async def _read_on(self, source: ScrapeSource) -> None:
        """Reads every `scrape_interval_s` for as long as the actor lives, in MOST_READING of its CPU time."""
        while True:
            began_s = time.thread_time()
            try:
                await source.read()
            except Exception:  # noqa: BLE001 - the actor's outermost loop: counted, logged, tried again
                self._errors += 1
                _log.exception("metrics could not be read")
            took_s = time.thread_time() - began_s
            await asyncio.sleep(max(self._config.metrics.scrape_interval_s, took_s / MOST_READING))
