"""Engines read one by one, without a Prometheus: their sums, and what happens to them. Real HTTP servers."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from math import isnan
from typing import Any

import pytest
from aiohttp import web

from actors.collector.discovery import Discovery, DiscoveryError, resolved
from actors.collector.interval import HealthStatus, PoolLoad
from actors.collector.presets import PRESETS
from actors.metric_collector import MetricCollector
from headway.config import HeadwayConfig
from headway.config.live import EngineAddresses
from headway.planning import Role
from tests.clocks import Clock
from tests.patience import PATIENCE_S, with_longer_limits
from tests.ports import free_port
from tests.stores import MemoryStore

pytestmark = pytest.mark.anyio

STALE_S, INTERVAL_S = 30.0, 20.0


@dataclass
class Engine:
    """One vLLM server's metrics, at an address that it keeps."""

    port: int = field(default_factory=free_port)
    model: str = "tiny"
    status: int = 200
    hangs: bool = False
    root: str = ""
    """The path of the weights, for one that lists its models."""
    runner: web.AppRunner | None = None

    def __post_init__(self) -> None:
        self.began_anew()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def began_anew(self) -> None:
        self.ended, self.running, self.waiting, self.tokens, self.first = 0, 0, 0, 0, 0

    def serve(self, requests: int, isl: int = 100) -> None:
        """Requests that come and end."""
        self.ended += requests
        self.first += requests
        self.tokens += requests * isl

    def text(self) -> str:
        labels = f'{{model_name="{self.model}",engine="0"}}'
        figures = {
            "num_requests_running": self.running,
            "num_requests_waiting": self.waiting,
            "kv_cache_usage_perc": 0.1 * self.running,
            "request_success_total": self.ended,
            "request_prompt_tokens_count": self.ended,
            "request_prompt_tokens_sum": self.tokens,
            "request_generation_tokens_count": self.ended,
            "request_generation_tokens_sum": 20 * self.ended,
            "e2e_request_latency_seconds_count": self.ended,
            "e2e_request_latency_seconds_sum": 2.0 * self.ended,
            "time_to_first_token_seconds_count": self.first,
            "time_to_first_token_seconds_sum": 0.5 * self.first,
            "inter_token_latency_seconds_count": 19 * self.ended,
            "inter_token_latency_seconds_sum": 0.19 * self.ended,
        }
        return "# HELP something else\n" + "".join(
            f"vllm:{name}{labels} {value}\n" for name, value in figures.items()
        )

    async def show(self, _: web.Request) -> web.StreamResponse:
        while self.hangs:
            await asyncio.sleep(0.05)
        return web.Response(status=self.status, text=self.text())

    async def models(self, _: web.Request) -> web.StreamResponse:
        return web.json_response({"data": [{"id": self.model, "root": self.root}]})

    async def start(self) -> None:
        app = web.Application()
        app.router.add_get("/metrics", self.show)
        if self.root:
            app.router.add_get("/v1/models", self.models)
        self.runner = web.AppRunner(app, shutdown_timeout=0.01)
        await self.runner.setup()
        await web.TCPSite(self.runner, "127.0.0.1", self.port, reuse_address=True).start()

    async def stop(self) -> None:
        if self.runner is not None:
            await self.runner.cleanup()
            self.runner = None


@asynccontextmanager
async def fleet(
    count: int = 3,
    store: MemoryStore | None = None,
    timeout_s: float = PATIENCE_S,
    **engines: Sequence[Engine],
) -> AsyncIterator[tuple[Sequence[Engine], MetricCollector, Clock]]:
    """Servers, by role or all mixed, and a collector that has read them once."""
    by_role = engines or {"mixed": [Engine() for _ in range(count)]}
    every = [engine for each in by_role.values() for engine in each]
    for engine in every:
        await engine.start()
    clock = Clock()
    collector = collector_of(by_role, store or MemoryStore(), clock, timeout_s)
    try:
        await collector.collect(INTERVAL_S)
        yield every, collector, clock
    finally:
        await collector.close()
        for engine in every:
            await engine.stop()


