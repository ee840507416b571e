"""Gateways as a fleet that is read (`scrape`): their metrics, and the requests that ours list one by one.

    what happens                                        health
    refused, too late, status not 200, of all           `down`
    not Prometheus' text, over 16 MiB                   `down`
    no series of this model yet                         `starting`
    one of several does not answer as an interval ends  `partial`, requests NaN

What a process that dies had counted since it was last read is in no interval. Where a gateway does not list
its requests (an older one, no answer, not all of them kept), or one that counted in the interval is gone with
its list, the interval has no `traffic`, and is as good as without.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import inf, isnan

from actors.collector.exposition import INSTANCE, LineReader, Samples, SourceDownError
from actors.collector.interval import Health, HealthStatus, Measured
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
from actors.collector.scrape import Naming, Scrape
from actors.collector.series import ModelSeries
from headway.planning import Role
from headway.words import plural

REACH_FURTHER_S = 1.0
"""The gateway is asked for more than the interval, whose ends it sees on its own clock."""


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
        traffic = traffic_within(requests, 0.0, start_s, end_s)
        if traffic is None:
            self._no_traffic = "the gateway has not kept all of its requests"
            return measured
        counted = {process for process, at_s in read_s.items() if at_s > start_s}
        if counted - answers.texts.keys():
            self._no_traffic = "a gateway that counted in the interval is gone, and its list with it"
            return measured
        self._no_traffic = ""
        classes = classes_within(requests, 0.0, (start_s, end_s), self._classes)
        return replace(measured, traffic=traffic, counted=None, classes=classes)

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
