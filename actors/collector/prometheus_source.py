"""The source behind a Prometheus: raw samples of an interval, measured by the law of all sources.

All queries of an interval share one deadline (`timeout_s`). There are no retries: the next interval is the
retry. Each query carries the labels that the settings choose, `up` too: it has the labels of its target. Only
where nothing is found one more looks without them, to say what is there.

    what happens                                          health
    refused, too late, too long, HTTP error, redirected   `down`
      to another host, not an answer
    only a part could be asked (Thanos, Mimir,            `partial`, requests NaN
      VictoriaMetrics: a warning)
    samples are ahead of our clock                        `stale`
    no series of this model                               `starting`
    newest sample too old, target gone                    `stale`
    Prometheus, or the target, was away at the start      `starting` until an interval is covered whole
    some quantities have no data or NaN                   `partial`
    a counter contradicts itself                          `partial`, and its quantity NaN (`increase`)
    a target of these series cannot be scraped any more,  `partial`, requests NaN
      and fewer engines are left than were ordered
"""

import asyncio
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import inf, isnan
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import urlsplit, urlunsplit

from actors.collector import promql
from actors.collector.exposition import INSTANCE, ROLE, SourceDownError, redacted, spellings
from actors.collector.interval import NAN, Health, HealthStatus, Measured, Quantity, noted, unmeasured
from actors.collector.inventory import Inventory, inventory, model_labels, named_model, patterns, values_of
from actors.collector.pages import TextReader
from actors.collector.presets import Load, Preset
from actors.collector.raw_samples import (
    Lag,
    RawSeries,
    measured_of,
    not_an_answer,
    raw_series,
    without_scrapers,
)
from actors.collector.series import ModelSeries, role_of
from headway.config.live import MetricsSettings
from headway.engine.nearest import Told
from headway.planning import Role
from headway.words import first_few, plural

NOT_SCRAPING = "Prometheus was not scraping when the interval began"
SKEW_S = 10.0
"""A clock that differs by more is named."""
COUNTED_S = 2.0
"""Between two counts of the engines, which the planner asks for more often."""
GPU_SERIES, GPU_LABEL = "DCGM_FI_DEV_GPU_UTIL", "modelName"
"""What NVIDIA's exporter says of each GPU."""


class Point(NamedTuple):
    """One series of an instant vector."""

    what: str
    labels: dict[str, str]
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """The answers to `promql.coverage` and `promql.ahead`; NaN for what has no series. `unread` are the
    targets by instance, `there` counts replicas, `named` has the requests by the model's label."""

    newest: float = NAN
    ahead: float = NAN
    known: float = NAN
    scraping: float = NAN
    resumed: float = NAN
    unread: tuple[str, ...] = ()
    there: int = 0
    named: Mapping[str, float] = field(default_factory=dict)


def points(answer: Any) -> list[Point]:  # noqa: ANN401 - whatever JSON holds
    """The series of an instant vector; SourceDownError for an answer of another form."""
    try:
        read = [({str(k): str(v) for k, v in row["metric"].items()}, row["value"][1]) for row in answer]
        return [Point(labels.get(promql.WHAT, ""), labels, float(value)) for labels, value in read]
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise not_an_answer(error) from None


def coverage_of(answer: Iterable[Point], model_label: str) -> Coverage:
    """The answer to `promql.coverage`."""
    figures: dict[str, float] = {}
    named: dict[str, float] = {}
    unread, there = [], []
    for what, labels, value in answer:
        if what == "unread":
            unread.append(labels.get(INSTANCE, "?"))
        elif what == "there":
            there.append((labels.get(promql.RANK, ""), value))
        elif what == "named":
            named[labels.get(model_label, "")] = value
        else:
            figures[what] = value
    return Coverage(**figures, unread=tuple(sorted(unread)), there=promql.replicas(there), named=named)


