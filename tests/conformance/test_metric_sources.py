"""Both sources of metrics on the same histories: the same numbers, resets and faults included.

A history has a time for every page that processes showed. One source reads the pages in memory; for the
other the same samples stand in the form in which a Prometheus answers, and a real Prometheus, which has them
all from its start, confirms that form. No clock is waited for. What sources do over HTTP is in
tests/actors/test_collector_sources.py.
"""

import time
from collections.abc import Mapping
from dataclasses import asdict
from itertools import groupby
from math import isnan, nan
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.utils import floatToGoString

from actors.collector.exposition import spellings
from actors.collector.interval import HealthStatus, Increase, Measured, latency
from actors.collector.pages import Answers
from actors.collector.presets import PRESETS
from actors.collector.prometheus_source import NOT_SCRAPING
from actors.collector.raw_samples import measured_of, raw_series, without_scrapers
from actors.collector.scrape import GatewayFleet, ScrapeSource
from actors.collector.series import ModelSeries
from actors.collector.tracker import Tracker
from actors.metric_collector import MetricCollector
from headway.config import HeadwayConfig
from headway.planning import Role
from tests.clocks import Clock
from tests.exporter import Exporter
from tests.prometheus_process import PrometheusProcess, fill
from tests.stores import MemoryStore
from tests.vllm_double import Metrics

pytestmark = pytest.mark.anyio

FRESH_S = 240.0


class Process(Exporter):
    """A process whose metrics are read in memory."""

    def __init__(self, model: str, instance: str) -> None:
        self.model, self.instance = model, instance
        self._make(CollectorRegistry())

    def restart(self) -> None:
        self._make(CollectorRegistry())


class History:
    """What processes showed at which times; `name` is the model's, and that of the first process."""

    def __init__(self, name: str, preset: str) -> None:
        self.name, self.preset = name, preset
        self.pages: list[tuple[float, str, str]] = []
        self.samples: dict[tuple[tuple[str, str], ...], list[tuple[float, float]]] = {}
        self.process = Process(name, name)

    def read(self, at_s: float, *others: Process) -> None:
        for process in (self.process, *others):
            self.show(at_s, process.instance, process.registry)

    def show(self, at_s: float, instance: str, registry: CollectorRegistry, **target: str) -> None:
        self.pages.append((at_s, instance, generate_latest(registry).decode()))
        found = [(s.name, s.labels, s.value) for family in registry.collect() for s in family.samples]
        for name, labels, value in [*found, ("up", {}, 1.0)]:
            metric = {"__name__": name, **labels, "job": "headway", "instance": instance, **target}
            self.samples.setdefault(tuple(metric.items()), []).append((at_s, value))

    def answer(self, end_s: float) -> list[dict[str, Any]]:
        """The samples up to then, as Prometheus answers a query for a range."""
        found = []
        for metric, samples in self.samples.items():
            values = [[at_s, floatToGoString(value)] for at_s, value in samples if at_s <= end_s]
            found += [{"metric": dict(metric), "values": values}] if values else []
        return found


HISTORIES: list[History] = []


def history(preset: str = "headway") -> Any:
    """The history that a function plays."""

    def played(play: Any) -> History:
        made = History(play.__name__, preset)
        play(made)
        HISTORIES.append(made)
        return made

    return played


class Shown:
    """The pages of a moment, without HTTP."""

    by_process, place, texts = False, "memory", {}

    def __init__(self) -> None:
        self.texts: Mapping[str, str] = {}

    async def metrics(self) -> Answers:
        return Answers(self.texts)

    async def requests(self, seconds: float) -> Answers:
        raise AssertionError(seconds)

    async def close(self) -> None:
        """Nothing is open."""


async def by_reads(past: History, start_s: float, end_s: float) -> Measured:
    series, shown, clock = ModelSeries(PRESETS[past.preset], past.name), Shown(), Clock()
    fleet = GatewayFleet(series, shown, clock=clock)
    source = ScrapeSource(Tracker(series, 1.0), fleet, MemoryStore(), clock=clock)
    for at_s, pages in groupby(past.pages, itemgetter(0)):
        if at_s <= end_s:
            clock.now_s, shown.texts = at_s, {instance: text for _, instance, text in pages}
            await source.read()
    return await source.collect(start_s, end_s)


async def by_samples(past: History, start_s: float, end_s: float, known_s: float | None = None) -> Measured:
    """Of the samples up to the interval's end, or up to another time."""
    series = ModelSeries(PRESETS[past.preset], past.name)
    answer = past.answer(end_s if known_s is None else known_s)
    raw, _ = without_scrapers(raw_series(answer, spellings(series.names), None))
    return measured_of(series, raw, (start_s, end_s), FRESH_S, {})


