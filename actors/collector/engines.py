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

They are found (`Discovery`) as given addresses, as every address of a name, or as pods by their labels.

    way           an engine is                                      looked up
    addresses     each address                                      never
    dns           each A or AAAA record                             again every REFRESH_S
    selector      each pod that runs and has an address             again every REFRESH_S, by the API server

A look-up that fails leaves the engines that were found before, and is reported: not to see a fleet is no
reason to believe that it is gone.

A pod counts while its phase is Running and it has an address, whether it is ready or not: one that loads its
model does not answer yet, and one that drains still serves. It needs the right to list pods
(`examples/kubernetes/attach.yaml`).
"""

import asyncio
import json
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from math import inf
from typing import TYPE_CHECKING, Any

from yarl import URL

from actors.collector.exposition import (
    INSTANCE,
    ROLE,
    LineReader,
    Samples,
    SourceDownError,
    metrics_url,
    parse,
    redacted,
)
from actors.collector.interval import Health, HealthStatus, Measured
from actors.collector.inventory import Inventory, inventory, shown_of, values_of
from actors.collector.pages import RefusedError, TextReader
from actors.collector.scrape import Naming, Scrape
from actors.collector.series import ModelSeries
from actors.connectors.kube_api import TOKEN, configuration, mapping, official_client
from actors.connectors.kube_object import namespace_of
from actors.connectors.protocol import Refused
from headway.config.live import EngineAddresses, KubernetesSettings
from headway.engine.nearest import Told
from headway.planning import Role
from headway.words import plural

if TYPE_CHECKING:
    from kubernetes.client import CoreV1Api

REFRESH_S = 5.0
RUNNING = "Running"

Find = Callable[[EngineAddresses, float], Awaitable[Sequence[str]]]
"""Addresses by one way, within so many seconds. DiscoveryError."""

AT_ONCE = 64
LATE_S = 1.0
"""How long a read waits for engines that failed before."""
SILENT_S = 300.0
SHOWN = 3

_log = logging.getLogger(__name__)


class DiscoveryError(Exception):
    """A name or a selector cannot be looked up now; the text says which and why."""


async def resolved(engines: EngineAddresses, timeout_s: float) -> Sequence[str]:
    """`host:port` for every address of the name."""
    host, _, port = (engines.dns or "").rpartition(":")
    look_up = asyncio.get_running_loop().getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
    try:
        async with asyncio.timeout(timeout_s):
            found = await look_up
    except (OSError, TimeoutError) as error:
        raise DiscoveryError(f"{engines.dns}: {error or 'no answer in time'}") from None
    hosts = sorted({str(place[4][0]) for place in found})
    return [f"[{each}]:{port}" if ":" in each else f"{each}:{port}" for each in hosts]


class Discovery:
    """The engines by address, with their roles."""

    def __init__(
        self,
        engines: Mapping[Role, EngineAddresses],
        pods: Find,
        *,
        timeout_s: float,
        clock: Callable[[], float],
        names: Find = resolved,
        path: str = "/metrics",
    ) -> None:
        self._engines, self._path = engines, path
        self._finders: Sequence[tuple[Callable[[EngineAddresses], Any], Find]] = (
            (lambda each: each.dns, names),
            (lambda each: each.selector, pods),
        )
        self._timeout_s, self._clock = timeout_s, clock
        self._looked_s = float("-inf")
        self._found: dict[tuple[Role, int], Sequence[str]] = {}
        self.faults: dict[tuple[Role, int], str] = {}

    async def engines(self) -> Mapping[str, Role]:
        """The address of each engine's metrics."""
        if not 0.0 <= self._clock() - self._looked_s < REFRESH_S:
            await self._look()
            self._looked_s = self._clock()
        given = [(role, each.addresses) for role, each in self._engines.items()]
        found = [(role, each) for (role, _), each in self._found.items()]
        return {self._url(address, role): role for role, each in (*given, *found) for address in each}

    def _url(self, address: str, role: Role) -> str:
        scheme = "https" if self._engines[role].https else "http"
        return metrics_url(address if "://" in address else f"{scheme}://{address}", self._path)

    async def _look(self) -> None:
        wanted = [
            (role, way, each, find)
            for role, each in self._engines.items()
            for way, (asked, find) in enumerate(self._finders)
            if asked(each)
        ]
        await asyncio.gather(*(self._look_for(*each) for each in wanted))

    async def _look_for(self, role: Role, way: int, engines: EngineAddresses, find: Find) -> None:
        try:
            self._found[role, way] = await find(engines, self._timeout_s)
            self.faults.pop((role, way), None)
        except DiscoveryError as error:
            if (role, way) not in self.faults:
                _log.warning("engines are not looked up: %s", error)
            self.faults[role, way] = str(error)