def coverage_health(
    coverage: Coverage, end_s: float, fresh_s: float, sought: str, now_s: float = -inf
) -> Health:
    """`ok` if the interval can be measured at all, else why it cannot."""
    ahead_s = coverage.ahead - (end_s if isnan(coverage.known) else max(end_s, now_s))
    if ahead_s > SKEW_S:
        detail = f"samples of {sought} are up to {ahead_s:.0f} s ahead of our clock: set the clocks"
        return Health(status=HealthStatus.STALE, detail=detail)
    if isnan(coverage.known):
        return Health(status=HealthStatus.STARTING, detail=f"Prometheus has no series {sought}")
    if late := _late(end_s - coverage.newest, fresh_s):
        return Health(status=HealthStatus.STALE, detail=f"{sought} {late}")
    if isnan(coverage.scraping) or coverage.scraping < 1:
        return Health(status=HealthStatus.STARTING, detail=NOT_SCRAPING)
    if coverage.resumed > 0:
        detail = "samples are missing around the interval's start: what was counted may belong before it"
        return Health(status=HealthStatus.STARTING, detail=detail)
    return Health(status=HealthStatus.OK)


def _late(age_s: float, fresh_s: float) -> str:
    if isnan(age_s):
        return "is no longer scraped, or a clock is minutes behind ours"
    if age_s > fresh_s:
        age = f"has a newest sample that is {age_s:.1f} s old (stale_after_s {fresh_s:g})"
        return f"{age}: samples come late (metrics.offset_s), or a clock is behind ours"
    return ""