@pytest.fixture(params=[by_reads, by_samples], ids=lambda way: way.__name__)
def measure(request):
    """Measures an interval of a history."""
    return request.param


@history()
def traffic(past):
    past.read(0.0)
    past.process.serve([0.015, 0.03, 0.3] * 20, isl=200.0, gap=0.015, osl=4)
    past.read(5.0)
    past.process.arrive(1000.0)
    past.process.arrive(9000.0, model="other")
    past.process.end(0.4, [0.1], met=False, outcome="failed")
    past.read(10.0)


async def test_the_numbers_of_the_traffic(measure):
    found = await measure(traffic, 0.0, 10.0)
    assert found.health.status is HealthStatus.OK, found.health
    assert (found.requests, found.completed) == (61.0, 60.0)
    assert found.isl_tokens == pytest.approx((60 * 200 + 1000) / 61)
    assert (found.osl_tokens, found.attainment) == (4.0, pytest.approx(60 / 61))
    assert found.request_duration_s == pytest.approx(0.115 + 0.045)
    assert found.ttft_s.mean == pytest.approx((60 * 0.115 + 0.4) / 61)
    assert found.ttft_s.p50 == pytest.approx(0.02 + 0.03 * 10.5 / 20)
    assert found.ttft_s.p99 == pytest.approx(0.2 + 0.3 * (0.99 * 61 - 40) / 21)
    assert (found.itl_s.count, found.itl_s.mean) == (181.0, pytest.approx((180 * 0.015 + 0.1) / 181))


@history()
def lengths(past):
    past.read(0.0)
    past.process.serve([0.1] * 9, isl=0.015, osl=2)
    past.read(4.0)
    past.process.serve([0.1], isl=1.5, osl=2)
    past.read(10.0)


async def test_what_was_counted_of_the_requests(measure):
    """Arrivals by read, and the histogram of lengths: not their mean alone."""
    found = await measure(lengths, 0.0, 10.0)
    counted = found.counted
    assert counted is not None
    assert (counted.start_s, counted.completed) == (found.start_s, 10.0)
    gains = [(at_s - found.start_s, gain) for at_s, gain in counted.steps if gain]
    assert gains == [(pytest.approx(4.0), 9.0), (pytest.approx(10.0), 1.0)]
    of_input = counted.input_tokens
    assert {b: c for b, c in zip(of_input.bounds, of_input.counts, strict=False) if c} == {
        0.02: 9.0,
        2.0: 1.0,
    }
    assert of_input.mean == pytest.approx((9 * 0.015 + 1.5) / 10)


@history()
def three_intervals(past):
    past.process.serve([0.1] * 5)
    past.read(0.0)
    for end_s, count in ((10.0, 3), (20.0, 0), (30.0, 7)):
        past.process.serve([0.1] * count)
        past.read(end_s)


async def test_intervals_tile_and_zero_traffic_is_no_fault(measure):
    found = [await measure(three_intervals, end_s - 10.0, end_s) for end_s in (10.0, 20.0, 30.0)]
    assert [each.requests for each in found] == [3.0, 0.0, 7.0]
    quiet = found[1]
    assert (quiet.health.status, quiet.completed) == (HealthStatus.OK, 0.0)
    assert all(isnan(each) for each in (quiet.ttft_s.mean, quiet.ttft_s.p99, quiet.attainment))


@history()
def restarted(past):
    past.process.serve([0.3] * 20)
    past.read(0.0)
    past.process.serve([0.1] * 10)
    past.read(5.0)
    past.process.restart()
    past.read(6.0)
    past.process.serve([0.2] * 5)
    past.read(10.0)


async def test_a_restart_inside_the_interval_loses_nothing_that_was_read(measure):
    found = await measure(restarted, 0.0, 10.0)
    assert (found.requests, found.completed, found.osl_tokens) == (15.0, 15.0, 3.0)
    assert found.ttft_s.mean == pytest.approx((10 * 0.1 + 5 * 0.2) / 15)
    assert found.health.status is HealthStatus.OK


@history()
def missing(past):
    past.read(0.0)
    past.process.arrive(100.0)
    past.process.ended.labels(past.name, "ok").inc()
    past.read(10.0)
    past.process.serve([0.1, nan])
    past.read(20.0)


