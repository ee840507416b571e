"""The embedded source: reads metrics of a gateway, or of all of ours (`pages`), without a Prometheus.

    in the background   a read every `scrape_interval_s`, so that the load of pools is a mean, outages show
    at `collect`        one more read, so that the interval ends exactly now
    several processes   one exposition, labelled `instance`: each is followed by itself
    another process     begins with its counters at 0; what one that is gone had counted stays counted

    what happens                                        health
    refused, too late, status not 200, of all           `down`
    not Prometheus' text, over 16 MiB                   `down`
    no series of this model yet                         `starting`
    one of several does not answer as an interval ends  `partial`, requests NaN: a part is no demand

What a process that dies had counted since it was last read is in no interval.

Our own gateways also list the interval's requests one by one. Where one does not (an older one, no answer,
not all of them kept), or one that counted in the interval is gone with its list, the interval has no
`traffic`, and is as good as without.

After every interval, and every few reads, the tracker's state goes to the store, beside the event loop.
"""

import asyncio
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import inf, isnan

from actors.collector.by_class import classes_within
from actors.collector.exposition import (
    INSTANCE,
    RequestList,
    SeriesId,
    SourceDownError,
    clock_shift_s,
    decode,
    merged,
    parse,
    shifted,
    traffic_within,
)
from actors.collector.measured import Health, HealthStatus, Measured, unmeasured
from actors.collector.pages import Pages
from actors.collector.presets import Quantity
from actors.collector.tracker import FORGOTTEN_S, Tracker
from actors.store import Store, WriteBehind
from headway.planning import Role
from headway.words import plural

STORE_EVERY_S = 5.0
WRITTEN_S = 0.5
"""Seconds that an answer waits until its interval is stored; a store that is away holds nothing up."""
REACH_FURTHER_S = 1.0
"""The gateway is asked for more than the interval, whose ends it sees on its own clock."""
STATE = "collector/state"
PROCESSES = "collector/processes"
"""The processes that STATE is about, with the times of their last reads."""

_log = logging.getLogger(__name__)


class GatewaySource:
    """Reads gateways and answers for intervals; `clock` gives Unix seconds."""

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
        self._read_s: dict[str, float] = {}
        self._named: dict[tuple[str, SeriesId], SeriesId] = {}
        self._unread: Sequence[str] = ()
        self._stored_s = float("-inf")
        self._reads = 0
        self._failures = 0
        self._restore()

    async def collect(self, start_s: float, end_s: float) -> Measured:
        """Read once more, then measure, then ask for the requests of what was measured."""
        health = await self.read()
        if health.status is not HealthStatus.OK:
            return unmeasured(start_s, end_s, health.status, health.detail)
        doubts = {Quantity.REQUESTS: f"not read: {self._missed()}"} if self._unread else {}
        measured = self._tracker.measure(start_s, end_s, doubts)
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
                answers = await self._pages.metrics()
                samples = self._samples(answers.texts)
            except SourceDownError as error:
                self._failures += 1
                return Health(status=HealthStatus.DOWN, detail=f"the gateway at {self._pages.place}: {error}")
            self._reads += 1
            at_s, self._unread = self._clock(), answers.faults
            self._tracker.add(samples, at_s, answers.texts.keys() - self._read_s.keys())
            known = {
                process: read_s for process, read_s in self._read_s.items() if read_s > at_s - FORGOTTEN_S
            }
            self._read_s = known | dict.fromkeys(answers.texts, at_s)
            self._keep()
            return Health(status=HealthStatus.OK)

    async def engines(self) -> Mapping[Role, int]:
        """None: a gateway's page does not count replicas."""
        return {}

    def status(self) -> dict[str, object]:
        """Place, reads, failures, time of the last read; who was not read then; why the last interval has no
        traffic.
        """
        return {
            "url": self._pages.place,
            "reads": self._reads,
            "failures": self._failures,
            "last_read_at": self._tracker.newest_s,
            "unread": self._missed() if self._unread else "",
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
            answers = await self._pages.requests(asked_s - start_s + REACH_FURTHER_S)
            lists = [self._list(text, asked_s) for text in answers.texts.values()]
        except (SourceDownError, ValueError) as error:
            self._no_traffic = str(error)
            return measured
        requests = merged(lists, self._clock())
        traffic = traffic_within(requests, 0.0, start_s, end_s)
        if traffic is None:
            self._no_traffic = "the gateway has not kept all of its requests"
            return measured
        counted = {process for process, read_s in self._read_s.items() if read_s > start_s}
        if counted - answers.texts.keys():
            self._no_traffic = "a gateway that counted in the interval is gone, and its list with it"
            return measured
        self._no_traffic = ""
        classes = classes_within(requests, 0.0, (start_s, end_s), self._classes)
        return replace(measured, traffic=traffic, counted=None, classes=classes)

    def _list(self, text: str, asked_s: float) -> RequestList:
        """A process' list on our clock. One that was never full lacks nothing, however young it is."""
        said = decode(text)
        mine = shifted(said, clock_shift_s(said, asked_s, self._clock()))
        return mine._replace(whole_since_s=-inf) if self._pages.by_process and said.whole else mine

    def _samples(self, texts: Mapping[str, str]) -> dict[SeriesId, float]:
        """The samples of all processes, labelled `instance` but for what all of them show alike."""
        names, shared = self._tracker.names, self._tracker.shared
        self._named = {key: named for key, named in self._named.items() if key[0] in texts}
        return {
            series if series.name in shared else self._of(process, series): value
            for process, text in texts.items()
            for series, value in parse(text, names).items()
        }

    def _of(self, process: str, series: SeriesId) -> SeriesId:
        key = (process, series)
        if key not in self._named:
            labels = {**dict(series.labels), INSTANCE: process}
            self._named[key] = SeriesId(series.name, tuple(sorted(labels.items())))
        return self._named[key]

    def _missed(self) -> str:
        return f"{plural(len(self._unread), 'gateway')} of {self._pages.place}: {self._unread[0]}"

    def _keep(self, *, force: bool = False) -> None:
        if force or self._clock() - self._stored_s >= STORE_EVERY_S:
            self._writes.put({STATE: self._tracker.state(), PROCESSES: json.dumps(self._read_s).encode()})
            self._stored_s = self._clock()

    def _restore(self) -> None:
        """Take up what a process before this one stored; what cannot be read is as if it were not there."""
        state, processes = self._store.get(STATE), self._store.get(PROCESSES)
        if state is None or processes is None:
            return
        try:
            read_s = {str(process): float(at_s) for process, at_s in json.loads(processes).items()}
            self._tracker.restore(state)
        except (AttributeError, TypeError, ValueError) as error:
            _log.warning("starting anew: %s", error)
            return
        self._read_s = read_s
