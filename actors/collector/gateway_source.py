"""The embedded source: reads a gateway's metrics (`pages`), without a Prometheus.

    in the background   a read every `scrape_interval_s`, so that the load of pools is a mean, outages show
    at `collect`        one more read, so that the interval ends exactly now
    another process     as when our gateway has moved: its counters begin anew

    what happens                       health
    refused, too late, status not 200  `down`
    not Prometheus' text, over 16 MiB  `down`
    no series of this model yet        `starting`

Our own gateway also lists the interval's requests one by one. Where it does not (an
older one, no answer, not all of them kept), the interval has no `traffic`, and is as good as without.

After every interval, and every few reads, the tracker's state goes to the store, beside the event loop.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import isnan

from actors.collector.by_class import classes_within
from actors.collector.exposition import (
    SourceDownError,
    clock_shift_s,
    decode,
    parse,
    redacted,
    traffic_within,
)
from actors.collector.measured import Health, HealthStatus, Measured, unmeasured
from actors.collector.pages import Pages
from actors.collector.tracker import Tracker
from actors.store import Store, WriteBehind
from headway.planning import Role

STORE_EVERY_S = 5.0
WRITTEN_S = 0.5
"""Seconds that an answer waits until its interval is stored; a store that is away holds nothing up."""
REACH_FURTHER_S = 1.0
"""The gateway is asked for more than the interval, whose ends it sees on its own clock."""
STATE = "collector/state"
ADDRESS = "collector/address"
"""The process that STATE is about."""

_log = logging.getLogger(__name__)


class GatewaySource:
    """Reads one gateway and answers for intervals; `clock` gives Unix seconds."""

    def __init__(
        self,
        tracker: Tracker,
        pages: Pages,
        store: Store,
        *,
        clock: Callable[[], float],
        single_requests: bool = False,
        classes: Sequence[str] = (),
    ) -> None:
        self._tracker = tracker
        self._pages = pages
        self._store, self._writes = store, WriteBehind(store)
        self._clock = clock
        self._single_requests, self._classes = single_requests, classes
        self._no_traffic = ""
        self._reading = asyncio.Lock()
        self._process = ""
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
        await self._writes.written(WRITTEN_S)
        if not self._single_requests or isnan(measured.requests):
            return measured
        return await self._with_requests(measured)

    async def probe(self) -> Health:
        """Read once, and see whether this model's series are there."""
        health = await self.read()
        if health.status is HealthStatus.OK and not self._tracker.alive():
            detail = f"{self._pages.place}: {self._tracker.absent()}"
            return Health(status=HealthStatus.STARTING, detail=detail)
        return health

    async def read(self) -> Health:
        """One read into the tracker. The lock keeps reads in the order of their times."""
        async with self._reading:
            try:
                process, text = await self._pages.metrics()
                samples = parse(text, self._tracker.names)
            except SourceDownError as error:
                self._failures += 1
                return Health(status=HealthStatus.DOWN, detail=f"the gateway at {self._pages.place}: {error}")
            self._reads += 1
            if self._process and process != self._process:
                _log.info("metrics moved from %s to %s", redacted(self._process), redacted(process))
                self._tracker.replaced()
            self._process = process
            self._tracker.add(samples, self._clock())
            self._keep()
            return Health(status=HealthStatus.OK)

    async def engines(self) -> Mapping[Role, int]:
        """None: a gateway's page does not count replicas."""
        return {}

    def status(self) -> dict[str, object]:
        """Place, reads, failures, time of the last read; why the last interval has no traffic."""
        return {
            "url": self._pages.place,
            "reads": self._reads,
            "failures": self._failures,
            "last_read_at": self._tracker.newest_s,
            "no_traffic": self._no_traffic,
        }

    async def close(self) -> None:
        """Close the connections."""
        await self._writes.written(WRITTEN_S)
        await self._pages.close()

    async def _with_requests(self, measured: Measured) -> Measured:
        """With the requests of the interval one by one, if the gateway has them all."""
        asked_s, start_s, end_s = self._clock(), measured.start_s, measured.end_s
        try:
            requests = decode(await self._pages.requests(asked_s - start_s + REACH_FURTHER_S))
        except (SourceDownError, ValueError) as error:
            self._no_traffic = str(error)
            return measured
        shift_s = clock_shift_s(requests, asked_s, self._clock())
        traffic = traffic_within(requests, shift_s, start_s, end_s)
        if traffic is None:
            self._no_traffic = "the gateway has not kept all of its requests"
            return measured
        self._no_traffic = ""
        classes = classes_within(requests, shift_s, (start_s, end_s), self._classes)
        return replace(measured, traffic=traffic, counted=None, classes=classes)

    def _keep(self, *, force: bool = False) -> None:
        if force or self._clock() - self._stored_s >= STORE_EVERY_S:
            self._writes.put({STATE: self._tracker.state(), ADDRESS: self._process.encode()})
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
        self._process = address.decode()
