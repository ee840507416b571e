"""The source behind a Prometheus: each interval by PromQL, evaluated at its end.

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
    a counter of requests contradicts itself              `partial`, and nothing is known (`counters`)
    a target of these series cannot be scraped any more   `partial`, requests NaN
"""

import asyncio
from collections.abc import Awaitable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import isnan
from pathlib import Path
from typing import Any, NamedTuple

from actors.collector import promql
from actors.collector.counted import with_counted
from actors.collector.counters import Group, Past, follow
from actors.collector.exposition import SourceDownError, absent, redacted, role_of
from actors.collector.http_text import bearer
from actors.collector.measured import (
    NAN,
    Health,
    HealthStatus,
    Increase,
    Measured,
    PoolLoad,
    assemble,
    unmeasured,
)
from actors.collector.presets import (
    EVERYTHING,
    PRESETS,
    Channel,
    Load,
    Part,
    Preset,
    Quantity,
    Selection,
    Series,
    channels,
    gauges,
    matched,
)
from headway.planning import Role

THREADS = 4
ALIVE = tuple(dict.fromkeys((preset.alive.name, preset.model_label) for preset in PRESETS.values()))
"""What every running system of some kind shows, and its label with the model."""
COUNTED_S = 2.0
"""Between two counts of the engines, which the planner asks for more often."""


class Point(NamedTuple):
    """One series of an instant vector."""

    what: str
    labels: dict[str, str]
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """The answer to `promql.coverage`; NaN for what has no series."""

    newest: float = NAN
    known: float = NAN
    scraping: float = NAN
    resumed: float = NAN
    unread: float = NAN


def points(answer: Any) -> list[Point]:  # noqa: ANN401 - whatever JSON holds
    """The series of an instant vector; SourceDownError for an answer of another form."""
    try:
        read = [({str(k): str(v) for k, v in row["metric"].items()}, row["value"][1]) for row in answer]
        return [Point(labels.get(promql.WHAT, ""), labels, float(value)) for labels, value in read]
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise _no_answer(error) from None


def samples_of(
    answer: Any,  # noqa: ANN401 - whatever JSON holds
    quantity: Quantity,
) -> dict[Group, list[tuple[float, float]]]:
    """The samples of a range vector by series; SourceDownError for an answer of another form."""
    try:
        series: dict[Group, list[tuple[float, float]]] = {}
        for row in answer:
            labels = {str(key): str(value) for key, value in row["metric"].items()}
            group = Group(quantity, labels.pop("__name__", ""), tuple(sorted(labels.items())))
            series[group] = [(float(at_s), float(value)) for at_s, value in row["values"]]
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise _no_answer(error) from None
    # NaN is missing data; Prometheus' own mark of a series that ended does not come at all.
    return {group: [s for s in samples if not isnan(s[1])] for group, samples in series.items()}


def _no_answer(error: Exception) -> SourceDownError:
    return SourceDownError(f"not an answer of Prometheus: {type(error).__name__} {str(error)[:100]}")


def increase_of(answer: Iterable[Point]) -> tuple[Increase | None, bool]:
    """The gain of a quantity, None if it has no series; and True if a counter behind it was reset."""
    counts: list[float] = []
    sums: list[float] = []
    buckets: list[tuple[float, float]] = []
    fell = 0.0
    for what, labels, value in answer:
        part = what.partition(":")[0]
        if part == "resets":
            fell += value
        elif part == Part.BUCKET:
            buckets.append((float(labels.get("le", "nan")), value))
        else:
            (counts if part == Part.COUNT else sums).append(value)
    if not counts:
        return None, fell > 0
    total = sum(sums) if sums else NAN
    return Increase(count=sum(counts), total=total, buckets=tuple(sorted(buckets))), fell > 0


def loads_of(answer: Iterable[Point], load: Load) -> dict[Role, PoolLoad]:
    """Mean load by role."""
    figures: dict[Role, dict[str, float]] = {}
    for what, labels, value in answer:
        figure = what.partition(":")[0]
        if (role := _role(Point(what, labels, value), load)) is not None:
            figures.setdefault(role, {})[figure] = value
    return {role: PoolLoad(**means) for role, means in figures.items()}


