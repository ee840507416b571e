"""The source behind a Prometheus: each interval by PromQL, evaluated at its end.

The client is synchronous: queries run on a few threads of our own, and all of an interval share one deadline
(`timeout_s`), after which the threads are left to the client's own timeout. There are no retries: the next
interval is the retry.

    what happens                                          health
    refused, too late, HTTP error, not an answer          `down`
    earlier queries still hang on every thread            `down`, at the deadline
    no series of this model                               `starting`
    newest sample too old, target gone                    `stale`
    Prometheus, or the target, was away at the start      `starting` until an interval is covered whole
    some quantities have no data or NaN                   `partial`
"""

import asyncio
from collections.abc import Awaitable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from actors.collector import answers, promql
from actors.collector.addresses import shown
from actors.collector.answers import Point
from actors.collector.assembly import Reading, measured, unmeasured
from actors.collector.channels import Channel, Quantity, channels, gauges, matched
from actors.collector.errors import SourceDownError
from actors.collector.histogram import Increase
from actors.collector.presets import Preset, Series
from actors.collector.values import Health, HealthStatus, Measured, PoolLoad
from headway.planning import Role

THREADS = 4


class PrometheusSource:
    """Queries one Prometheus for one model. `fresh_s` is the age at which a sample stops counting."""

    def __init__(self, url: str, preset: Preset, model: str, *, timeout_s: float, fresh_s: float) -> None:
        self._url = url.rstrip("/")
        self._preset = preset
        self._quantities = promql.quantities(channels(preset, model))
        self._gauges = gauges(preset, model)
        self._alive = _with_model(preset.alive, preset, model)
        self._counter = _with_model(preset.requests[0], preset, model)
        self._timeout_s = timeout_s
        self._fresh_s = fresh_s
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="promql")
        self._client: Any = None
        self._queries = 0
        self._failures = 0

    async def collect(self, start_s: float, end_s: float) -> Measured:
        """The interval, or why it could not be measured."""
        start_s, end_s = promql.on_grid(start_s, end_s)
        window = promql.Window(interval_s=end_s - start_s, fresh_s=self._fresh_s)
        try:
            async with asyncio.timeout(self._timeout_s):
                health = await self._covered(window, end_s)
                if health.status is not HealthStatus.OK:
                    return unmeasured(start_s, end_s, health.status, health.detail)
                increases, load = await asyncio.gather(
                    self._increases(window, end_s), self._load(window, end_s)
                )
        except (SourceDownError, TimeoutError) as error:
            return unmeasured(start_s, end_s, HealthStatus.DOWN, self._failed(error))
        reading = Reading(start_s=start_s, end_s=end_s, increases=increases, load=load)
        return measured(reading, knows_attainment=self._preset.met is not None)

    async def probe(self) -> Health:
        """Whether Prometheus answers and has this model's series."""
        try:
            async with asyncio.timeout(self._timeout_s):
                found = await self._query(
                    f"count({promql.selector(self._alive.name, self._alive.where)})", None
                )
        except (SourceDownError, TimeoutError) as error:
            return Health(status=HealthStatus.DOWN, detail=self._failed(error))
        if not found:
            return Health(status=HealthStatus.STARTING, detail=f"Prometheus has no series {self._sought}")
        return Health(status=HealthStatus.OK)

    def status(self) -> dict[str, object]:
        """Address, queries and failures so far."""
        return {"url": shown(self._url), "reads": self._queries, "failures": self._failures}

    async def close(self) -> None:
        """Let the threads go; what hangs ends by the client's timeout."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    @property
    def _sought(self) -> str:
        return promql.selector(self._alive.name, self._alive.where)

    async def _covered(self, window: promql.Window, end_s: float) -> Health:
        answer = await self._query(promql.coverage(self._alive, self._counter, window), end_s)
        return answers.judge(answers.coverage_of(answer), end_s, self._fresh_s, self._sought)

    async def _increases(self, window: promql.Window, end_s: float) -> dict[Quantity, Increase]:
        asked = [self._increase(parts, window, end_s) for parts in self._quantities.values()]
        found = await asyncio.gather(*asked)
        return {
            quantity: increase
            for quantity, increase in zip(self._quantities, found, strict=True)
            if increase is not None
        }

    async def _increase(
        self, parts: tuple[Channel, ...], window: promql.Window, end_s: float
    ) -> Increase | None:
        """The plain difference; through the resets if there were any."""
        answer = await self._query(promql.increase(parts, window, through_resets=False), end_s)
        increase, reset = answers.increase_of(answer)
        if reset:
            answer = await self._query(promql.increase(parts, window, through_resets=True), end_s)
            increase, _ = answers.increase_of(answer)
        return increase

    async def _load(self, window: promql.Window, end_s: float) -> dict[Role, PoolLoad]:
        if self._preset.load is None:
            return {}
        answer = await self._query(promql.load(self._gauges, self._preset.load, window), end_s)
        return answers.loads_of(answer, self._preset.load)

    def _query(self, query: str, at_s: float | None) -> Awaitable[list[Point]]:
        """On a thread; in the queue where every thread still hangs from before, until the deadline."""
        loop = asyncio.get_running_loop()
        return loop.run_in_executor(self._threads, self._ask, query, at_s)

    def _ask(self, query: str, at_s: float | None) -> list[Point]:
        """In a thread: one request. All that it can do to us becomes `SourceDownError`."""
        from prometheus_api_client import PrometheusApiClientException

        self._queries += 1
        params = {"timeout": promql.duration(self._timeout_s)}
        if at_s is not None:
            params["time"] = f"{at_s:.3f}"
        try:
            answer = self._connection().custom_query(query, params=params, timeout=self._timeout_s)
        except PrometheusApiClientException as error:
            raise SourceDownError(str(error)[:300]) from None
        # Before OSError: what the client raises for text that is no JSON is both.
        except (ValueError, KeyError, TypeError) as error:
            raise SourceDownError(f"not an answer of Prometheus: {type(error).__name__}") from None
        except OSError as error:
            raise SourceDownError(f"{type(error).__name__}: {_reason(error)}") from None
        return answers.points(answer)

    def _connection(self) -> Any:  # noqa: ANN401 - the client has no types
        from prometheus_api_client import PrometheusConnect

        if self._client is None:
            self._client = PrometheusConnect(url=self._url, retry=0, method="POST")
        return self._client

    def _failed(self, error: Exception) -> str:
        self._failures += 1
        told = str(error) or f"no answer within {self._timeout_s:g} s"
        return f"Prometheus at {shown(self._url)}: {told}"


def _with_model(series: Series, preset: Preset, model: str) -> Series:
    return Series(name=series.name, where=matched(series, preset, model))


def _reason(error: OSError) -> str:
    """The innermost cause, which the client's text ends with; the rest repeats the query."""
    return str(error).rpartition(": ")[2].rstrip("')\"")[:200]
