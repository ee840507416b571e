"""The source that reads metrics itself, without a Prometheus: of gateways or of engines (`Fleet`).

    in the background   a read every `scrape_interval_s`, so that the load of pools is a mean, outages show
    at `collect`        one more read, so that the interval ends exactly now

Each process is followed by itself: its samples carry the label `instance`, and resets, returns and first
sights are judged by the law of `increase`. Where one that was there is not read as an interval ends, the
interval is `partial` and its requests are NaN: a part is no demand.

The tracker's state goes to the store after every interval, and for a small fleet every few reads, beside the
event loop: a collector that is started again goes on from there.

Gateways as a fleet (`GatewayFleet`): their metrics, and the requests that ours list one by one.

    what happens                                        health
    refused, too late, status not 200, of all           `down`
    not Prometheus' text, over `max_answer_mib`         `down`
    no series of this model yet                         `starting`
    one of several does not answer as an interval ends  `partial`, requests NaN

What a process that dies had counted since it was last read is in no interval. Where a gateway does not list
its requests (an older one, no answer, not all of them kept), or one that counted in the interval is gone with
its list, the interval has no `traffic`, and is as good as without. Engines are another fleet (`engines`).
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, isnan
from typing import Any, Protocol

from actors.collector.exposition import (
    INSTANCE,
    LineReader,
    Samples,
    SeriesId,
    SourceDownError,
    parse,
    series_id,
)
from actors.collector.interval import Health, HealthStatus, Measured, Quantity, unmeasured
from actors.collector.inventory import Inventory, inventory, shown_of
from actors.collector.pages import Pages
from actors.collector.request_list import (
    RequestList,
    classes_within,
    clock_shift_s,
    decode,
    merged,
    shifted,
    traffic_within,
)
from actors.collector.series import ModelSeries
from actors.collector.tracker import FORGOTTEN_S, Tracker
from actors.store import Store, WriteBehind
from actors.stored import Kind, read, sealed
from headway.planning import Role
from headway.words import plural

WRITTEN_S = 0.5
"""Seconds that an answer waits until its interval is stored; a store that is away holds nothing up."""
STATE = "collector/state"
KIND = Kind("collected", dict[str, Any])
REACH_FURTHER_S = 1.0
"""The gateway is asked for more than the interval, whose ends it sees on its own clock."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scrape:
    """One read of a fleet: the samples by process, and the last ones of engines that stand though unread.

    `missed` is a line on those that were there and were not read.
    """

    samples: Mapping[str, Samples]
    unread: Samples = field(default_factory=dict)
    missed: str = ""


class Fleet(Protocol):
    """The processes that are read."""

    begins_at_zero: bool
    """True if a process that was not known before has just begun; else it may have a past."""
    store_every_s: float
    """Between two states that are stored within an interval."""

    @property
    def place(self) -> str:
        """Where it is read, as a person would call it."""

    async def read(self) -> Scrape | Health:
        """All of them, or why there is nothing to read."""

    async def with_requests(self, measured: Measured, read_s: Mapping[str, float]) -> Measured:
        """The interval with its requests one by one, where the fleet lists them all.

        `read_s` are the times of the processes' last reads.
        """

    async def inventory(self) -> Inventory:
        """What the pages show of the preset, read anew. SourceDownError."""

    def engines(self) -> Mapping[Role, int]:
        """Engines of the model by role, as of the last read; none where they do not show."""

    def status(self) -> dict[str, object]:
        """What was read, and what not, for people."""

    async def close(self) -> None:
        """Close the connections."""


