"""The query for requests that wait in front of engines while none runs (`metrics.wake`).

While a model sleeps its engines have no metrics, and the answer takes their place: without one nothing is
known; with one, nothing was served. While no request comes it has to answer, too: a pool would go to sleep
that nothing could wake.
"""

from collections.abc import Mapping
from math import isfinite

from actors.collector.exposition import SourceDownError, redacted
from actors.collector.interval import Health, HealthStatus, Measured, PoolLoad, unmeasured
from actors.collector.pages import TextReader
from actors.collector.prometheus_source import points, query_url, result_of
from actors.collector.promql import duration
from headway.config import MetricsSettings
from headway.planning import Role


class WakeQuery:
    """Asks a Prometheus, of which the settings name address and query."""

    def __init__(self, settings: MetricsSettings, model: str) -> None:
        self._url, self._timeout_s = settings.url or "", settings.timeout_s
        self._query = (settings.wake or "").replace("$model", model)
        self._http = TextReader(settings.timeout_s, settings, proxies=True)

    async def waiting(self) -> float | None:
        """The sum of what it finds; None where it finds nothing. SourceDownError."""
        form = {"query": self._query, "timeout": duration(self._timeout_s)}
        try:
            result, _ = result_of(await self._http.post(query_url(self._url), form))
            found = [point.value for point in points(result) if isfinite(point.value)]
        except SourceDownError as error:
            raise SourceDownError(f"metrics.wake: Prometheus at {redacted(self._url)}: {error}") from None
        return sum(found) if found else None

    async def stands_for(self, measured: Measured, ordered: Mapping[Role, int]) -> Measured:
        """The interval as it is known with the answer; `ordered` are the replicas that there should be."""
        ok = measured.health.status is HealthStatus.OK
        asleep = bool(ordered) and not any(ordered.values())
        if measured.requests != 0.0 and (ok or not asleep):
            return measured
        span_s = measured.start_s, measured.end_s
        try:
            await self.waiting()
        except SourceDownError as error:
            return unmeasured(*span_s, HealthStatus.DOWN, str(error))
        if ok:
            return measured
        return Measured(
            start_s=measured.start_s,
            end_s=measured.end_s,
            health=Health(status=HealthStatus.OK),
            requests=0.0,
            completed=0.0,
            judged=0.0,
            load={role: PoolLoad(running=0.0, waiting=0.0, kv_usage=0.0) for role in ordered},
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._http.close()