def collector_of(
    by_role: Mapping[str, Sequence[Engine]],
    store: MemoryStore,
    clock: Clock,
    timeout_s: float = PATIENCE_S,
    **overrides: object,
) -> MetricCollector:
    config = HeadwayConfig.model_validate(
        {
            "model": "tiny",
            "pools": {role: {} for role in by_role},
            "engine": {"kind": "external", "profile": None},
            "metrics": {
                "source": "engines",
                "preset": "vllm",
                "overrides": overrides,
                # Reads in the background would make the test's clock matter.
                "scrape_interval_s": 3600.0,
                "timeout_s": timeout_s,
                "stale_after_s": STALE_S,
                "engines": {
                    role: {"addresses": [engine.address for engine in each]} for role, each in by_role.items()
                },
            },
        }
    )
    return MetricCollector(config.model_dump_json(), "headway", store, clock)


async def interval(collector: MetricCollector, clock: Clock) -> Any:
    clock.now_s += INTERVAL_S
    return await collector.collect(INTERVAL_S)


async def test_the_engines_add_up():
    async with fleet() as (engines, collector, clock):
        assert await collector.ready() == (True, "")
        for number, engine in enumerate(engines, start=1):
            engine.serve(10 * number, isl=100 * number)
            engine.running, engine.waiting = number, 1
        found = await interval(collector, clock)
        assert (found.requests, found.completed, found.health.status) == (69.0, 60.0, HealthStatus.OK)
        assert found.isl_tokens == pytest.approx((10 * 100 + 20 * 200 + 30 * 300) / 60)
        assert (found.osl_tokens, found.ttft_s.mean) == (20.0, pytest.approx(0.5))
        assert found.itl_s.mean == pytest.approx(0.01)
        assert found.load == {Role.MIXED: PoolLoad(running=6.0, waiting=3.0, kv_usage=pytest.approx(0.2))}
        assert found.counted is not None
        assert (await collector.status())["url"] == "3 of 3 engines answer"
        assert await collector.engines() == {"mixed": 3}


async def test_an_engine_that_is_gone_is_unknown_at_first_and_then_no_loss_of_demand():
    async with fleet() as (engines, collector, clock):
        for engine in engines:
            engine.serve(50)
            engine.running = 8
        await interval(collector, clock)
        await engines[0].stop()
        for engine in engines[1:]:
            engine.serve(30)
        found = await interval(collector, clock)
        assert found.health.status is HealthStatus.PARTIAL
        assert isnan(found.requests)
        assert engines[0].address in found.health.detail
        assert await collector.engines() == {"mixed": 3}
        for engine in engines[1:]:
            engine.serve(30)
        found = await interval(collector, clock)
        assert (found.requests, found.health.status) == (60.0, HealthStatus.OK)
        assert found.load[Role.MIXED].running == pytest.approx(16.0)
        assert await collector.engines() == {"mixed": 2}
        engines[0].began_anew()
        await engines[0].start()
        engines[0].serve(5)
        assert (await interval(collector, clock)).requests == 5.0


@pytest.mark.parametrize("fault", ["hangs", "status", "text"])
def test_an_engine_that_is_silent_is_unknown_for_longer(fault: str):
    limits_s = (0.2, 2.0, 20.0) if fault == "hangs" else (PATIENCE_S,)
    with_longer_limits(lambda limit_s: asyncio.run(intervals_without_one(fault, limit_s)), *limits_s)


async def intervals_without_one(fault: str, limit_s: float) -> None:
    async with fleet(timeout_s=limit_s) as (engines, collector, clock):
        for engine in engines:
            engine.serve(50)
        await interval(collector, clock)
        sick = engines[0]
        if fault == "hangs":
            sick.hangs = True
        elif fault == "status":
            sick.status = 500
        else:
            sick.text = lambda: "vllm:num_requests_running{ 1\n"
        for _ in range(3):
            engines[1].serve(30)
            found = await interval(collector, clock)
            assert isnan(found.requests)
            assert found.isl_tokens == pytest.approx(100.0)
        if fault == "hangs":
            sick.hangs = False
            sick.serve(90)
            engines[1].serve(30)
            # What came in all four intervals is spread over them.
            found = await interval(collector, clock)
            assert (found.health.status, found.requests) == (HealthStatus.OK, pytest.approx(30 + 90 / 4))


