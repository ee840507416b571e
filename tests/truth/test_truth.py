"""Whatever is attached: demand within 5 % of the truth, or a health that is not ok and names the cause."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from math import inf
from typing import Any

import numpy as np
import pytest

from actors.collector.engines import EngineFleet
from actors.collector.interval import HealthStatus, Measured
from actors.collector.presets import PRESETS
from actors.collector.series import GROUP, ModelSeries
from headway.planning import Role
from tests.truth.engines import MODEL, Engine, Sample, requests
from tests.truth.reading import BEGIN_S, Found, Pages, Target, read_engines, read_prometheus, write_blocks

UNTIL_S = 400.0
BORDERS_S = (60.0, 120.0, 180.0, 240.0, 300.0, 360.0)
CLOSE = 0.05
STEADY = 0.15
"""By how much the time between tokens may differ; those of an engine are all alike. While it fills up, what
ends shows fewer tokens than were made."""


@dataclass(frozen=True)
class Case:
    """A fleet, what is asked of it, and what has to be said where its demand cannot be known.

    `said` are words of a health that is not ok; empty where demand has to be true. `replicas` are those that
    the target would count.
    """

    name: str
    targets: Sequence[Target]
    preset: str = "vllm"
    said: str = ""
    note: str = ""
    """Words that stand beside a demand that is true."""
    replicas: int = 1
    ways: tuple[str, ...] = ("engines", "prometheus")
    settings: Mapping[str, Any] = field(default_factory=dict)
    always: bool = False
    """Whether not even one interval may be unknown."""
    late_s: float = 0.0
    """How long it takes until a Prometheus has a sample."""

    @property
    def engines(self) -> list[Engine]:
        return list({id(each.engine): each.engine for each in self.targets}.values())

    @property
    def itl_s(self) -> float:
        return self.engines[0].itl_s

    def truth(self, start_s: float, end_s: float) -> int:
        processes = {id(each.served): each for each in self.engines}
        return sum(each.arrived(start_s, end_s) for each in processes.values())


def engine(rate: Any = 2.0, seed: int = 1, **kwargs: Any) -> Engine:
    of_requests = {
        key: kwargs.pop(key)
        for key in ("isl", "osl", "ttft_s", "itl_s", "places", "abort", "counted")
        if key in kwargs
    }
    itl_s = of_requests.get("itl_s", 0.02)
    return Engine(served=requests(rate, seed, until_s=UNTIL_S, **of_requests), itl_s=itl_s, **kwargs)


def one(name: str, made: Engine, **kwargs: Any) -> Case:
    return Case(name, [Target(made)], **kwargs)


def fleet(count: int) -> list[Engine]:
    return [engine(seed=n, address=f"10.0.0.{n}:8000", pod=f"vllm-{n}") for n in range(1, count + 1)]


def both(*parts: Sequence[Sample]) -> list[Sample]:
    return [sample for part in parts for sample in part]


def of_one_page(label: str) -> Engine:
    """Two engines, or data-parallel ranks by vLLM's label `engine`, that this label tells apart."""
    first, second = (engine(seed=n, labels={label: str(n)}) for n in (0, 1))
    served = first.served
    joined = type(served)(
        **{
            name: np.concatenate([getattr(served, name), getattr(second.served, name)])
            for name in served.__dataclass_fields__
        }
    )
    return Engine(served=joined, odd=lambda at_s, _: both(first.page(at_s), second.page(at_s)))


def spoilt(name: str, value: float, from_s: float) -> Callable[[float, list[Sample]], list[Sample]]:
    """A page on which samples of this name show another value from a time on."""

    def odd(at_s: float, page: list[Sample]) -> list[Sample]:
        return [
            (each, labels, value if each.startswith(name) and from_s <= at_s < from_s + 60 else known)
            for each, labels, known in page
        ]

    return odd


def times(part: str, factor: float) -> Callable[[float, list[Sample]], list[Sample]]:
    """A page on which what has this in its name is in another unit."""

    def odd(_: float, page: list[Sample]) -> list[Sample]:
        return [(name, labels, value * factor if part in name else value) for name, labels, value in page]

    return odd


def twice(part: str) -> Callable[[float, list[Sample]], list[Sample]]:
    """A page on which what has this in its name comes once more, as of another."""

    def odd(_: float, page: list[Sample]) -> list[Sample]:
        return page + [
            (name, {**labels, "shard": "b"}, value) for name, labels, value in page if part in name
        ]

    return odd


