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
    one or some are unread when an interval ends     `partial`, requests NaN; those of a pool that has as many
                                                     engines as were ordered are gone, not missed

One that hangs holds up no other: after its first failure a read waits LATE_S for it at most, and takes its
answer when it comes.

Addresses are one process where it began at one moment and has been seen to have spent the same seconds on
the same prompts, until one of them has spent less than another had at the read before. Those that began at
one moment, and have shown neither, are named: under load two reads of one process are never the same. A
worker of a LeaderWorkerSet is no engine until it answers: mostly it has no metrics. `discovery` finds them.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf

from yarl import URL

from actors.collector.discovery import WORKER, Discovery, Labels
from actors.collector.exposition import (
    INSTANCE,
    ROLE,
    LineReader,
    Samples,
    SeriesId,
    SourceDownError,
    parse,
    redacted,
)
from actors.collector.interval import Health, HealthStatus, Measured, noted
from actors.collector.inventory import Inventory, inventory, shown_of, values_of
from actors.collector.pages import RefusedError, TextReader
from actors.collector.scrape import Naming, Scrape
from actors.collector.series import ModelSeries, engine_of
from actors.connectors.kube_api import mapping
from headway.engine.nearest import Told
from headway.planning import Role
from headway.words import first_few, plural

BEGAN = SeriesId("process_start_time_seconds", ())

AT_ONCE = 64
LATE_S = 1.0
"""How long a read waits for engines that failed before."""
SILENT_S = 300.0
SHOWN = 3


@dataclass(slots=True, kw_only=True)
class _Engine:
    """One engine: its last page, when its process began, when it was read, and why it was not read since."""

    labels: Labels
    page: Samples = field(default_factory=dict)
    samples: Samples = field(default_factory=dict)
    signs: Sequence[SeriesId] = ()
    began_s: float | None = None
    spent: Sequence[float] = ()
    before: Sequence[float] = ()  # at the read before, LATE_S ago or more
    read_s: float | None = None
    fault: str = ""
    refused: bool = False

    @property
    def idle_worker(self) -> bool:
        """True of a pod beside its group's leader that has never answered."""
        return self.read_s is None and self.labels.get(WORKER, "0") != "0"

    def may_be(self, other: "_Engine") -> bool:
        """True where nothing of the last two reads of both shows that they are two processes."""
        begun = self.began_s and self.began_s == other.began_s and any(self.spent) and any(other.spent)
        pairs = (*zip(self.before, other.spent, strict=False), *zip(other.before, self.spent, strict=False))
        return bool(begun) and all(earlier <= later for earlier, later in pairs)

    def stands(self, at_s: float, stale_s: float) -> bool:
        """True while it is not read, and what was read of it last still stands for it."""
        known_s = stale_s if self.refused else SILENT_S
        return bool(self.fault) and self.read_s is not None and at_s - self.read_s <= known_s