async def test_an_engine_that_hangs_after_a_failure_holds_up_no_read(monkeypatch: pytest.MonkeyPatch):
    async with fleet() as (engines, collector, clock):
        sick = engines[0]
        sick.status = 500
        assert isnan((await interval(collector, clock)).requests)
        monkeypatch.setattr("actors.collector.engines.LATE_S", 0.05)
        sick.hangs = True
        engines[1].serve(30)
        found = await interval(collector, clock)
        assert isnan(found.requests)
        # It was not waited for until it had failed once more.
        assert "HTTP status 500" in found.health.detail
        sick.hangs, sick.status = False, 200
        async with asyncio.timeout(PATIENCE_S):
            while "not read" in (found := await interval(collector, clock)).health.detail:
                await asyncio.sleep(0.05)
        assert found.health.status is HealthStatus.OK


@pytest.mark.parametrize("ordered", [2, 3])
def test_an_engine_that_was_ordered_away_is_not_missed(ordered: int):
    async def story():
        async with fleet() as (engines, collector, clock):
            engines[0].running = 4
            await interval(collector, clock)
            await engines[0].stop()
            for engine in engines[1:]:
                engine.serve(5)
            clock.now_s += INTERVAL_S
            found = await collector.collect(INTERVAL_S, None, {Role.MIXED: ordered})
            return found, await collector.engines()

    found, there = asyncio.run(story())
    assert there == {"mixed": ordered}
    assert found.health.status is (HealthStatus.OK if ordered == 2 else HealthStatus.PARTIAL)
    assert found.requests == 10.0 if ordered == 2 else isnan(found.requests)


async def test_none_of_them_is_down():
    async with fleet(2) as (engines, collector, clock):
        for engine in engines:
            await engine.stop()
        found = await interval(collector, clock)
        assert found.health.status is HealthStatus.DOWN
        assert "none of 2 engines answers" in found.health.detail
        assert isnan(found.requests)
        assert not (await collector.ready())[0]


async def test_another_model_is_no_model():
    async with fleet(mixed=[Engine(model="other")]) as (_, collector, clock):
        ok, reason = await collector.ready()
        assert (ok, reason) == (False, "1 engine: no series of the model tiny, only of other")
        assert await collector.engines() == {}
        assert (await interval(collector, clock)).health.status is HealthStatus.STARTING


@pytest.mark.parametrize(
    ("overrides", "names"),
    [
        ({"model": "~tiny|tiny-(a|b)"}, ["tiny", "tiny-a"]),
        ({"any_case": True}, ["Tiny", "tiny"]),
        ({"model": "served"}, ["served", "served"]),
        ({"prefix": "vllm:", "model_label": "model_name"}, ["tiny", "tiny"]),
    ],
)
async def test_engines_are_found_by_all_names_of_their_model(overrides: dict[str, Any], names: list[str]):
    engines = [Engine(model=name) for name in names]
    for engine in engines:
        await engine.start()
    clock = Clock()
    collector = collector_of({"mixed": engines}, MemoryStore(), clock, **overrides)
    try:
        await collector.collect(INTERVAL_S)
        for engine in engines:
            engine.serve(10)
        found = await interval(collector, clock)
        assert (found.requests, found.health.detail) == (20.0, "")
        assert await collector.engines() == {"mixed": 2}
    finally:
        await collector.close()
        for engine in engines:
            await engine.stop()


async def test_an_engine_of_another_model_is_not_counted_as_a_replica():
    async with fleet(mixed=[Engine(), Engine(model="other")]) as (_, collector, _):
        assert (await collector.status())["url"] == "2 of 2 engines answer, 1 replica of tiny"