PORTS = [engine(seed=n, address=f"10.0.0.1:800{n}", labels={"engine": str(n)}) for n in (0, 1)]
RANKED = engine(seed=3, system="sglang", labels={"_ranks": "8"})
TUNED = engine(rate=1.0, seed=9, system="picker", model="tuned")
PICKER = replace(
    engine(seed=8, system="picker", pod="epp-0"),
    odd=lambda at_s, page: both(page, TUNED.page(at_s)),
)
AGAIN = [
    replace(engine(seed=7), gone_s=100.0),
    replace(engine(seed=7), begun_s=105.0, address="10.0.0.9:8000", pod="vllm-9"),
]
BEGAN = "process_start_time_seconds"


def dated(made: Engine, **changes: Any) -> Engine:
    """It says when its process began."""

    def odd(at_s: float, page: list[Sample]) -> list[Sample]:
        return [*made.odd(at_s, page), (BEGAN, {}, BEGIN_S + made.begun_s)]

    return replace(made, odd=odd, **changes)


def begun_anew(made: Engine, at_s: float) -> Engine:
    """Another process at the same address from then on."""
    before, after = dated(made), dated(replace(made, begun_s=at_s))
    return replace(made, odd=lambda now_s, _: (after if now_s >= at_s else before).page(now_s))


def ranks(replicas: int, gone_s: float = inf) -> list[Engine]:
    """Replicas of two ranks, each rank at a port; the last replica goes."""
    return [
        replace(
            engine(seed=2 * host + rank, address=f"10.0.0.{host}:800{rank}", labels={"engine": str(rank)}),
            gone_s=gone_s if host == replicas - 1 else inf,
        )
        for host in range(replicas)
        for rank in (0, 1)
    ]


def group() -> list[Engine]:
    """A group of a LeaderWorkerSet: of two pods each has a rank, the third has no metrics."""
    pods = [replace(each, pod=f"lws-0-{place}") for place, each in enumerate(PORTS)]
    silent = engine(address="10.0.0.9:8000", pod="lws-0-2", begun_s=inf)
    return [
        replace(each, found={"pod": each.pod, GROUP: "a1b2", "worker": str(place)})
        for place, each in enumerate([*pods, silent])
    ]


def on(gpu: str, made: Engine) -> Target:
    return Target(replace(made, found={"gpu": gpu}), labels={"product": f"NVIDIA-{gpu.upper()}-80GB"})