class PrometheusSource:
    """Queries one Prometheus for one model. `fresh_s` is the age at which a sample stops counting.

    The settings say how it is asked, and how long before now intervals end (`offset_s`). `ordered` are the
    replicas that there should be; nothing where that is not known.
    """

    def __init__(
        self,
        url: str,
        preset: Preset,
        model: str,
        *,
        timeout_s: float,
        fresh_s: float,
        labels: Mapping[str, str] = MappingProxyType({}),
        role_labels: Mapping[Role, Mapping[str, str]] = MappingProxyType({}),
        settings: MetricsSettings | None = None,
        ordered: Callable[[], Mapping[Role, int]] = dict,
    ) -> None:
        self._url, self._query_url = redacted(url).rstrip("/"), query_url(url)
        self._http = TextReader(timeout_s, settings, proxies=True)
        self._offset_s = 0.0 if settings is None else settings.offset_s
        self._ordered = ordered
        self._series = ModelSeries(preset, model, role_labels)
        self._names = spellings(self._series.names)
        self._chosen = promql.Chosen(labels=labels, roles=role_labels)
        channels = self._series.channels
        self._requests = next(c for c in channels if c.quantity is Quantity.REQUESTS and not c.gauge)
        self._watched = self._selectors()
        self._alive = self._watched.alive
        self._timeout_s = timeout_s
        self._fresh_s = fresh_s
        self._warning = ""
        self._queries = 0
        self._failures = 0
        self._engines: Mapping[Role, int] = {}
        self._counted_s = float("-inf")
        self._lag = Lag()

    def _selectors(self) -> promql.Watched:
        """Of what shows whether an interval is covered."""
        series, chosen = self._series, self._chosen
        name, where = series.alive
        requests = self._requests
        label, names = series.preset.model_label, series.spelt([requests.name])
        of_model = tuple(each for each in requests.where if each[0] != ROLE)
        any_model = tuple(each for each in of_model if each[0] != label)
        return promql.Watched(
            alive=promql.selector(series.spelt([name]), chosen.where(where)),
            counter=promql.selector(names, chosen.where(of_model, requests.role)),
            any_model=promql.selector(names, chosen.where(any_model, requests.role)),
            up=promql.selector(["up"], chosen.where(())),
            model_label=label,
            rank=series.preset.rank,
        )

    async def collect(self, start_s: float, end_s: float, since_s: float | None = None) -> Measured:
        """The interval, or why it could not be measured; without `since_s` it is as long as asked for."""
        length_s, end_s = end_s - start_s, end_s - self._offset_s
        until_s = end_s - self._lag.seconds
        start_s = until_s - length_s if since_s is None else since_s
        span_s = start_s, max(start_s, until_s)
        self._warning = ""
        try:
            async with asyncio.timeout(self._timeout_s):
                asked = promql.coverage(self._watched, end_s - start_s, self._fresh_s)
                coverage = coverage_of(await self._points(asked, end_s), self._watched.model_label)
                coverage = replace(coverage, ahead=await self._ahead(end_s))
                # The machine's clock: what comes after an interval of the past is not ahead.
                now_s = time.time()
                # Samples that are late, but come, are good.
                late_s = length_s if self._lag.advances(coverage.newest, end_s) else 0.0
                health = coverage_health(coverage, end_s, self._fresh_s + late_s, self._alive, now_s)
                if health.status is not HealthStatus.OK:
                    return unmeasured(*span_s, health.status, health.detail)
                asked_from_s = start_s - self._fresh_s - late_s
                raw, several = without_scrapers(await self._samples(asked_from_s, end_s))
        except (SourceDownError, TimeoutError) as error:
            return unmeasured(*span_s, HealthStatus.DOWN, self._failed(error))
        missed = () if self._all_there(coverage) else coverage.unread
        doubt = _cannot_be_scraped(missed) if missed else self._warning
        doubts = {Quantity.REQUESTS: doubt} if doubt else {}
        until_s = self._lag.known_until_s(raw, end_s, self._fresh_s)
        if since_s is None:
            covered_s, start_s = start_s, until_s - length_s
            # By what samples are late, which was not known yet, the first interval begins earlier.
            if start_s < min((each.samples[0][0] for each in raw if each.samples), default=inf) <= covered_s:
                return unmeasured(*span_s, HealthStatus.STARTING, NOT_SCRAPING)
        if until_s <= start_s:
            late = f"samples come {self._lag.seconds:g} s late, later than before"
            return unmeasured(start_s, start_s, HealthStatus.STARTING, late)
        span_s = start_s, until_s
        # A large fleet's samples take a second or two, which no other call has to wait for.
        measured = await asyncio.to_thread(measured_of, self._series, raw, span_s, self._fresh_s, doubts)
        return noted(noted(measured, _scraped_again(several)), self._series.not_counted(coverage.named))

    async def probe(self) -> Health:
        """`ok` if Prometheus answers and has this model's series."""
        try:
            async with asyncio.timeout(self._timeout_s):
                found = await self._points(f"count({self._alive})", None)
                instead = "" if found else (await self.inventory()).instead
        except (SourceDownError, TimeoutError) as error:
            return Health(status=HealthStatus.DOWN, detail=self._failed(error))
        if not found:
            detail = f"Prometheus has {instead}; asked: {self._alive}"
            return Health(status=HealthStatus.STARTING, detail=detail)
        return Health(status=HealthStatus.OK)

    async def inventory(self) -> Inventory:
        """What there is of the preset, with the chosen labels or else without them. SourceDownError."""
        names, by = patterns(self._series), model_labels(self._series)
        place, where = "", self._chosen.where(())
        found = await self._points(promql.anything(names, by, where), None)
        if where and not found:
            place, found = " without these labels", await self._points(promql.anything(names, by, ()), None)
        shown: dict[tuple[str, str], int] = {}
        for point in found:
            key = point.labels.get("__name__", ""), named_model(self._series, point.labels)
            shown[key] = shown.get(key, 0) + int(point.value)
        return inventory(self._series, shown, place if found else "")._replace(told=await self._told())

    async def _told(self) -> Told:
        """What labels say of the GPU: those of engines, and the GPU's own where all are of one model."""
        gpus = f"group by ({GPU_LABEL}) ({promql.selector([GPU_SERIES], self._chosen.where(()))})"
        with suppress(SourceDownError):
            engines = [point.labels for point in await self._points(self._alive, None)]
            shown = {point.labels.get(GPU_LABEL, "") for point in await self._points(gpus, None)}
            return Told((), (*values_of(self._series, engines), *(shown if len(shown) == 1 else ())))
        return Told()

    async def engines(self) -> Mapping[Role, int]:
        """Engines with a fresh sample; none where they are not told apart or Prometheus does not answer."""
        load = self._series.preset.load
        if load is None or not load.running.engine:
            return {}
        now_s = asyncio.get_running_loop().time()
        if now_s - self._counted_s >= COUNTED_S:
            self._counted_s = now_s
            fresh_s = self._fresh_s + self._offset_s
            running = {
                role: promql.selector(
                    self._series.spelt([load.running.name]), self._chosen.where(self._series.of_model, role)
                )
                for role in self._series.roles or (None,)
            }
            try:
                async with asyncio.timeout(self._timeout_s):
                    asked = promql.engines(running, load, self._series.preset.rank, fresh_s)
                    answer = await self._points(asked, None)
            except (SourceDownError, TimeoutError) as error:
                self._failed(error)
                answer = []
            found: dict[Role, list[tuple[str, float]]] = {}
            for point in answer:
                if role := self._role(load, point):
                    found.setdefault(role, []).append((point.labels.get(promql.RANK, ""), point.value))
            self._engines = {role: promql.replicas(counted) for role, counted in found.items()}
        return self._engines

    def status(self) -> dict[str, object]:
        """Address, queries and failures so far."""
        return {
            "url": self._url,
            "reads": self._queries,
            "failures": self._failures,
            "lag_s": self._lag.seconds,
        }

    async def close(self) -> None:
        """Close the connections."""
        await self._http.close()

    def _all_there(self, coverage: Coverage) -> bool:
        """True if as many engines are read as were ordered: those that are not were ordered away."""
        role, ordered = self._requests.role, self._ordered()
        by_engine = any(each.engine for each in self._series.preset.requests)
        wanted = sum(ordered.values()) if role is None else ordered.get(role, 0)
        return by_engine and 0 < wanted <= coverage.there

    async def _ahead(self, end_s: float) -> float:
        """The newest sample that is not yet; NaN without one, and where none may be asked for."""
        try:
            found = await self._points(promql.ahead(self._alive), end_s)
        except SourceDownError:
            return NAN
        return found[0].value if found else NAN

    async def _samples(self, start_s: float, end_s: float) -> list[RawSeries]:
        """All samples that the interval needs."""

        async def asked(query: promql.SampleQuery) -> list[RawSeries]:
            answer = await self._ask(query.text(end_s - start_s), end_s)
            return await asyncio.to_thread(raw_series, answer, self._names, query.role)

        queries = promql.sample_queries(self._series, self._chosen, end_s - start_s, self._fresh_s)
        found = await asyncio.gather(*map(asked, queries))
        return [series for each in found for series in each]

    async def _points(self, query: str, at_s: float | None) -> list[Point]:
        return points(await self._ask(query, at_s))

    async def _ask(self, query: str, at_s: float | None) -> Any:  # noqa: ANN401 - whatever JSON holds
        """The result of one query. All that it can do to us becomes `SourceDownError`."""
        self._queries += 1
        form = {"query": query, "timeout": promql.duration(self._timeout_s)}
        if at_s is not None:
            form["time"] = f"{at_s:.3f}"
        body = await self._http.post(self._query_url, form)
        result, warning = await asyncio.to_thread(result_of, body)
        self._warning = self._warning or warning
        return result

    def _failed(self, error: Exception) -> str:
        self._failures += 1
        why = str(error) or f"no answer within {self._timeout_s:g} s"
        return f"Prometheus at {self._url}: {why}"

    def _role(self, load: Load, point: Point) -> Role | None:
        """The role that engines were counted for, by the part of the query or by the role's label."""
        named = point.what.partition(":")[2]
        return Role(named) if named else role_of(load, tuple(point.labels.items()))