class ScrapeSource:
    """Reads a fleet and answers for intervals; `clock` gives Unix seconds."""

    def __init__(self, tracker: Tracker, fleet: Fleet, store: Store, *, clock: Callable[[], float]) -> None:
        self._tracker, self._fleet = tracker, fleet
        self._store, self._writes = store, WriteBehind(store)
        self._clock = clock
        self._reading = asyncio.Lock()
        self._read_s: dict[str, float] = {}
        self._missed = ""
        self._stored_s = -inf
        self._reads = 0
        self._restore()

    async def collect(self, start_s: float, end_s: float, since_s: float | None = None) -> Measured:
        """Read once more, then measure, then ask for the requests of what was measured."""
        start_s = start_s if since_s is None else since_s
        health = await self.read()
        if health.status is not HealthStatus.OK:
            return unmeasured(start_s, end_s, health.status, health.detail)
        doubts = {Quantity.REQUESTS: f"not read: {self._missed}"} if self._missed else {}
        measured = self._tracker.measure(start_s, end_s, doubts)
        self._keep()
        await self._writes.written(WRITTEN_S)
        return await self._fleet.with_requests(measured, self._read_s)

    async def probe(self) -> Health:
        """Read once, and see whether this model's series are there."""
        health = await self.read()
        if health.status is HealthStatus.OK and not self._tracker.alive():
            try:
                instead = (await self._fleet.inventory()).instead
            except SourceDownError as error:
                instead = str(error)
            return Health(status=HealthStatus.STARTING, detail=f"{self._fleet.place}: {instead}")
        return health

    async def inventory(self) -> Inventory:
        """What the fleet's pages show of the preset. SourceDownError."""
        return await self._fleet.inventory()

    async def read(self) -> Health:
        """One read into the tracker. The lock keeps reads in the order of their times."""
        async with self._reading:
            scrape = await self._fleet.read()
            if isinstance(scrape, Health):
                return scrape
            self._reads += 1
            at_s, self._missed = self._clock(), scrape.missed
            samples = {series: value for each in scrape.samples.values() for series, value in each.items()}
            begun = scrape.samples.keys() - self._read_s.keys() if self._fleet.begins_at_zero else ()
            self._tracker.add(samples, at_s, begun=begun, unread=scrape.unread)
            known = {name: read_s for name, read_s in self._read_s.items() if read_s > at_s - FORGOTTEN_S}
            self._read_s = known | dict.fromkeys(scrape.samples, at_s)
            if at_s - self._stored_s >= self._fleet.store_every_s:
                self._keep()
            return Health(status=HealthStatus.OK)

    async def engines(self) -> Mapping[Role, int]:
        """Engines of the model as of the last read, by role; none where the fleet does not show them."""
        return self._fleet.engines()

    def status(self) -> dict[str, object]:
        """Reads, the time of the last one, and what the fleet adds."""
        return {
            "url": self._fleet.place,
            "reads": self._reads,
            "last_read_at": self._tracker.newest_s,
            **self._fleet.status(),
        }

    async def close(self) -> None:
        """Store what is known, and close the connections."""
        await self._writes.written(WRITTEN_S)
        await self._fleet.close()

    def _keep(self) -> None:
        state = {"tracker": self._tracker.state(), "read_s": self._read_s}
        self._writes.put({STATE: sealed(KIND, STATE, state)})
        self._stored_s = self._clock()

    def _restore(self) -> None:
        """Take up what a process before this one stored."""

        def use(state: Mapping[str, Any]) -> dict[str, float]:
            read_s = {str(process): float(at_s) for process, at_s in state["read_s"].items()}
            self._tracker.restore(state["tracker"])
            return read_s

        self._read_s = read(self._store, KIND, STATE, use) or {}


class Naming:
    """Series of pages → the same with the labels of the process that showed them, each made once."""

    def __init__(self) -> None:
        self._named: dict[str, dict[SeriesId, SeriesId]] = {}

    def labelled(self, process: str, samples: Samples, labels: Mapping[str, str]) -> dict[SeriesId, float]:
        """The samples of a process with these labels; its own of such names are `exported_…` then."""
        named = self._named.setdefault(process, {})
        for series in samples.keys() - named.keys():
            own = {f"exported_{name}" if name in labels else name: value for name, value in series.labels}
            named[series] = series_id(series.name, own | dict(labels))
        return {named[series]: value for series, value in samples.items()}

    def keep(self, processes: Mapping[str, object]) -> None:
        """Forget all others."""
        self._named = {process: named for process, named in self._named.items() if process in processes}