TWICE, ANEW = engine(seed=13), begun_anew(engine(seed=14), 200.0)
NAMED = replace(
    engine(seed=11), odd=lambda at_s, page: both(page, engine(seed=12, rate=1.0, model="tuned").page(at_s))
)
CASES = [
    one("vllm", engine()),
    Case("vllm, four", [Target(each, after_s=n) for n, each in enumerate(fleet(4))], replicas=4),
    one("ranks of one page", of_one_page("engine")),
    Case("a port for each rank", [Target(each) for each in PORTS]),
    Case("a port for each rank, three times", [Target(each) for each in ranks(3)], replicas=3),
    Case(
        "a host with an engine at each port",
        [Target(replace(each, labels={"engine": "0"}, pod="")) for each in PORTS],
        replicas=2,
    ),
    Case(
        "a replica whose ranks are away",
        [Target(each) for each in ranks(2, gone_s=170.0)],
        said="not read: http://10.0.0.1:8000/metrics: refused; http://10.0.0.1:8001",
        ways=("engines",),
        settings={"ordered": lambda: {Role.MIXED: 2}},
    ),
    one("engines of one page that have a label of the reader's", of_one_page("instance"), ways=("engines",)),
    Case("a group of a LeaderWorkerSet", [Target(each) for each in group()]),
    Case(
        "a process at two addresses",
        [Target(dated(TWICE)), Target(dated(TWICE, address="10.0.0.1:9000"))],
        ways=("engines",),
        note="1 engine listed several times, counted once: http://10.0.0.1:9000",
    ),
    Case(
        "a process at two addresses, begun anew",
        [Target(ANEW), Target(replace(ANEW, address="10.0.0.1:9000"))],
        ways=("engines",),
        note="counted once",
    ),
    Case(
        "processes that began together",
        [Target(dated(each)) for each in (engine(), engine(seed=2, ttft_s=0.13, address="10.0.0.2:8000"))],
        replicas=2,
    ),
    one("other names at an engine", NAMED, note="requests carry other names (tuned)"),
    Case(
        "engines on two GPUs",
        [on(gpu, each) for gpu, each in zip(("a100", "h100"), fleet(2), strict=True)],
        replicas=2,
        note="several GPUs, planned for as one: 1 of A100, 1 of H100",
    ),
    Case(
        "two jobs scrape the pods",
        [
            Target(each, job, after_s=after_s)
            for each in fleet(2)
            for job, after_s in (("pods", 0.0), ("services", 2.0))
        ],
        replicas=2,
        ways=("prometheus",),
    ),
    Case(
        "a second job for 15 s",
        [
            Target(each, job, after_s=after_s, from_s=from_s, until_s=until_s)
            for each in fleet(2)
            for job, after_s, from_s, until_s in (("pods", 0.0, 0.0, inf), ("services", 2.0, 130.0, 145.0))
        ],
        replicas=2,
        ways=("prometheus",),
    ),
    Case(
        "two Prometheus servers",
        [
            Target(each, after_s=after_s, labels={"prometheus_replica": replica})
            for each in fleet(2)
            for replica, after_s in (("a", 0.0), ("b", 1.0))
        ],
        replicas=2,
        ways=("prometheus",),
    ),
    one("kserve", engine(system="kserve"), preset="kserve"),
    one("vllm before 0.11", engine(system="vllm-0.10")),
    one("ray serve llm", engine(system="ray", labels={"ReplicaId": "a"}), preset="ray-serve-llm"),
    one("nim", engine(system="nim"), preset="nim"),
    one("sglang", engine(system="sglang"), preset="sglang"),
    one("sglang, eight ranks", RANKED, preset="sglang"),
    one(
        "dynamo, lower case",
        engine(system="dynamo", model=MODEL.lower()),
        preset="dynamo",
        ways=("prometheus",),
    ),
    one("dynamo, case kept", engine(system="dynamo"), preset="dynamo", ways=("prometheus",)),
    Case(
        "other names at a picker",
        [Target(PICKER), Target(engine(rate=0.0, address="10.0.0.2:8000", pod="vllm-1"))],
        preset="llm-d",
        ways=("prometheus",),
        note="requests carry other names (tuned)",
    ),
    one("clients that leave", engine(rate=8.0, abort=0.3, osl=200)),
    one(
        "clients that leave, uncounted",
        engine(rate=8.0, abort=0.5, osl=200, counted=False),
        said="first token",
    ),
    one("ends scraped twice", engine(rate=4.0, odd=twice("request_success")), said="have a duration"),
    one("first tokens scraped twice", engine(rate=4.0, odd=twice("time_to_first")), said="first tokens came"),
    one(
        "inf among the gauges",
        replace(engine(), odd=spoilt("vllm:num_requests_running", inf, 130)),
        said="vllm:num_requests_running",
    ),
    one(
        "1e300 in a counter",
        replace(engine(), odd=spoilt("vllm:request_success_total", 1e300, 130)),
        said="vllm:request_success_total",
    ),
    one(
        "NaN in a histogram",
        replace(engine(), odd=spoilt("vllm:request_prompt_tokens", float("nan"), 130)),
        said="",
    ),
    Case(
        "a restart",
        [
            Target(replace(engine(seed=5), begun_s=90.0)),
        ],
        ways=("prometheus",),
    ),
    Case("rescheduled", [Target(each) for each in AGAIN]),
    Case(
        "scrapes that do not divide",
        [Target(each, every_s=17.0) for each in fleet(2)],
        replicas=2,
        ways=("prometheus",),
    ),
    Case(
        "a gap of 40 s",
        [Target(each, gap_s=(110.0, 150.0)) for each in fleet(2)],
        replicas=2,
        ways=("prometheus",),
    ),
    Case(
        "a Prometheus that has just begun",
        [Target(engine(rate=0.3), from_s=58.0)],
        ways=("prometheus",),
    ),
    Case(
        "samples 45 s late",
        [Target(each) for each in fleet(2)],
        replicas=2,
        ways=("prometheus",),
        late_s=45.0,
    ),
    Case(
        "ordered away",
        [Target(replace(each, gone_s=170.0) if place else each) for place, each in enumerate(fleet(2))],
        ways=("prometheus",),
        settings={"ordered": lambda: {Role.MIXED: 1}},
        always=True,
    ),
    one("embeddings", engine(rate=5.0, osl=0)),
    one("one token", engine(rate=5.0, osl=1)),
    one("answers of four minutes", engine(rate=1.0, osl=10_000, itl_s=0.024), said=""),
    one("speculative decoding", replace(engine(osl=300), accepted=3.0), note="(speculative decoding)"),
    one(
        "speculative decoding, a rate that rises",
        replace(engine(rate=lambda at_s: 1 + at_s / 40, osl=300), accepted=2.2),
        note="(speculative decoding)",
    ),
    one("times in ms", engine(odd=times("seconds_sum", 1e3)), said="s between tokens are no engine's"),
    one("KV usage in percent", engine(rate=4.0, odd=times("kv_cache", 100.0)), said="plausible in percent"),
    one("a growing queue", engine(rate=6.0, osl=200, places=8)),
    one("a rate that rises", engine(rate=lambda at_s: 1 + at_s / 40)),
]


