"""The source that reads the engines' own /metrics: what a Prometheus would gather, without one.

Every engine is read in parallel, in bounded time and size. Their samples are one exposition, in which each
carries the labels `instance` (the address) and `role`, and go through the tracker that follows every series
by itself: resets, returns and first sights are judged by `counters`, engine by engine.

    an engine                                        is taken as
    answers                                          read
    has never answered                               starting: it has served nothing yet
    refuses connections, or is not listed any more   gone once it has done so for `stale_after_s`, or at once
    does not answer, or nonsense                     unread: as it was, for at most SILENT_S; then gone
    began anew, or is gone                           what it had in flight did come: it is not taken back
    is seen for the first time, with a past          followed from here on: the past is in no interval

    what happens                                     health
    none of the engines that were there answers      `down`
    no engine is found, or none has the model        `starting`
    one or some are unread when an interval ends     `partial`, requests NaN: a part is no demand

One that hangs holds up no other: after its first failure a read waits LATE_S for it at most, and takes its
answer when it comes. Reads in the background are every `scrape_interval_s`, but never take more than a fifth
of a core. The tracker's state is stored at each interval's end: counters go on from there.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import islice

from actors.collector.discovery import Discovery
from actors.collector.exposition import (
    INSTANCE,
    ROLE,
    SeriesId,
    SourceDownError,
    parse,
    redacted,
)
from actors.collector.http_text import RefusedError, TextReader
from actors.collector.measured import Health, HealthStatus, Measured, unmeasured
from actors.collector.presets import Quantity, former
from actors.collector.tracker import Tracker
from actors.store import Store, WriteBehind
from headway.planning import Role
from headway.words import plural

AT_ONCE = 64
LATE_S = 1.0
"""How long a read waits for engines that failed before."""
SILENT_S = 300.0
MOST_HEADS = 100_000
SHOWN = 3
WRITTEN_S = 0.5
STATE = "collector/engines"

_log = logging.getLogger(__name__)


class LineReader:
    """Prometheus' text → samples. A line is understood once: what stands before its value says the series."""

    def __init__(self, names: frozenset[str]) -> None:
        spelt = [(each, name) for name in names for each in (former(name), name) if each is not None]
        self._spelt = {spelling: name for each, name in spelt for spelling in (each, each.replace(":", "_"))}
        self._heads: dict[str, SeriesId | None] = {}

    def read(self, text: str) -> dict[SeriesId, float]:
        """The samples with one of the names. `SourceDownError` for what is not the text format."""
        if len(self._heads) > MOST_HEADS:
            self._heads.clear()
        samples: dict[SeriesId, float] = {}
        for line in text.split("\n"):
            if not line or line[0] == "#":
                continue
            head, _, value = line.rpartition(" ")
            if head not in self._heads:
                found = self._understood(line)
                if found is not None and found[1] != _number(value):
                    # A time stands behind the value: such a line is another one each time.
                    samples[found[0]] = found[1]
                    continue
                self._heads[head] = None if found is None else found[0]
            if (series := self._heads[head]) is not None:
                samples[series] = _number(value)
        return samples

    def _understood(self, line: str) -> tuple[SeriesId, float] | None:
        for series, value in parse(line, frozenset(self._spelt)).items():
            return SeriesId(self._spelt[series.name], series.labels), value
        return None


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise SourceDownError(f"the answer is not Prometheus' text format: {text[:100]!r}") from None


@dataclass(slots=True, kw_only=True)
class _Engine:
    """One engine: its last samples and when they were read, and why it was not read since."""

    role: Role
    samples: dict[SeriesId, float] = field(default_factory=dict)
    read_s: float | None = None
    fault: str = ""
    refused: bool = False
    named: dict[SeriesId, SeriesId] = field(default_factory=dict)

    def take(self, address: str, samples: Mapping[SeriesId, float], at_s: float) -> None:
        """A good read."""
        self.samples = {self._name(series, address): value for series, value in samples.items()}
        self.read_s, self.fault = at_s, ""

    def unread(self, at_s: float, stale_s: float) -> bool:
        """True while what was read of it last still stands for it."""
        if self.read_s is None or not self.fault:
            return False
        return at_s - self.read_s <= (stale_s if self.refused else SILENT_S)

    def _name(self, series: SeriesId, address: str) -> SeriesId:
        if series not in self.named:
            labels = {**dict(series.labels), INSTANCE: address, ROLE: self.role.value}
            self.named[series] = SeriesId(series.name, tuple(sorted(labels.items())))
        return self.named[series]


