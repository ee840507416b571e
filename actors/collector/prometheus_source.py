"""The source behind a Prometheus: raw samples of an interval, measured by the law of all sources.

The client is synchronous: queries run on a few threads of our own, and all of an interval share one deadline
(`timeout_s`), after which the threads are left to the client's own timeout. There are no retries: the next
interval is the retry.

    what happens                                          health
    refused, too late, HTTP error, not an answer          `down`
    earlier queries still hang on every thread            `down`, at the deadline
    no series of this model                               `starting`
    newest sample too old, target gone                    `stale`
    Prometheus, or the target, was away at the start      `starting` until an interval is covered whole
    some quantities have no data or NaN                   `partial`
    a counter contradicts itself                          `partial`, and its quantity NaN (`increase`)
    a target of these series cannot be scraped any more   `partial`, requests NaN
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import isnan
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from actors.collector import promql
from actors.collector.exposition import INSTANCE, ROLE, SourceDownError, absent, redacted, spellings
from actors.collector.interval import NAN, Health, HealthStatus, Measured, Quantity, noted, unmeasured
from actors.collector.pages import bearer
from actors.collector.presets import PRESETS, Load, Preset
from actors.collector.raw_samples import (
    Lag,
    RawSeries,
    measured_of,
    not_an_answer,
    raw_series,
    without_scrapers,
)
from actors.collector.series import ModelSeries, role_of
from headway.planning import Role
from headway.words import plural

THREADS = 4
ALIVE = tuple(dict.fromkeys((preset.alive.name, preset.model_label) for preset in PRESETS.values()))
"""What every running system of some kind shows, and its label with the model."""
COUNTED_S = 2.0
"""Between two counts of the engines, which the planner asks for more often."""
MOST_NAMED = 3


class Point(NamedTuple):
    """One series of an instant vector."""

    what: str
    labels: dict[str, str]
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """The answer to `promql.coverage`; NaN for what has no series. `unread` are the targets by instance."""

    newest: float = NAN
    known: float = NAN
    scraping: float = NAN
    resumed: float = NAN
    unread: tuple[str, ...] = ()


def points(answer: Any) -> list[Point]:  # noqa: ANN401 - whatever JSON holds
    """The series of an instant vector; SourceDownError for an answer of another form."""
    try:
        read = [({str(k): str(v) for k, v in row["metric"].items()}, row["value"][1]) for row in answer]
        return [Point(labels.get(promql.WHAT, ""), labels, float(value)) for labels, value in read]
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise not_an_answer(error) from None


def coverage_of(answer: Iterable[Point]) -> Coverage:
    """The answer to `promql.coverage`."""
    figures: dict[str, float] = {}
    unread = []
    for what, labels, value in answer:
        if what == "unread":
            unread.append(labels.get(INSTANCE, "?"))
        else:
            figures[what] = value
    return Coverage(**figures, unread=tuple(sorted(unread)))


def coverage_health(coverage: Coverage, end_s: float, fresh_s: float, sought: str) -> Health:
    """`ok` if the interval can be measured at all, else why it cannot."""
    if isnan(coverage.known):
        return Health(status=HealthStatus.STARTING, detail=f"Prometheus has no series {sought}")
    age_s = end_s - coverage.newest
    if isnan(age_s):
        return Health(status=HealthStatus.STALE, detail=f"{sought} is no longer scraped")
    if age_s > fresh_s:
        detail = f"the newest sample of {sought} is {age_s:.1f} s old (stale_after_s {fresh_s:g})"
        return Health(status=HealthStatus.STALE, detail=detail)
    if isnan(coverage.scraping) or coverage.scraping < 1:
        detail = "Prometheus was not scraping when the interval began"
        return Health(status=HealthStatus.STARTING, detail=detail)
    if coverage.resumed > 0:
        detail = "samples are missing around the interval's start: what was counted may belong before it"
        return Health(status=HealthStatus.STARTING, detail=detail)
    return Health(status=HealthStatus.OK)


class PrometheusSource:
    """Queries one Prometheus for one model. `fresh_s` is the age at which a sample stops counting.

    `ca_file` has the authorities to trust, `token_file` the key to send, which is read for each query.
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
        ca_file: str | None = None,
        token_file: str | None = None,
    ) -> None:
        self._url = url.rstrip("/")
        self._ca_file, self._token_file = ca_file, token_file
        self._series = ModelSeries(preset, model, role_labels)
        self._names = spellings(self._series.names)
        self._chosen = promql.Chosen(labels=labels, roles=role_labels)
        name, where = self._series.alive
        self._alive = promql.selector([name], self._chosen.where(where))
        requests = next(c for c in self._series.channels if c.quantity is Quantity.REQUESTS and not c.gauge)
        of_model = tuple(label for label in requests.where if label[0] != ROLE)
        self._counter = promql.selector([requests.name], self._chosen.where(of_model, requests.role))
        self._timeout_s = timeout_s
        self._fresh_s = fresh_s
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="promql")
        self._client: Any = None
        self._queries = 0
        self._failures = 0
        self._engines: Mapping[Role, int] = {}
        self._counted_s = float("-inf")
        self._lag = Lag()

    async def collect(self, start_s: float, end_s: float) -> Measured:
        """The interval, or why it could not be measured."""
        try:
            async with asyncio.timeout(self._timeout_s):
                reach_s = end_s - start_s + self._lag.seconds
                asked = promql.coverage(self._alive, self._counter, reach_s, self._fresh_s)
                coverage = coverage_of(await self._points(asked, end_s))
                # Samples that are late, but come, are good.
                late_s = end_s - start_s if self._lag.advances(coverage.newest, end_s) else 0.0
                health = coverage_health(coverage, end_s, self._fresh_s + late_s, self._alive)
                if health.status is not HealthStatus.OK:
                    return unmeasured(start_s, end_s, health.status, health.detail)
                raw, several = without_scrapers(
                    await self._samples(end_s - reach_s - self._fresh_s - late_s, end_s)
                )
        except (SourceDownError, TimeoutError) as error:
            return unmeasured(start_s, end_s, HealthStatus.DOWN, self._failed(error))
        doubts = {Quantity.REQUESTS: _cannot_be_scraped(coverage.unread)} if coverage.unread else {}
        # A large fleet's samples take a second or two, which no other call has to wait for.
        span_s = self._lag.span(raw, (start_s, end_s), self._fresh_s)
        if span_s is None:
            late = f"samples come {self._lag.seconds:g} s late, later than before"
            return unmeasured(start_s, end_s, HealthStatus.STARTING, late)
        measured = await asyncio.to_thread(measured_of, self._series, raw, span_s, self._fresh_s, doubts)
        return noted(measured, _scraped_again(several))

    async def probe(self) -> Health:
        """`ok` if Prometheus answers and has this model's series."""
        try:
            async with asyncio.timeout(self._timeout_s):
                found = await self._points(f"count({self._alive})", None)
                others = [] if found else await self._points(promql.anything(ALIVE), None)
        except (SourceDownError, TimeoutError) as error:
            return Health(status=HealthStatus.DOWN, detail=self._failed(error))
        if not found:
            shown = absent(self._series.model, map(self._known, others))
            detail = f"Prometheus has {shown}; asked: {self._alive}"
            return Health(status=HealthStatus.STARTING, detail=detail)
        return Health(status=HealthStatus.OK)

    async def engines(self) -> Mapping[Role, int]:
        """Engines with a fresh sample; none where they are not told apart or Prometheus does not answer."""
        load = self._series.preset.load
        if load is None or not load.running.engine:
            return {}
        now_s = asyncio.get_running_loop().time()
        if now_s - self._counted_s >= COUNTED_S:
            self._counted_s = now_s
            model = ((self._series.preset.model_label, self._series.model),)
            running = {
                role: promql.selector([load.running.name], self._chosen.where(model, role))
                for role in self._series.roles or (None,)
            }
            try:
                async with asyncio.timeout(self._timeout_s):
                    answer = await self._points(promql.engines(running, load.role_label, self._fresh_s), None)
            except (SourceDownError, TimeoutError) as error:
                self._failed(error)
                answer = []
            named = [(self._role(load, point), int(point.value)) for point in answer]
            self._engines = {role: count for role, count in named if role is not None}
        return self._engines

    def status(self) -> dict[str, object]:
        """Address, queries and failures so far."""
        return {
            "url": redacted(self._url),
            "reads": self._queries,
            "failures": self._failures,
            "lag_s": self._lag.seconds,
        }

    async def close(self) -> None:
        """Let the threads go; what hangs ends by the client's timeout."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        if self._client is not None:
            self._client.close()

    async def _samples(self, start_s: float, end_s: float) -> list[RawSeries]:
        """All samples that the interval needs."""

        def asked(query: promql.SampleQuery) -> list[RawSeries]:
            return raw_series(self._ask(query.text(end_s - start_s), end_s), self._names, query.role)

        queries = promql.sample_queries(self._series, self._chosen, end_s - start_s, self._fresh_s)
        found = await asyncio.gather(*(self._on_a_thread(asked, query) for query in queries))
        return [series for each in found for series in each]

    async def _points(self, query: str, at_s: float | None) -> list[Point]:
        return points(await self._on_a_thread(self._ask, query, at_s))

    def _on_a_thread(self, call: Callable[..., Any], *args: object) -> Awaitable[Any]:
        """In the queue where every thread still hangs from before, until the deadline."""
        return asyncio.get_running_loop().run_in_executor(self._threads, call, *args)

    def _ask(self, query: str, at_s: float | None) -> Any:  # noqa: ANN401 - whatever JSON holds
        """One request, in a thread. All that it can do to us becomes `SourceDownError`."""
        from prometheus_api_client import PrometheusApiClientException, PrometheusConnect
        from requests.exceptions import InvalidSchema, InvalidURL, MissingSchema

        self._queries += 1
        params = {"timeout": promql.duration(self._timeout_s)}
        if at_s is not None:
            params["time"] = f"{at_s:.3f}"
        try:
            if self._client is None:
                self._client = PrometheusConnect(
                    url=self._url, retry=0, method="POST", auth=self._with_key(), session=self._session()
                )
            answer = self._client.custom_query(query, params=params, timeout=self._timeout_s)
        except PrometheusApiClientException as error:
            raise SourceDownError(str(error)[:300]) from None
        except (InvalidSchema, InvalidURL, MissingSchema):
            # Their text is the whole address, with the credentials in it.
            raise SourceDownError("is not an http address") from None
        # Before OSError: what the client raises for text that is no JSON is both.
        except ValueError:
            raise SourceDownError(
                "not an answer of Prometheus: no JSON (a login page, or another address?)"
            ) from None
        except (KeyError, TypeError) as error:
            raise SourceDownError(f"not an answer of Prometheus: {type(error).__name__}") from None
        except OSError as error:
            # The innermost cause, which the client's text ends with; the rest repeats the query.
            reason = str(error).rpartition(": ")[2].rstrip("')\"")[:200]
            raise SourceDownError(f"{type(error).__name__}: {reason}") from None
        return answer

    def _session(self) -> Any:  # noqa: ANN401 - a session of `requests`
        from requests import Session

        session = Session()
        if self._ca_file is not None:
            if not Path(self._ca_file).is_file():
                raise SourceDownError(f"metrics.ca_file: {self._ca_file}: there is no such file")
            session.verify = self._ca_file
        return session

    def _with_key(self) -> Any:  # noqa: ANN401 - what `requests` takes for an `auth`
        """Puts the key into a request; None without one: then credentials in the address count."""

        def keyed(request: Any) -> Any:  # noqa: ANN401 - a prepared request
            request.headers.update(bearer(self._token_file))
            return request

        return None if self._token_file is None else keyed

    def _known(self, point: Point) -> str:
        """A model that Prometheus has, and what hides it from these settings."""
        name = point.labels.get("__name__", "")
        presets = [preset for preset in PRESETS.values() if name in spellings([preset.alive.name])]
        model = next(
            (point.labels[each.model_label] for each in presets if each.model_label in point.labels), ""
        )
        if not model or self._series.preset in presets:
            return f"{model} without these labels" if model == self._series.model else model
        return f"{model} (preset {presets[0].name})"

    def _failed(self, error: Exception) -> str:
        self._failures += 1
        why = str(error) or f"no answer within {self._timeout_s:g} s"
        return f"Prometheus at {redacted(self._url)}: {why}"

    def _role(self, load: Load, point: Point) -> Role | None:
        """The role that engines were counted for, by the part of the query or by the role's label."""
        named = point.what.partition(":")[2]
        return Role(named) if named else role_of(load, tuple(point.labels.items()))


def _cannot_be_scraped(instances: Sequence[str]) -> str:
    return f"Prometheus cannot scrape {plural(len(instances), 'target')}: {_named(instances)}"


def _scraped_again(instances: Sequence[str]) -> str:
    if not instances:
        return ""
    return f"{plural(len(instances), 'target')} scraped several times, counted once: {_named(instances)}"


def _named(instances: Sequence[str]) -> str:
    more = len(instances) - MOST_NAMED
    return ", ".join(instances[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