async def test_prefill_and_decode_engines_count_a_request_once():
    prefill, decode = [Engine(), Engine()], [Engine()]
    async with fleet(prefill=prefill, decode=decode) as (_, collector, clock):
        for engine in prefill:
            engine.serve(20)
            engine.running, engine.waiting = 1, 2
        decode[0].serve(36)
        decode[0].running = 4
        found = await interval(collector, clock)
        # 36 have ended, 6 are in prefill engines and 4 in the decode engine.
        assert (found.requests, found.completed) == (46.0, 36.0)
        assert (found.ttft_s.count, found.itl_s.count) == (40.0, 36.0 * 19)
        assert found.load[Role.PREFILL].waiting == 4.0
        assert found.load[Role.DECODE].running == 4.0


async def test_one_engine_that_lists_its_models_says_what_all_serve():
    mixed = [Engine(), Engine(), Engine(root="/models/Llama-3.1-8B")]
    async with fleet(mixed=mixed) as (_, collector, _):
        assert (await collector.told()).models == ("/models/Llama-3.1-8B", "tiny")


async def test_every_address_of_a_name_is_an_engine_and_a_failing_look_up_changes_nothing():
    answers: list[Any] = [["10.0.0.1:8000"], ["10.0.0.1:8000", "[fd00::2]:8000"], DiscoveryError("no"), []]
    clock = Clock()

    async def names(_: EngineAddresses, timeout_s: float) -> Mapping[str, Mapping[str, str]]:
        answer = answers.pop(0)
        if isinstance(answer, DiscoveryError):
            raise answer
        return {address: {} for address in answer}

    engines = {Role.DECODE: EngineAddresses(dns="vllm:8000", addresses=("http://a:1/x",))}
    found = Discovery(engines, names, timeout_s=1.0, clock=clock, names=names)
    given, one, two = "http://a:1/x/metrics", "http://10.0.0.1:8000/metrics", "http://[fd00::2]:8000/metrics"
    for expected, fault in (([one], ""), ([one, two], ""), ([one, two], "no"), ([], "")):
        assert await found.engines() == {address: {"role": "decode"} for address in (given, *expected)}
        assert await found.engines() == {address: {"role": "decode"} for address in (given, *expected)}
        assert "".join(found.faults.values()) == fault
        clock.now_s += 10.0


async def test_a_clock_that_was_set_back_does_not_keep_names_from_being_looked_up():
    clock, asked = Clock(10_000.0), []

    async def names(_: EngineAddresses, timeout_s: float) -> Mapping[str, Mapping[str, str]]:
        asked.append(clock.now_s)
        return {}

    engines = {Role.DECODE: EngineAddresses(dns="vllm:8000")}
    found = Discovery(engines, names, timeout_s=1.0, clock=clock, names=names)
    for clock.now_s in (10_000.0, 6_400.0, 6_401.0):
        await found.engines()
    assert asked == [10_000.0, 6_400.0]


async def test_names_are_resolved():
    assert "127.0.0.1:80" in await resolved(EngineAddresses(dns="localhost:80"), PATIENCE_S)
    with pytest.raises(DiscoveryError, match=r"no\.such\.name\.invalid:80"):
        await resolved(EngineAddresses(dns="no.such.name.invalid:80"), PATIENCE_S)


@pytest.mark.parametrize(
    ("address", "metrics"),
    [
        ("a:1", "https://a:1/prometheus/metrics"),
        ("http://a:1/", "http://a:1/prometheus/metrics"),
        ("http://a/metrics", "http://a/metrics"),
        ("http://a/x?key=1", "http://a/x/prometheus/metrics?key=1"),
    ],
)
async def test_addresses(address: str, metrics: str):
    given = {Role.MIXED: EngineAddresses(addresses=(address,), https=True)}
    path = PRESETS["trtllm"].path
    found = Discovery(given, resolved, timeout_s=PATIENCE_S, clock=Clock(), path=path)
    assert await found.engines() == {metrics: {"role": "mixed"}}