def told(case: Case, measured: Sequence[Measured]) -> list[str]:
    """What is wrong: intervals of another demand at health ok, or a cause that no interval names."""
    wrong = []
    known = 0
    for interval in measured:
        span = interval.start_s - BEGIN_S, interval.end_s - BEGIN_S
        truth, health = case.truth(*span), interval.health
        if health.status is HealthStatus.OK and not abs(interval.requests - truth) <= max(2, CLOSE * truth):
            wrong.append(f"{span}: ok with {interval.requests:g} of {truth}")
        if health.status is HealthStatus.OK:
            known += 1
        if interval.itl_s.mean > 0 and not abs(interval.itl_s.mean / case.itl_s - 1) <= STEADY:
            wrong.append(f"{span}: {1e3 * interval.itl_s.mean:.3g} ms between tokens")
    lines = [f"{each.health.status}: {each.health.detail}" for each in measured]
    if case.said and not any(case.said in line for line in lines):
        wrong.append(f"{case.said!r} is not said: {lines}")
    if case.note and not any(case.note in line for line in lines):
        wrong.append(f"{case.note!r} is not said: {lines}")
    if silent := [each.silent for each in measured if each.silent]:
        wrong.append(f"hang: {silent}")
    if not case.said and known < len(measured) - (not case.always):
        wrong.append(f"not ok: {lines}")
    return wrong


@pytest.mark.parametrize(
    "case", [each for each in CASES if "engines" in each.ways], ids=lambda case: case.name
)
def test_engines_show_the_truth(case: Case):
    measured, found = read_engines(case.engines, case.preset, BORDERS_S, **case.settings)
    wrong = told(case, measured)
    assert not wrong, case.name
    assert sum(found.values()) == case.replicas


def test_what_looks_like_one_process_for_a_moment_is_several():
    """After the first request both have spent as much."""
    engines = [dated(each) for each in fleet(2)]
    measured, found = read_engines(engines, "vllm", BORDERS_S)
    assert found == {Role.MIXED: 2}
    for each in measured[2:]:
        truth = sum(one.arrived(each.start_s - BEGIN_S, each.end_s - BEGIN_S) for one in engines)
        assert each.requests == pytest.approx(truth, abs=2.0)


def test_a_process_whose_pages_are_read_apart_stays_one_once_they_were_alike():
    """Under load they hardly ever are: each is rendered a moment after the other."""
    first = dated(engine(60.0, seed=15))
    second = replace(first, address="10.0.0.1:9000", odd=lambda at_s, _: first.page(at_s + 0.03))
    measured, found = read_engines([first, second], "vllm", BORDERS_S)
    assert found == {Role.MIXED: 1}
    for each in measured[2:]:
        truth = first.arrived(each.start_s - BEGIN_S, each.end_s - BEGIN_S)
        assert each.requests == pytest.approx(truth, abs=6.0)


def test_a_worker_without_metrics_is_no_engine():
    async def status() -> Mapping[str, Any]:
        pages, series = Pages(group()), ModelSeries(PRESETS["vllm"], MODEL, (Role.MIXED,))
        fleet = EngineFleet(series, Found(group()), pages, stale_s=30.0, clock=lambda: BEGIN_S)
        await fleet.read()
        return fleet.status()

    found = asyncio.run(status())
    assert found["url"] == f"2 of 2 engines answer, 1 replica of {MODEL}"
    assert (found["unread"], found["engines"]["http://10.0.0.9:8000/metrics"]) == ("", "no metrics")


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory):
    from tests.prometheus_process import PrometheusProcess, need_prometheus

    need_prometheus()
    directory = tmp_path_factory.mktemp("prometheus")
    cases = {f"c{n}": case for n, case in enumerate(CASES) if "prometheus" in case.ways}
    write_blocks(directory, {name: (case.targets, UNTIL_S) for name, case in cases.items()})
    server = PrometheusProcess(directory, retention="100y")
    yield server
    server.stop()