async def test_series_that_are_missing_and_nan_are_partial(measure):
    found = await measure(missing, 0.0, 10.0)
    assert found.health.status is HealthStatus.PARTIAL
    assert all(name in found.health.detail for name in ("osl", "duration", "ttft", "itl"))
    assert (found.requests, found.isl_tokens) == (1.0, 100.0)
    found = await measure(missing, 10.0, 20.0)
    assert found.health.status is HealthStatus.PARTIAL
    assert "ttft" in found.health.detail
    assert isnan(found.ttft_s.mean)
    assert found.requests == 2.0


@history()
def tried_again(past):
    past.process.serve([0.1] * 9, isl=0.5)
    past.process.arrive_again(2.0)
    past.read(0.0)
    past.process.serve([0.1] * 6, isl=0.1)
    past.read(4.0)
    for _ in range(2):
        past.process.arrive_again(1.0)
        past.process.end(0.1, [0.1])
    for _ in range(3):
        past.process.arrive_again(1.0)
    past.read(10.0)


async def test_repeats_are_no_requests(measure):
    found = await measure(tried_again, 0.0, 10.0)
    assert found.health.status is HealthStatus.OK, found.health
    assert (found.requests, found.repeats, found.completed, found.ended) == (6.0, 5.0, 8.0, 11.0)
    assert found.isl_tokens == pytest.approx(0.1)
    assert found.counted is not None
    assert sum(gain for _, gain in found.counted.steps) == pytest.approx(6.0)
    assert found.counted.input_tokens.mean == pytest.approx(0.1)


@history()
def loaded(past):
    for replica, running in (("a", 4.0), ("b", 2.0)):
        past.process.load("decode", replica, running=running, waiting=1.0, kv_usage=running / 10)
    past.process.load("prefill", "p", running=0.0, waiting=3.0, kv_usage=0.0)
    past.read(0.0)
    past.read(10.0)


async def test_the_load_of_pools(measure):
    found = (await measure(loaded, 0.0, 10.0)).load
    assert set(found) == {Role.DECODE, Role.PREFILL}
    assert (found[Role.DECODE].running, found[Role.DECODE].waiting) == pytest.approx((6.0, 2.0))
    assert found[Role.DECODE].kv_usage == pytest.approx(0.3)
    assert found[Role.PREFILL].waiting == pytest.approx(3.0)


@history("vllm")
def engines_that_count_no_arrivals(past):
    engine = Metrics(past.name)
    for at_s, ended, running, waiting in ((0.0, 10, 4, 0), (10.0, 5, 8, 6), (20.0, 9, 7, 0)):
        engine.success.inc(ended)
        engine.running.set(running)
        engine.waiting.set(waiting)
        engine.kv_usage.set(0.25)
        past.show(at_s, past.name, engine.registry)


async def test_arrivals_at_engines_that_count_none(measure):
    """What ended, and the change of what runs and waits, which may be negative."""
    grown = await measure(engines_that_count_no_arrivals, 0.0, 10.0)
    assert (grown.requests, grown.completed) == (15.0, 5.0)
    assert grown.load[Role.MIXED].kv_usage == pytest.approx(0.25)
    shrunk = await measure(engines_that_count_no_arrivals, 10.0, 20.0)
    assert (shrunk.requests, shrunk.completed) == (2.0, 9.0)


@history("vllm")
def a_prefill_and_a_decode_engine(past):
    both = Metrics(past.name), Metrics(past.name)
    for number in range(12):
        for name, engine, tokens in zip(("prefill-0", "decode-0"), both, (1, 11), strict=True):
            if number:
                engine.success.inc()
                engine.prompt.observe(150)
                engine.generated.observe(tokens)
                engine.ttft.observe(0.02)
                for _ in range(tokens - 1):
                    engine.itl.observe(0.01)
            engine.running.set(2)
            past.show(number, name, engine.registry)


@history("vllm")
def two_ports_of_a_pod(past):
    registry = CollectorRegistry()
    Gauge("vllm:num_requests_running", "x", ("model_name",), registry=registry).labels(past.name).set(1)
    for at_s in (0.0, 10.0):
        for port in range(2):
            past.show(at_s, f"vllm-0:{port}", registry, pod="vllm-0", namespace="ports")
        for place in range(2):
            group = {"leaderworkerset_sigs_k8s_io_group_key": "a1b2"}
            past.show(at_s, f"lws-0:{place}", registry, pod=f"lws-0-{place}", namespace="ports", **group)


async def test_a_pod_and_a_group_of_pods_are_one_engine_whatever_ports_they_have(prometheus):
    collector = collector_of(two_ports_of_a_pod.name, prometheus, 15.0, preset="vllm")
    try:
        assert await collector.engines() == {"mixed": 2}
    finally:
        await collector.close()