class EnginesSource:
    """Reads all engines and answers for intervals; `clock` gives Unix seconds."""

    def __init__(
        self,
        tracker: Tracker,
        discovery: Discovery,
        store: Store,
        http: TextReader,
        *,
        stale_s: float,
        clock: Callable[[], float],
    ) -> None:
        self._tracker, self._discovery = tracker, discovery
        self._store, self._writes = store, WriteBehind(store)
        self._http, self._lines = http, LineReader(tracker.names)
        self._stale_s, self._clock = stale_s, clock
        self._engines: dict[str, _Engine] = {}
        self._places, self._late_places = asyncio.Semaphore(AT_ONCE), asyncio.Semaphore(AT_ONCE)
        self._late: dict[str, asyncio.Task[None]] = {}
        self._reading = asyncio.Lock()
        self._reads = self._failures = 0
        self._restore()

    async def collect(self, start_s: float, end_s: float) -> Measured:
        """Read once more, then measure."""
        health = await self.read()
        if health.status is not HealthStatus.OK:
            return unmeasured(start_s, end_s, health.status, health.detail)
        unread = {address: each.fault for address, each in self._engines.items() if self._stands_in(each)}
        doubts = {Quantity.REQUESTS: f"not read: {_listed(unread)}"} if unread else {}
        measured = self._tracker.measure(start_s, end_s, doubts)
        self._writes.put({STATE: self._tracker.state()})
        await self._writes.written(WRITTEN_S)
        return measured

    async def probe(self) -> Health:
        """Read once, and see whether this model's series are there."""
        health = await self.read()
        if health.status is HealthStatus.OK and not self._tracker.alive():
            detail = f"{plural(len(self._engines), 'engine')}: {self._tracker.absent()}"
            return Health(status=HealthStatus.STARTING, detail=detail)
        return health

    async def read(self) -> Health:
        """One read of all. The lock keeps reads in the order of their times."""
        async with self._reading:
            listed = await self._discovery.engines()
            self._engines = {
                address: self._engines[address]
                if address in self._engines and self._engines[address].role is role
                else _Engine(role=role)
                for address, role in listed.items()
            }
            await self._read_all()
            self._reads += 1
            if all(each.fault for each in self._engines.values()):
                return self._none_answers()
            self._tracker.add(self._samples(), self._clock())
            return Health(status=HealthStatus.OK)

    async def engines(self) -> Mapping[Role, int]:
        """Engines of the model as of the last read: those that are unread count as they did."""
        there = [
            each.role
            for each in self._engines.values()
            if (not each.fault or self._stands_in(each)) and self._tracker.shows(each.samples)
        ]
        return {role: there.count(role) for role in set(there)}

    def status(self) -> dict[str, object]:
        """The engines, how many reads there were of all, and which failed."""
        faults = {address: each.fault for address, each in self._engines.items() if each.fault}
        return {
            "unread": _listed(faults),
            "url": f"{len(self._engines) - len(faults)} of {len(self._engines)} engines answer",
            "reads": self._reads,
            "failures": self._failures,
            "last_read_at": self._tracker.newest_s,
            "engines": {
                redacted(address): each.fault or each.role.value for address, each in self._engines.items()
            },
            "discovery": "; ".join(self._discovery.faults.values()),
        }

    async def close(self) -> None:
        """Close the connections."""
        for task in self._late.values():
            task.cancel()
        await asyncio.gather(*self._late.values(), return_exceptions=True)
        await self._writes.written(WRITTEN_S)
        await self._http.close()

    async def _read_all(self) -> None:
        """All that answered last time; of the others what comes within LATE_S, or has come since."""
        self._late = {address: task for address, task in self._late.items() if not task.done()}
        prompt = []
        for address, engine in self._engines.items():
            if not engine.fault:
                prompt.append(self._read_one(address, engine, self._places))
            elif address not in self._late:
                reading = self._read_one(address, engine, self._late_places)
                self._late[address] = asyncio.create_task(reading)
        await asyncio.gather(*prompt)
        if late := [task for address, task in self._late.items() if address in self._engines]:
            await asyncio.wait(late, timeout=LATE_S)

    async def _read_one(self, address: str, engine: _Engine, places: asyncio.Semaphore) -> None:
        try:
            async with places:
                samples = self._lines.read(await self._http.get(address))
        except SourceDownError as error:
            self._failures += 1
            engine.fault, engine.refused = str(error), isinstance(error, RefusedError)
        else:
            engine.take(address, samples, self._clock())

    def _samples(self) -> dict[SeriesId, float]:
        """Of all engines; of one that is unread only what it has in flight: its counters are away."""
        gauges = self._tracker.gauges
        return {
            series: value
            for each in self._engines.values()
            if not each.fault or self._stands_in(each)
            for series, value in each.samples.items()
            if not each.fault or series.name in gauges
        }

    def _stands_in(self, engine: _Engine) -> bool:
        return engine.unread(self._clock(), self._stale_s)

    def _none_answers(self) -> Health:
        said = "; ".join(self._discovery.faults.values())
        if not self._engines:
            return Health(
                status=HealthStatus.STARTING, detail=f"no engine is found{f': {said}' * bool(said)}"
            )
        faults = _listed({address: each.fault for address, each in self._engines.items()})
        detail = f"none of {len(self._engines)} engines answers: {faults}"
        return Health(status=HealthStatus.DOWN, detail=detail)

    def _restore(self) -> None:
        """Take up what a process before this one stored; what cannot be read is as if it were not there."""
        if (state := self._store.get(STATE)) is None:
            return
        try:
            self._tracker.restore(state)
        except ValueError as error:
            _log.warning("starting anew: %s", error)


def _listed(faults: Mapping[str, str]) -> str:
    """The first few, and how many more there are."""
    first = "; ".join(f"{redacted(address)}: {fault}" for address, fault in islice(faults.items(), SHOWN))
    more = len(faults) - SHOWN
    return f"{first}; and {more} more" if more > 0 else first
