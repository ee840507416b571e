"""The embedded source: reads a gateway's /metrics over HTTP, without a Prometheus.

    in the background   a read every `scrape_interval_s`, so that the load of pools is a mean, outages show
    at `collect`        one more read, so that the interval ends exactly now
    its address         may be our own gateway's, which moves: a new address is a new process

    what happens                       health
    refused, too late, status not 200  `down`
    not Prometheus' text, over 16 MiB  `down`
    no series of this model yet        `starting`

Our own gateway also lists the interval's requests one by one, at /metrics/requests. Where it does not (an
older one, no answer, not all of them kept), the interval has no `traffic`, and is as good as without.

After every interval, and every few reads, the tracker's state goes to the store.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from math import isnan

import aiohttp

from actors.collector.exposition import (
    SourceDownError,
    clock_shift_s,
    decode,
    metrics_url,
    parse,
    redacted,
    traffic_within,
)
from actors.collector.measured import Health, HealthStatus, Measured, unmeasured
from actors.collector.tracker import Tracker
from actors.names import GATEWAY_ADDRESS
from actors.store import Store
from headway.config import HeadwayConfig
from headway.planning import Traffic

MOST_BYTES = 16 * 2**20
STORE_EVERY_S = 5.0
REACH_FURTHER_S = 1.0
"""The gateway is asked for more than the interval, whose ends it sees on its own clock."""
STATE = "collector/state"
ADDRESS = "collector/address"
TEXT = {"Accept": "text/plain;version=0.0.4"}

_log = logging.getLogger(__name__)


class GatewaySource:
    """Scrapes one address and answers for intervals; `clock` gives Unix seconds."""

    def __init__(
        self,
        tracker: Tracker,
        address: Callable[[], str],
        store: Store,
        *,
        timeout_s: float,
        clock: Callable[[], float],
        single_requests: bool = False,
    ) -> None:
        self._tracker = tracker
        self._address = address
        self._store = store
        self._timeout_s = timeout_s
        self._clock = clock
        self._single_requests = single_requests
        self._no_traffic = ""
        self._reading = asyncio.Lock()
        self._session: aiohttp.ClientSession | None = None
        self._last_address = ""
        self._stored_s = float("-inf")
        self._reads = 0
        self._failures = 0
        self._restore()

    async def collect(self, start_s: float, end_s: float) -> Measured:
        """Read once more, then measure, then ask for the requests of what was measured."""
        health = await self.read()
        if health.status is not HealthStatus.OK:
            return unmeasured(start_s, end_s, health.status, health.detail)
        measured = self._tracker.measure(start_s, end_s)
        self._keep(force=True)
        if not self._single_requests or isnan(measured.requests):
            return measured
        traffic = await self._traffic(measured.start_s, measured.end_s)
        return measured if traffic is None else replace(measured, traffic=traffic, counted=None)

    async def probe(self) -> Health:
        """Read once, and see whether this model's series are there."""
        health = await self.read()
        if health.status is HealthStatus.OK and not self._tracker.alive():
            detail = f"{redacted(self._last_address)} has no such series"
            return Health(status=HealthStatus.STARTING, detail=detail)
        return health

    async def read(self) -> Health:
        """One read into the tracker. The lock keeps reads in the order of their times."""
        async with self._reading:
            address = self._address()
            try:
                text = await self._get(metrics_url(address))
                samples = parse(text, self._tracker.names)
            except SourceDownError as error:
                self._failures += 1
                detail = f"the gateway at {redacted(metrics_url(address))}: {error}"
                return Health(status=HealthStatus.DOWN, detail=detail)
            self._reads += 1
            if self._last_address and address != self._last_address:
                _log.info("metrics moved from %s to %s", redacted(self._last_address), redacted(address))
                self._tracker.replaced()
            self._last_address = address
            self._tracker.add(samples, self._clock())
            self._keep()
            return Health(status=HealthStatus.OK)

    def status(self) -> dict[str, object]:
        """Address, reads, failures, time of the last read; why the last interval has no traffic."""
        return {
            "url": redacted(metrics_url(self._address())),
            "reads": self._reads,
            "failures": self._failures,
            "last_read_at": self._tracker.newest_s,
            "no_traffic": self._no_traffic,
        }

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    async def _traffic(self, start_s: float, end_s: float) -> Traffic | None:
        """The requests of an interval one by one, if the gateway has them all."""
        asked_s = self._clock()
        url = f"{metrics_url(self._last_address)}/requests?seconds={asked_s - start_s + REACH_FURTHER_S:.3f}"
        try:
            requests = decode(await self._get(url))
        except (SourceDownError, ValueError) as error:
            self._no_traffic = str(error)
            return None
        traffic = traffic_within(requests, clock_shift_s(requests, asked_s, self._clock()), start_s, end_s)
        self._no_traffic = "" if traffic is not None else "the gateway has not kept all of its requests"
        return traffic

    async def _get(self, url: str) -> str:
        """The body. All that HTTP does to us is `SourceDownError`."""
        if self._session is None:
            # A connection each read, as servers drop idle ones at moments of their own.
            self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True))
        try:
            async with asyncio.timeout(self._timeout_s), self._session.get(url, headers=TEXT) as response:
                if response.status != 200:
                    raise SourceDownError(f"HTTP status {response.status}")
                body = bytearray()
                async for piece in response.content.iter_chunked(2**16):
                    body += piece
                    if len(body) > MOST_BYTES:
                        raise SourceDownError(f"over {MOST_BYTES} bytes")
                return body.decode("utf-8", "replace")
        except TimeoutError:
            raise SourceDownError(f"no answer within {self._timeout_s:g} s") from None
        except (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError):
            # Their text is the whole address, with the credentials in it.
            raise SourceDownError("is not an http address") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise SourceDownError(f"{type(error).__name__}: {str(error)[:200]}") from None

    def _keep(self, *, force: bool = False) -> None:
        if force or self._clock() - self._stored_s >= STORE_EVERY_S:
            self._store.put(STATE, self._tracker.state())
            self._store.put(ADDRESS, self._last_address.encode())
            self._stored_s = self._clock()

    def _restore(self) -> None:
        """Take up what a process before this one stored; what cannot be read is as if it were not there."""
        state, address = self._store.get(STATE), self._store.get(ADDRESS)
        if state is None or address is None:
            return
        try:
            self._tracker.restore(state)
        except ValueError as error:
            _log.warning("starting anew: %s", error)
            return
        self._last_address = address.decode()


def gateway_address(config: HeadwayConfig, store: Store) -> str:
    """The configured address, else the one that our gateway has stored, else the one it shall listen at."""
    if config.metrics.url:
        return config.metrics.url
    if written := store.get(GATEWAY_ADDRESS):
        return written.decode("utf-8", "replace")
    host = config.gateway.host
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{host}:{config.gateway.port}"