@history("vllm")
def two_replicas_of_two_ranks(past):
    for rank in ("0", "1"):
        registry = CollectorRegistry()
        running = Gauge("vllm:num_requests_running", "x", ("model_name", "engine"), registry=registry)
        running.labels(past.name, rank).set(1)
        for at_s in (0.0, 10.0):
            for host in range(2):
                past.show(at_s, f"10.0.0.{host}:800{rank}", registry)


async def test_a_replica_has_each_rank_once_where_no_pod_is_named(prometheus):
    collector = collector_of(two_replicas_of_two_ranks.name, prometheus, 15.0, preset="vllm")
    try:
        assert await collector.engines() == {"mixed": 2}
    finally:
        await collector.close()


@history("vllm")
def older_and_newer_names(past):
    registry, labels = CollectorRegistry(), ("model_name", "engine")

    gaps, newer = (
        Histogram(f"vllm:{name}_seconds", "x", labels, buckets=(0.01, 1.0), registry=registry)
        for name in ("time_per_output_token", "inter_token_latency")
    )
    usage, running, waiting = (
        Gauge(f"vllm:{name}", "x", labels, registry=registry)
        for name in ("gpu_cache_usage_perc", "num_requests_running", "num_requests_waiting")
    )
    ended = Counter("vllm:request_success", "x", labels, registry=registry).labels(past.name, "0")
    for name, share in (("0", 0.25), ("1", 0.75)):
        usage.labels(past.name, name).set(share)
    running.labels(past.name, "0").set(4)
    waiting.labels(past.name, "0").set(0)
    for histogram, name in ((gaps, "0"), (gaps, "1"), (newer, "0")):
        histogram.labels(past.name, name)
    past.show(0.0, past.name, registry)
    ended.inc(5)
    for histogram, name, times in ((gaps, "0", 8), (newer, "0", 8), (gaps, "1", 2)):
        for _ in range(times):
            histogram.labels(past.name, name).observe(0.005 if name == "0" else 0.5)
    past.show(10.0, past.name, registry)


async def test_older_names_of_vllm_count_and_engines_that_show_both_count_once(measure):
    found = await measure(older_and_newer_names, 0.0, 10.0)
    assert (found.itl_s.count, found.itl_s.mean) == (10.0, pytest.approx(0.104))
    assert found.load[Role.MIXED].kv_usage == pytest.approx(0.5)
    assert found.health.detail == "no data for isl, osl, duration, ttft"


@history()
def several_gateways(past):
    second, other = Process(past.name, "second"), Process("another", "third")
    for each in (past.process, second, other):
        each.load("decode", "d0", 4.0, 1.0, 0.5)
    other.load("decode", "d1", 9.0, 9.0, 0.9)
    past.read(0.0, second, other)
    past.process.serve([0.1] * 30)
    second.serve([0.1] * 20)
    other.serve([0.1] * 90)
    past.read(10.0, second, other)
    second.restart()
    second.load("decode", "d0", 4.0, 1.0, 0.5)
    second.serve([0.1] * 15)
    past.process.serve([0.1] * 10)
    past.read(20.0, second, other)


async def test_gateways_of_one_model_add_up_and_see_the_same_replicas():
    found = await by_samples(several_gateways, 0.0, 10.0)
    assert (found.requests, found.completed, found.health.status) == (50.0, 50.0, HealthStatus.OK)
    load = found.load[Role.DECODE]
    assert (load.running, load.waiting, load.kv_usage) == pytest.approx((4.0, 1.0, 0.5))
    # One of them began anew: what it counted before is in no later interval, and none is lost.
    found = await by_samples(several_gateways, 10.0, 20.0)
    assert (found.requests, found.health.status) == (25.0, HealthStatus.OK)


class FilledPrometheus(PrometheusProcess):
    """Has all histories from its start, and the second 0 of them is that start."""

    def __init__(self, folder: Path) -> None:
        # All of it has been: a sample that is not yet shows that clocks differ.
        self.began_s = float(int(time.time()) - 120)
        lines = []
        for metric, samples in (each for past in HISTORIES for each in past.samples.items()):
            (_, name), *labels = metric
            written = ",".join(f'{key}="{value}"' for key, value in labels)
            lines += [(at_s, f"{name}{{{written}}} {floatToGoString(value)}") for at_s, value in samples]
        lines.sort(key=itemgetter(0))
        fill(folder, (f"{line} {self.began_s + at_s}" for at_s, line in lines))
        super().__init__(folder)


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory):
    process = FilledPrometheus(tmp_path_factory.mktemp("prometheus"))
    yield process
    process.stop()


