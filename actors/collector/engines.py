"""Engines as a fleet that is read (`scrape`): what a Prometheus would gather, without one.

Every engine is read in parallel, in bounded time and size; its samples carry the labels `instance` (the
address) and `role`.

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
    one or some are unread when an interval ends     `partial`, requests NaN

One that hangs holds up no other: after its first failure a read waits LATE_S for it at most, and takes its
answer when it comes.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from math import inf

from actors.collector.discovery import Discovery
from actors.collector.exposition import INSTANCE, ROLE, LineReader, Samples, SourceDownError, redacted
from actors.collector.interval import Health, HealthStatus, Measured
from actors.collector.pages import RefusedError, TextReader
from actors.collector.scrape import Naming, Scrape
from actors.collector.series import ModelSeries
from headway.planning import Role
from headway.words import plural

AT_ONCE = 64
LATE_S = 1.0
"""How long a read waits for engines that failed before."""
SILENT_S = 300.0
SHOWN = 3


@dataclass(slots=True, kw_only=True)
class _Engine:
    """One engine: its last samples and when they were read, and why it was not read since."""

    role: Role
    samples: Samples = field(default_factory=dict)
    read_s: float | None = None
    fault: str = ""
    refused: bool = False

    def stands(self, at_s: float, stale_s: float) -> bool:
        """True while it is not read, and what was read of it last still stands for it."""
        if self.read_s is None or not self.fault:
            return False
        return at_s - self.read_s <= (stale_s if self.refused else SILENT_S)


class EngineFleet:
    """All engines that are discovered; `clock` gives Unix seconds."""

    begins_at_zero = False
    store_every_s = inf

    def __init__(
        self,
        series: ModelSeries,
        discovery: Discovery,
        http: TextReader,
        *,
        stale_s: float,
        clock: Callable[[], float],
    ) -> None:
        self._series, self._discovery, self._http = series, discovery, http
        self._lines, self._naming = LineReader(series.names), Naming()
        self._stale_s, self._clock = stale_s, clock
        self._engines: dict[str, _Engine] = {}
        self._places, self._late_places = asyncio.Semaphore(AT_ONCE), asyncio.Semaphore(AT_ONCE)
        self._late: dict[str, asyncio.Task[None]] = {}
        self._failures = 0

    @property
    def place(self) -> str:
        """How many there are."""
        return plural(len(self._engines), "engine")

    async def read(self) -> Scrape | Health:
        """One read of all."""
        listed = await self._discovery.engines()
        self._engines = {
            address: self._engines[address]
            if address in self._engines and self._engines[address].role is role
            else _Engine(role=role)
            for address, role in listed.items()
        }
        self._naming.keep(self._engines)
        await self._read_all()
        if all(each.fault for each in self._engines.values()):
            return self._none_answers()
        standing = {address: each for address, each in self._engines.items() if self._stands(each)}
        return Scrape(
            samples={address: each.samples for address, each in self._engines.items() if not each.fault},
            unread={series: value for each in standing.values() for series, value in each.samples.items()},
            missed=_listed({address: each.fault for address, each in standing.items()}),
        )

    async def with_requests(self, measured: Measured, read_s: Mapping[str, float]) -> Measured:
        """As it is: engines do not list requests."""
        return measured

    def engines(self) -> Mapping[Role, int]:
        """Engines of the model as of the last read; those that are unread count as they did."""
        there = [
            each.role
            for each in self._engines.values()
            if (not each.fault or self._stands(each)) and self._series.shows(each.samples)
        ]
        return {role: there.count(role) for role in set(there)}

    def status(self) -> dict[str, object]:
        """The engines, and which of them were not read."""
        faults = {address: each.fault for address, each in self._engines.items() if each.fault}
        return {
            "unread": _listed(faults),
            "url": f"{len(self._engines) - len(faults)} of {len(self._engines)} engines answer",
            "failures": self._failures,
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
            labels = {INSTANCE: address, ROLE: engine.role.value}
            engine.samples = self._naming.labelled(address, samples, labels)
            engine.read_s, engine.fault = self._clock(), ""

    def _none_answers(self) -> Health:
        why = "; ".join(self._discovery.faults.values())
        if not self._engines:
            detail = f"no engine is found{f': {why}' * bool(why)}"
            return Health(status=HealthStatus.STARTING, detail=detail)
        faults = _listed({address: each.fault for address, each in self._engines.items()})
        detail = f"none of {len(self._engines)} engines answers: {faults}"
        return Health(status=HealthStatus.DOWN, detail=detail)

    def _stands(self, engine: _Engine) -> bool:
        return engine.stands(self._clock(), self._stale_s)


def _listed(faults: Mapping[str, str]) -> str:
    """The first few, and how many more there are."""
    first = "; ".join(f"{redacted(address)}: {fault}" for address, fault in islice(faults.items(), SHOWN))
    more = len(faults) - SHOWN
    return f"{first}; and {more} more" if more > 0 else first