class Pods:
    """Looks pods up. Making it does no I/O."""

    def __init__(self, settings: KubernetesSettings) -> None:
        self._settings = settings
        self._api: CoreV1Api | None = None

    async def __call__(self, engines: EngineAddresses, timeout_s: float) -> Sequence[str]:
        """`host:port` of each pod that the selector matches. DiscoveryError."""
        return await asyncio.to_thread(self._blocking, engines, timeout_s)

    def _blocking(self, engines: EngineAddresses, timeout_s: float) -> Sequence[str]:
        from urllib3.exceptions import HTTPError

        namespace = engines.namespace or namespace_of(self._settings, os.environ)
        client = official_client()
        where = f"pods {engines.selector} in namespace {namespace}"
        try:
            answer = self._connected().list_namespaced_pod(
                namespace,
                label_selector=engines.selector,
                _request_timeout=timeout_s,
                _preload_content=False,
            )
            listed = json.loads(answer.data)
        except client.ApiException as error:
            needed = "; needed: a Role with pods, verbs: [list]" if error.status in (401, 403) else ""
            raise DiscoveryError(f"{where}: {error.status} {error.reason}{needed}") from None
        except (HTTPError, OSError, ValueError, Refused) as error:
            raise DiscoveryError(f"{where}: {error}") from None
        items = mapping(listed).get("items")
        return sorted(
            f"[{ip}]:{engines.port}" if ":" in ip else f"{ip}:{engines.port}"
            for pod in (items if isinstance(items, list) else [])
            if (ip := _address(mapping(pod)))
        )

    def _connected(self) -> "CoreV1Api":
        if self._api is None:
            found = configuration(self._settings.api_url, os.environ.get(TOKEN))
            client = official_client()
            self._api = client.CoreV1Api(client.ApiClient(found))
        return self._api


def _address(pod: Mapping[str, Any]) -> str:
    status = mapping(pod.get("status"))
    return str(status.get("podIP") or "") if status.get("phase") == RUNNING else ""


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

    async def inventory(self) -> Inventory:
        """What the pages of engines that answer show; SourceDownError where none does."""
        addresses = [address for address, each in self._engines.items() if not each.fault][:AT_ONCE]
        texts = await asyncio.gather(*map(self._http.get, addresses))
        samples = [sample for text in texts for sample in parse(text)]
        alive = [dict(each.labels) for each in samples if each.name == self._series.alive.name]
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
        """True while an engine that is not read is missed."""
        wanted = self._ordered().get(engine.role, 0)
        there = sum(each.role is engine.role and not each.fault for each in self._engines.values())
        return not 0 < wanted <= there and engine.stands(self._clock(), self._stale_s)


def _listed(faults: Mapping[str, str]) -> str:
    """The first few, and how many more there are."""
    first = "; ".join(f"{redacted(address)}: {fault}" for address, fault in islice(faults.items(), SHOWN))
    more = len(faults) - SHOWN
    return f"{first}; and {more} more" if more > 0 else first