def _role(point: Point, load: Load) -> Role | None:
    """The role that a figure belongs to, by its name or by the role's label."""
    named = point.what.partition(":")[2]
    return Role(named) if named else role_of(load, point.labels.get(load.role_label or ""))


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
        selection: Selection = EVERYTHING,
        ca_file: str | None = None,
        token_file: str | None = None,
    ) -> None:
        self._url = url.rstrip("/")
        self._ca_file, self._token_file = ca_file, token_file
        self._preset = preset
        self._quantities = promql.quantities(channels(preset, model, selection))
        self._gauges = gauges(preset, model, selection)
        alive = preset.alive
        self._alive = Series(name=alive.name, where=matched(alive, preset, model, selection))
        self._sought = promql.selector(self._alive.name, self._alive.where)
        self._model = preset.model(model)
        requests = next(c for c in self._quantities[Quantity.REQUESTS] if not c.gauge)
        self._counter = Series(name=requests.name, where=requests.where)
        self._timeout_s = timeout_s
        self._fresh_s = fresh_s
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="promql")
        self._client: Any = None
        self._queries = 0
        self._failures = 0
        self._engines: Mapping[Role, int] = {}
        self._counted_s = float("-inf")

    async def collect(self, start_s: float, end_s: float) -> Measured:
        """The interval, or why it could not be measured."""
        start_s, end_s = promql.on_grid(start_s, end_s)
        window = promql.window(end_s - start_s, self._fresh_s)
        try:
            async with asyncio.timeout(self._timeout_s):
                answer = await self._points(promql.coverage(self._alive, self._counter, window), end_s)
                coverage = Coverage(**{point.what: point.value for point in answer})
                health = coverage_health(coverage, end_s, self._fresh_s, self._sought)
                if health.status is not HealthStatus.OK:
                    return unmeasured(start_s, end_s, health.status, health.detail)
                increases, load, past = await asyncio.gather(
                    self._increases(window, end_s),
                    self._load(window, end_s),
                    self._followed(window, start_s, end_s),
                )
        except (SourceDownError, TimeoutError) as error:
            return unmeasured(start_s, end_s, HealthStatus.DOWN, self._failed(error))
        # The parts of one process contradict themselves together.
        doubt = past.doubts.get(Quantity.REQUESTS)
        doubts = dict.fromkeys(self._quantities, doubt) if doubt else {}
        if coverage.unread > 0:
            doubts[Quantity.REQUESTS] = f"{coverage.unread:g} targets of {self._sought} cannot be scraped"
        knows_attainment = self._preset.met is not None
        measured = assemble(
            start_s,
            end_s,
            increases,
            load,
            doubts,
            knows_attainment=knows_attainment,
            in_flight=past.in_flight,
        )
        return with_counted(measured, increases, past.steps)

    async def probe(self) -> Health:
        """`ok` if Prometheus answers and has this model's series."""
        try:
            async with asyncio.timeout(self._timeout_s):
                found = await self._points(f"count({self._sought})", None)
                others = [] if found else await self._points(promql.anything(ALIVE), None)
        except (SourceDownError, TimeoutError) as error:
            return Health(status=HealthStatus.DOWN, detail=self._failed(error))
        if not found:
            detail = f"Prometheus has {absent(self._model, map(self._known, others))}; asked: {self._sought}"
            return Health(status=HealthStatus.STARTING, detail=detail)
        return Health(status=HealthStatus.OK)

    async def engines(self) -> Mapping[Role, int]:
        """Engines with a fresh sample; none where they are not told apart or Prometheus does not answer."""
        load, each = self._preset.load, tuple(one for one in self._gauges if one.figure == "running")
        if load is None or not load.running.engine:
            return {}
        now_s = asyncio.get_running_loop().time()
        if now_s - self._counted_s >= COUNTED_S:
            self._counted_s = now_s
            try:
                async with asyncio.timeout(self._timeout_s):
                    answer = await self._points(promql.engines(each, load, self._fresh_s), None)
            except (SourceDownError, TimeoutError) as error:
                self._failed(error)
                answer = []
            named = [(_role(point, load), int(point.value)) for point in answer]
            self._engines = {role: count for role, count in named if role is not None}
        return self._engines

    def status(self) -> dict[str, object]:
        """Address, queries and failures so far."""
        return {"url": redacted(self._url), "reads": self._queries, "failures": self._failures}

    async def close(self) -> None:
        """Let the threads go; what hangs ends by the client's timeout."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        if self._client is not None:
            self._client.close()

    async def _increases(self, window: promql.Window, end_s: float) -> dict[Quantity, Increase]:
        asked = [self._increase(parts, window, end_s) for parts in self._quantities.values()]
        found = zip(self._quantities, await asyncio.gather(*asked), strict=True)
        return {quantity: increase for quantity, increase in found if increase is not None}

    async def _increase(
        self, parts: tuple[Channel, ...], window: promql.Window, end_s: float
    ) -> Increase | None:
        """The plain difference; through the resets if there were any."""
        answer = await self._points(promql.increase(parts, window, through_resets=False), end_s)
        shown = {point.what for point in answer}
        if any(c.gauge and f"{c.part}:{index}" not in shown for index, c in enumerate(parts)):
            # Without what is in flight nothing tells arrivals from completions.
            return None
        increase, reset = increase_of(answer)
        if reset:
            answer = await self._points(promql.increase(parts, window, through_resets=True), end_s)
            increase, _ = increase_of(answer)
        return increase

    async def _followed(self, window: promql.Window, start_s: float, end_s: float) -> Past:
        """The samples behind the requests, one by one."""
        counters: dict[Group, list[tuple[float, float]]] = {}
        gauges: dict[Group, list[tuple[float, float]]] = {}
        for channel in self._quantities[Quantity.REQUESTS]:
            answer = await self._query(promql.samples(channel, window), end_s)
            (gauges if channel.gauge else counters).update(samples_of(answer, channel.quantity))
        return follow(counters, gauges, start_s, self._fresh_s)

    async def _load(self, window: promql.Window, end_s: float) -> dict[Role, PoolLoad]:
        if self._preset.load is None:
            return {}
        answer = await self._points(promql.load(self._gauges, self._preset.load, window), end_s)
        return loads_of(answer, self._preset.load)

    async def _points(self, query: str, at_s: float | None) -> list[Point]:
        return points(await self._query(query, at_s))

    def _query(self, query: str, at_s: float | None) -> Awaitable[Any]:
        """On a thread; in the queue where every thread still hangs from before, until the deadline."""
        loop = asyncio.get_running_loop()
        return loop.run_in_executor(self._threads, self._ask, query, at_s)

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
        presets = [preset for preset in PRESETS.values() if promql.spelt(preset.alive.name, name)]
        model = next(
            (point.labels[each.model_label] for each in presets if each.model_label in point.labels), ""
        )
        if not model or self._preset in presets:
            return f"{model} without these labels" if model == self._model else model
        return f"{model} (preset {presets[0].name})"

    def _failed(self, error: Exception) -> str:
        self._failures += 1
        why = str(error) or f"no answer within {self._timeout_s:g} s"
        return f"Prometheus at {redacted(self._url)}: {why}"