@pytest.mark.parametrize(
    "case", [each for each in CASES if "prometheus" in each.ways], ids=lambda case: case.name
)
def test_a_prometheus_shows_the_truth(case: Case, prometheus):
    namespace = f"c{CASES.index(case)}"
    measured = read_prometheus(
        prometheus.url, namespace, case.preset, BORDERS_S, case.late_s, **case.settings
    )
    wrong = told(case, measured)
    assert not wrong, case.name


OUT_OF_TURN_S = (60.0, 120.0, 180.0, 185.0, 191.0, 251.0, 256.5, 316.0)


@pytest.mark.parametrize("name", ["vllm, four", "scrapes that do not divide", "samples 45 s late"])
def test_decisions_out_of_turn_count_each_request_once(name, prometheus):
    case = next(each for each in CASES if each.name == name)
    namespace = f"c{CASES.index(case)}"
    measured = read_prometheus(prometheus.url, namespace, case.preset, OUT_OF_TURN_S, case.late_s)
    known = [each for each in measured if each.health.status is HealthStatus.OK]
    assert len(known) >= len(measured) - 1
    assert all(after.start_s == before.end_s for before, after in pairwise(measured))
    span_s = known[0].start_s - BEGIN_S, known[-1].end_s - BEGIN_S
    truth = case.truth(*span_s)
    # At the two ends counts lie on a line between two samples.
    assert sum(each.requests for each in known) == pytest.approx(truth, abs=max(3.0, 0.02 * truth))


def stuck(ends: bool) -> Engine:
    """From 150 s on nothing comes. Of what waits then no counter shows an end: clients give up or wait on."""
    served = requests(8.0, 4, until_s=UNTIL_S, osl=200, places=8)
    early = served.arrival_s < 150.0
    parts = {each.name: getattr(served, each.name)[early] for each in fields(served)}
    late = parts["end_s"] > 150.0
    parts["first_s"] = np.where(parts["first_s"] > 150.0, inf, parts["first_s"])
    if not ends:
        parts["start_s"] = np.where(parts["start_s"] > 150.0, inf, parts["start_s"])
        parts["end_s"] = np.where(late, inf, parts["end_s"])
    return Engine(served=replace(served, **{**parts, "counted": ~late}))


@pytest.mark.parametrize("ends", [True, False])
def test_an_engine_that_drains_is_measured_and_work_without_end_is_named(ends: bool):
    measured, _ = read_engines([stuck(ends)], "vllm", BORDERS_S)
    after = [each for each in measured if each.start_s - BEGIN_S >= 180.0]
    # Nothing came. The tokens of what ran before go on where nothing ends.
    assert [each.requests for each in after] == [0.0] * 3
    assert all("that no counter shows as ended" in each.health.detail for each in after) is ends
    assert all((each.unended == 0.0) if ends else (each.unended > 100.0) for each in after)


def hanging(number: int, until_s: float = inf) -> Engine:
    """From 200 s on it does nothing for the requests that it has and those that still come, up to a time."""
    whole = engine(rate=4.0, seed=number, osl=300, address=f"10.0.0.{number}:8000", pod=f"vllm-{number}")

    def odd(at_s: float, page: list[Sample]) -> list[Sample]:
        if not 200.0 <= at_s < until_s:
            return page
        more = whole.arrived(200.0, at_s)
        return [
            (name, labels, value + more if name == "vllm:num_requests_waiting" else value)
            for name, labels, value in replace(whole, odd=lambda _, page: page).page(200.0)
        ]

    return replace(whole, odd=odd)


def test_an_engine_that_hangs_is_named_by_its_metrics(tmp_path):
    from tests.prometheus_process import PrometheusProcess

    engines = [*fleet(2), hanging(3, until_s=310.0)]
    write_blocks(tmp_path, {"hung": ([Target(each) for each in engines], UNTIL_S)})
    server = PrometheusProcess(tmp_path, retention="100y")
    try:
        measured = read_prometheus(server.url, "hung", "vllm", BORDERS_S)
    finally:
        server.stop()
    for each in (*read_engines(engines, "vllm", BORDERS_S)[0], *measured):
        hung = 210.0 < each.end_s - BEGIN_S <= 305.0
        assert len(each.silent) == hung, each.end_s - BEGIN_S
        assert all("10.0.0.3:8000" in part and work >= 20 for part, _, work in each.silent)