class GatewayFleet:
    """All gateways behind `pages`; `single_requests`: they are ours and list their requests."""

    store_every_s = 5.0

    def __init__(
        self,
        series: ModelSeries,
        pages: Pages,
        *,
        clock: Callable[[], float],
        single_requests: bool = False,
        classes: Sequence[str] = (),
    ) -> None:
        self._series, self._pages = series, pages
        self._lines, self._naming = LineReader(series.names), Naming()
        self._clock = clock
        self._single_requests, self._classes = single_requests, classes
        self._no_traffic = self._missed = ""
        self._failures = 0
        self.begins_at_zero = True

    @property
    def place(self) -> str:
        """The address, or Serve's names."""
        return self._pages.place

    async def read(self) -> Scrape | Health:
        """The pages of all of them."""
        try:
            answers = await self._pages.metrics()
            samples = {name: self._labelled(name, text) for name, text in answers.texts.items()}
        except SourceDownError as error:
            self._failures += 1
            return Health(status=HealthStatus.DOWN, detail=f"the gateway at {self.place}: {error}")
        self._naming.keep(answers.texts)
        faults = answers.faults
        self._missed = f"{plural(len(faults), 'gateway')} of {self.place}: {faults[0]}" if faults else ""
        return Scrape(samples=samples, missed=self._missed)

    async def with_requests(self, measured: Measured, read_s: Mapping[str, float]) -> Measured:
        """With the requests of the interval one by one, if the gateways have them all."""
        if not self._single_requests or isnan(measured.requests):
            return measured
        asked_s, start_s, end_s = self._clock(), measured.start_s, measured.end_s
        try:
            answers = await self._pages.requests(asked_s - start_s + REACH_FURTHER_S)
            lists = [self._list(text, asked_s) for text in answers.texts.values()]
        except (SourceDownError, ValueError) as error:
            self._no_traffic = str(error)
            return measured
        requests = merged(lists, self._clock())
        traffic = traffic_within(requests, start_s, end_s)
        if traffic is None:
            self._no_traffic = "the gateway has not kept all of its requests"
            return measured
        counted = {process for process, at_s in read_s.items() if at_s > start_s}
        if counted - answers.texts.keys():
            self._no_traffic = "a gateway that counted in the interval is gone, and its list with it"
            return measured
        self._no_traffic = ""
        classes = classes_within(requests, (start_s, end_s), self._classes)
        return replace(measured, traffic=traffic, counted=None, classes=classes)

    async def inventory(self) -> Inventory:
        """What the gateways' pages show."""
        texts = (await self._pages.metrics()).texts.values()
        samples = [sample for text in texts for sample in parse(text)]
        return inventory(self._series, shown_of(self._series, samples))

    def engines(self) -> Mapping[Role, int]:
        """None: a gateway's page does not count replicas."""
        return {}

    def status(self) -> dict[str, object]:
        """Failures, the gateways that were not read last, and why the last interval has no traffic."""
        return {"failures": self._failures, "unread": self._missed, "no_traffic": self._no_traffic}

    async def close(self) -> None:
        """Close the connections."""
        await self._pages.close()

    def _labelled(self, process: str, text: str) -> Samples:
        """The samples of a page, labelled `instance` but for what all gateways show alike."""
        samples = self._lines.read(text)
        shared = {series: value for series, value in samples.items() if series.name in self._series.shared}
        own = {series: value for series, value in samples.items() if series not in shared}
        return {**shared, **self._naming.labelled(process, own, {INSTANCE: process})}

    def _list(self, text: str, asked_s: float) -> RequestList:
        """A process' list on our clock. One that was never full lacks nothing, however young it is."""
        theirs = decode(text)
        ours = shifted(theirs, clock_shift_s(theirs, asked_s, self._clock()))
        return ours._replace(whole_since_s=-inf) if self._pages.by_process and theirs.whole else ours
