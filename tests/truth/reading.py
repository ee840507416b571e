"""The two ways in which metrics are read, over virtual time: engines by themselves, and a real Prometheus.

The Prometheus holds the samples that it would have scraped, written into its storage beforehand, and is asked
at the moments of the past at which intervals ended. Nothing waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any

from actors.collector.engines import EngineFleet
from actors.collector.exposition import ROLE
from actors.collector.interval import Measured
from actors.collector.pages import RefusedError
from actors.collector.presets import PRESETS
from actors.collector.prometheus_source import PrometheusSource
from actors.collector.scrape import ScrapeSource
from actors.collector.series import ModelSeries
from actors.collector.tracker import Tracker
from headway.planning import Role
from tests.prometheus_process import fill
from tests.stores import MemoryStore
from tests.truth.engines import MODEL, Engine, Sample, shown, text

BEGIN_S = 1_767_571_200.0
"""A midnight: time 0 of every fleet."""


@dataclass(frozen=True)
class Target:
    """An engine as a Prometheus scrapes it: the labels of its job, when, and how late samples arrive."""

    engine: Engine
    job: str = "engines"
    every_s: float = 5.0
    after_s: float = 0.0
    labels: Mapping[str, str] = field(default_factory=dict)
    from_s: float = -inf
    until_s: float = inf
    gap_s: tuple[float, float] = (inf, inf)
    clock_s: float = 0.0
    """How far its clock is ahead."""

    def moments(self, until_s: float) -> Iterator[float]:
        at_s = self.after_s
        while at_s <= until_s:
            if self.from_s <= at_s < self.until_s and not self.gap_s[0] <= at_s < self.gap_s[1]:
                yield at_s
            at_s += self.every_s

    def scraped(self, until_s: float) -> Iterator[tuple[float, Sample]]:
        own = {
            "job": self.job,
            "instance": self.engine.address,
            "pod": self.engine.pod,
            **self.labels,
        }
        for at_s in self.moments(until_s):
            up = self.engine.there(at_s)
            yield at_s + self.clock_s, ("up", own, float(up))
            for name, labels, value in self.engine.page(at_s) if up else ():
                yield at_s + self.clock_s, (name, {**labels, **own}, value)


def write_blocks(directory: Path, fleets: Mapping[str, tuple[Sequence[Target], float]]) -> None:
    """The storage of a Prometheus that scraped these, each fleet as a namespace, up to a time."""
    by_name: dict[str, list[str]] = {}
    for namespace, (targets, until_s) in fleets.items():
        for target in targets:
            for at_s, (name, labels, value) in target.scraped(until_s):
                # Other fleets have engines of the same addresses, which a job has not.
                own = {**labels, "namespace": namespace, "job": f"{namespace}/{labels['job']}"}
                line = f"{name}{shown(own)} {value!r} {BEGIN_S + at_s:.3f}"
                by_name.setdefault(name, []).append(line)
    fill(directory, (line for name in sorted(by_name) for line in by_name[name]))


class Pages:
    """Answers GETs of engines at a moment."""

    def __init__(self, engines: Sequence[Engine]) -> None:
        self.engines = {f"http://{each.address}/metrics": each for each in engines}
        self.at_s = 0.0

    async def get(self, url: str) -> str:
        engine = self.engines[url]
        if not engine.there(self.at_s):
            raise RefusedError("refused")
        return text(engine.page(self.at_s))

    async def close(self) -> None:
        """Nothing is open."""


class Found:
    def __init__(self, engines: Sequence[Engine]) -> None:
        self._found = {
            f"http://{each.address}/metrics": {**each.found, ROLE: Role.MIXED.value} for each in engines
        }
        self.faults: dict[Any, str] = {}

    async def engines(self) -> Mapping[str, Mapping[str, str]]:
        return self._found


def read_engines(
    engines: Sequence[Engine], preset: str, borders_s: Sequence[float], **settings: Any
) -> tuple[list[Measured], Mapping[Role, int]]:
    """The intervals between these times, of engines that are read each second."""

    async def reading() -> tuple[list[Measured], Mapping[Role, int]]:
        pages, measured = Pages(engines), []
        clock = lambda: BEGIN_S + pages.at_s  # noqa: E731
        series = ModelSeries(PRESETS[preset], MODEL, (Role.MIXED,))
        fleet = EngineFleet(series, Found(engines), pages, stale_s=30.0, clock=clock, **settings)
        source = ScrapeSource(Tracker(series, 1.0), fleet, MemoryStore(), clock=clock)
        for start_s, end_s in zip([0.0, *borders_s], borders_s, strict=False):
            for second in range(int(end_s - start_s)):
                pages.at_s = start_s + second
                await source.read()
            pages.at_s = end_s
            measured.append(await source.collect(BEGIN_S + start_s, BEGIN_S + end_s))
        found = await source.engines()
        await source.close()
        return measured, found

    return asyncio.run(reading())


def read_prometheus(
    url: str, namespace: str, preset: str, borders_s: Sequence[float], late_s: float = 0.0, **settings: Any
) -> list[Measured]:
    """The same from what a Prometheus has of a namespace, each sample `late_s` after it was taken.

    The first interval is the second one: a Prometheus has a past.
    """

    async def reading() -> list[Measured]:
        source = PrometheusSource(
            url,
            PRESETS[preset],
            MODEL,
            timeout_s=30.0,
            fresh_s=30.0,
            labels={"namespace": namespace},
            **settings,
        )
        if late_s:
            # A double: what has not arrived yet cannot be taken out of a storage.
            ask = source._ask
            source._ask = lambda query, at_s: ask(query, at_s and at_s - late_s)
        measured: list[Measured] = []
        interval_s = borders_s[1] - borders_s[0]
        for end_s in borders_s[1:]:
            since_s = measured[-1].end_s if measured else None
            now_s = BEGIN_S + end_s
            measured.append(await source.collect(now_s - interval_s, now_s, since_s))
        await source.close()
        return measured

    return asyncio.run(reading())