def collector_of(name: str, prometheus: FilledPrometheus, end_s: float, **metrics: Any) -> MetricCollector:
    source = {"source": "prometheus", "url": prometheus.url, "timeout_s": 240.0, "stale_after_s": FRESH_S}
    config = HeadwayConfig.model_validate({"model": name, "metrics": source | metrics})
    return MetricCollector(
        config.model_dump_json(), "", MemoryStore(), clock=lambda: prometheus.began_s + end_s
    )


def figures(measured: Measured) -> dict[str, Any]:
    """All that does not depend on when it was."""
    return {
        "status": str(measured.health.status),
        **{name: getattr(measured, name) for name in ("requests", "completed", "isl_tokens", "osl_tokens")},
        **{
            name: getattr(measured, name)
            for name in ("repeats", "attainment", "request_duration_s", "cached_tokens")
        },
        **{f"ttft.{name}": value for name, value in asdict(measured.ttft_s).items()},
        **{f"itl.{name}": value for name, value in asdict(measured.itl_s).items()},
        **{
            f"{role}.{name}": value
            for role, load in measured.load.items()
            for name, value in asdict(load).items()
        },
    }


@pytest.mark.parametrize("past", HISTORIES, ids=lambda past: past.name)
async def test_a_real_prometheus_answers_so(prometheus, past):
    for end_s in sorted({at_s + later_s for at_s, _, _ in past.pages if at_s >= 10.0 for later_s in (0, 10)}):
        collector = collector_of(past.name, prometheus, end_s, preset=past.preset)
        try:
            found = await collector.collect(10.0)
        finally:
            await collector.close()
        if found.health.detail == NOT_SCRAPING:
            # By what samples are late it would begin before the history.
            assert end_s <= 20.0
            continue
        # Of an interval that is known whole, which may have ended a while ago.
        span_s = found.start_s - prometheus.began_s, found.end_s - prometheus.began_s
        assert end_s - 20.0 <= span_s[1] <= end_s
        assert figures(found) == pytest.approx(figures(await by_samples(past, *span_s, end_s)), nan_ok=True)


async def test_a_request_that_passes_two_engines_counts_once(prometheus):
    """Where engines are read one by one: tests/actors/test_collector_engines.py."""
    roles = {"prefill": {"instance": "prefill-0"}, "decode": {"instance": "~decode-.*"}}
    metrics = {"preset": "vllm", "role_labels": roles}
    # A read later, when it is known where the interval ends.
    collector = collector_of(a_prefill_and_a_decode_engine.name, prometheus, 11.0, **metrics)
    try:
        found = await collector.collect(10.0)
        assert await collector.engines() == {"prefill": 1, "decode": 1}
    finally:
        await collector.close()
    assert (found.requests, found.completed) == pytest.approx((10.0, 10.0))
    assert (found.isl_tokens, found.osl_tokens) == pytest.approx((150.0, 11.0))
    assert (found.ttft_s.count, found.itl_s.count) == (10.0, 100.0)
    assert {role: load.running for role, load in found.load.items()} == {Role.PREFILL: 2.0, Role.DECODE: 2.0}


def test_our_quantiles_are_those_of_promql(prometheus):
    """The rules of `histogram_quantile`, taken from Prometheus itself."""
    buckets = (
        f'headway_time_to_first_token_seconds_bucket{{model="{traffic.name}"}} @ {prometheus.began_s + 10.0}'
    )
    pairs = [(float(row["metric"]["le"]), float(row["value"][1])) for row in prometheus.query(buckets)]
    ours = latency(Increase(count=61.0, total=1.0, buckets=tuple(sorted(pairs))))
    for q, own in ((0.5, ours.p50), (0.95, ours.p95), (0.99, ours.p99)):
        (theirs,) = prometheus.query(f"histogram_quantile({q}, sum by (le) ({buckets}))")
        assert own == pytest.approx(float(theirs["value"][1]))


async def test_a_model_that_is_there_is_ready_and_of_another_those_there_are_named(prometheus):
    async def said(name: str, **metrics: Any) -> tuple[bool, str]:
        collector = collector_of(name, prometheus, 10.0, **metrics)
        try:
            return await collector.ready()
        finally:
            await collector.close()

    assert await said(traffic.name) == (True, "")
    assert "no series of the model nobody, only of another, lengths" in (await said("nobody"))[1]
    hidden = {"labels": {"namespace": "llm"}, "preset": "sglang"}
    told = (await said("nobody", **hidden))[1]
    assert "no `sglang:num_running_reqs`; " in told
    assert "begin with `headway_`: preset headway (only of another, " in told
    assert "without these labels" in told