def _cannot_be_scraped(instances: Sequence[str]) -> str:
    return f"Prometheus cannot scrape {plural(len(instances), 'target')}: {first_few(instances)}"


def _scraped_again(instances: Sequence[str]) -> str:
    if not instances:
        return ""
    return f"{plural(len(instances), 'target')} scraped several times, counted once: {first_few(instances)}"


def query_url(url: str) -> str:
    """The address of queries under an address, which may have a path and arguments."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return url
    path = parts.path.rstrip("/").removesuffix("/api/v1")
    return urlunsplit(parts._replace(path=f"{path}/api/v1/query", fragment=""))


def result_of(body: bytes) -> tuple[Any, str]:
    """The result in an answer, and a line if it is of a part of the data. SourceDownError: no answer."""
    try:
        answer = json.loads(body)
        result = answer["data"]["result"]
    # Before KeyError: text that is no JSON is a ValueError.
    except ValueError:
        raise SourceDownError(
            "not an answer of Prometheus: no JSON (a login page, or another address?)"
        ) from None
    except (KeyError, TypeError) as error:
        raise SourceDownError(f"not an answer of Prometheus: {type(error).__name__}") from None
    # Prometheus itself warns of how a query is written; those begin so.
    warnings = [str(one) for one in answer.get("warnings") or () if not str(one).startswith("PromQL")]
    if answer.get("isPartial"):
        warnings.append("isPartial")
    return result, f"a part of the data was not asked: {warnings[0][:200]}" if warnings else ""