class EngineFleet:
    """All engines that are discovered; `clock` gives Unix seconds, `ordered` the replicas there should be."""

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
        ordered: Callable[[], Mapping[Role, int]] = dict,
    ) -> None:
        self._ordered = ordered
        self._series, self._discovery, self._http = series, discovery, http
        self._lines, self._naming = LineReader({**series.names, BEGAN.name: ()}), Naming()
        self._spent = [getattr(series.preset, name).parts[0] for name in ("duration", "ttft", "isl")]
        self._stale_s, self._clock = stale_s, clock
        self._engines: dict[str, _Engine] = {}
        self._same: dict[str, str] = {}
        """Address → an earlier one that shows the same process."""
        self._processes: dict[str, _Engine] = {}
        self._there: Mapping[Role, int] = {}
        self._places, self._late_places = asyncio.Semaphore(AT_ONCE), asyncio.Semaphore(AT_ONCE)
        self._late: dict[str, asyncio.Task[None]] = {}
        self._failures = 0

    @property
    def place(self) -> str:
        """How many there are."""
        return plural(len(self._processes), "engine")

    async def read(self) -> Scrape | Health:
        """One read of all."""
        listed = await self._discovery.engines()
        kept = {at: each for at, each in self._engines.items() if listed.get(at) == each.labels}
        self._naming.keep(kept)
        self._engines = {at: kept.get(at) or _Engine(labels=labels) for at, labels in listed.items()}
        await self._read_all()
        self._tell_apart()
        if all(each.fault for each in self._processes.values()):
            return self._none_answers()
        standing = {address: each for address, each in self._processes.items() if self._stands(each)}
        return Scrape(
            samples={address: each.samples for address, each in self._processes.items() if not each.fault},
            unread={series: value for each in standing.values() for series, value in each.samples.items()},
            missed=_listed({address: each.fault for address, each in standing.items()}),
        )

    def _tell_apart(self) -> None:
        """Find the processes; addresses of one stay so while nothing shows that they are several."""
        first: dict[object, str] = {}
        self._processes, before, self._same = {}, self._same, {}
        for address, each in self._engines.items():
            name, other = address, self._engines.get(before.get(address, ""))
            if other and (each.may_be(other) or each.fault or other.fault):
                name = before[address]
            shows = each.began_s and any(each.spent) and not each.fault
            if shows and (known := first.setdefault((each.began_s, *each.spent), address)) != address:
                name = self._same.get(known, known)
            if (name := self._same.get(name, name)) != address:
                self._same[address] = name
            if not each.idle_worker and (name not in self._processes or self._processes[name].fault):
                self._processes[name] = each
        for name, each in self._processes.items():
            each.samples = self._naming.labelled(name, each.page, {**each.labels, INSTANCE: name})
            each.signs = [series for series in each.samples if self._series.is_alive(series)]
        # What a replica lacks of its engines is missed as a whole one would be.
        self._there = self._replicas(lambda _: True) - self._replicas(lambda each: bool(each.fault))

    async def with_requests(self, measured: Measured, read_s: Mapping[str, float]) -> Measured:
        """Without single requests, which engines do not list; what was counted once is named."""
        engines = plural(len({*self._same.values()}), "engine")
        again = f"{engines} listed several times, counted once: {first_few([*map(redacted, self._same)])}"
        doubled = [f"{redacted(one)} and {redacted(other)}" for one, other in self._may_be_same()]
        unsure = f"{first_few(doubled)} began at one moment: one process would be counted several times"
        return noted(noted(measured, again if self._same else ""), unsure if doubled else "")

    def _may_be_same(self) -> list[tuple[str, str]]:
        """Processes beside the first of those that they may be."""
        first: dict[float | None, str] = {}
        named = [(first.setdefault(each.began_s, name), name) for name, each in self._processes.items()]
        known = self._processes
        return [(one, name) for one, name in named if one != name and known[one].may_be(known[name])]

    async def inventory(self) -> Inventory:
        """What the pages of engines that answer show; SourceDownError where none does."""
        addresses = [address for address, each in self._processes.items() if not each.fault][:AT_ONCE]
        texts = await asyncio.gather(*map(self._http.get, addresses))
        samples = [sample for text in texts for sample in parse(text)]
        alive = [dict(each.labels) for each in samples if each.name == self._series.alive.name]
        alive += [dict(each.labels) for each in self._engines.values()]
        told = Told(await self._models(addresses[:SHOWN]), values_of(self._series, alive))
        return inventory(self._series, shown_of(self._series, samples))._replace(told=told)

    async def _models(self, addresses: Sequence[str]) -> tuple[str, ...]:
        """What the first that lists its models calls them, the path of the weights first."""
        for address in addresses:
            with suppress(SourceDownError, ValueError):
                listed = json.loads(
                    await self._http.get(str(URL(address).with_path("/v1/models").with_query(None)))
                )
                items = mapping(listed).get("data")
                every = [mapping(each) for each in items] if isinstance(items, list) else []
                if found := [str(each[key]) for key in ("root", "id") for each in every if each.get(key)]:
                    return tuple(found)
        return ()

    def engines(self) -> Mapping[Role, int]:
        """Replicas of the model as of the last read; those that are unread count as they did."""
        return self._replicas(lambda each: not each.fault or self._stands(each))

    def _replicas(self, among: Callable[[_Engine], bool]) -> Counter[Role]:
        """The replicas of the model that these processes are, by role."""
        signs = [sign for each in self._processes.values() if among(each) for sign in each.signs]
        replicas = self._series.replicas(signs)
        found = {(dict(labels)[ROLE], replicas[engine_of(labels) or ""]) for _, labels in signs}
        return Counter(Role(role) for role, _ in found)

    def status(self) -> dict[str, object]:
        """The engines, and which of them were not read."""
        faults = {address: each.fault for address, each in self._processes.items() if each.fault}
        answer, replicas = len(self._processes) - len(faults), sum(self.engines().values())
        fewer = f", {plural(replicas, 'replica')} of {self._series.model}" if 0 < replicas < answer else ""
        told = {at: f"the same process as {redacted(name)}" for at, name in self._same.items()}
        told |= {at: "no metrics" for at, each in self._engines.items() if each.idle_worker}
        return {
            "unread": _listed(faults),
            "url": f"{answer} of {len(self._processes)} engines answer{fewer}",
            "failures": self._failures,
            "engines": {
                redacted(at): told.get(at) or each.fault or each.labels[ROLE]
                for at, each in self._engines.items()
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
        known = {address for address, each in self._engines.items() if not each.idle_worker}
        if late := [task for address, task in self._late.items() if address in known]:
            await asyncio.wait(late, timeout=LATE_S)

    async def _read_one(self, address: str, engine: _Engine, places: asyncio.Semaphore) -> None:
        try:
            async with places:
                page = self._lines.read(await self._http.get(address))
        except SourceDownError as error:
            self._failures += 1
            engine.fault, engine.refused = str(error), isinstance(error, RefusedError)
        else:
            engine.began_s, engine.page = page.pop(BEGAN, None), page
            if self._clock() - (engine.read_s or -inf) >= LATE_S:
                engine.before = engine.spent
            engine.spent = [sum(page[one] for one in page if one.name == name) for name in self._spent]
            engine.read_s, engine.fault = self._clock(), ""

    def _none_answers(self) -> Health:
        why = "; ".join(self._discovery.faults.values())
        if not self._processes:
            detail = f"no engine is found{f': {why}' * bool(why)}"
            return Health(status=HealthStatus.STARTING, detail=detail)
        faults = _listed({address: each.fault for address, each in self._processes.items()})
        detail = f"none of {len(self._processes)} engines answers: {faults}"
        return Health(status=HealthStatus.DOWN, detail=detail)

    def _stands(self, engine: _Engine) -> bool:
        """True while an engine that is not read is missed."""
        role = Role(engine.labels[ROLE])
        enough = 0 < self._ordered().get(role, 0) <= self._there.get(role, 0)
        return not enough and engine.stands(self._clock(), self._stale_s)


def _listed(faults: Mapping[str, str]) -> str:
    return first_few([f"{redacted(address)}: {fault}" for address, fault in faults.items()], "; ")
