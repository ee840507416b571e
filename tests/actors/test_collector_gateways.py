"""Several gateways of one application: added up, whoever of them dies, comes, or does not answer."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from ray.exceptions import ActorDiedError, ActorUnavailableError

from actors.collector.interval import HealthStatus
from actors.collector.pages import Page
from actors.collector.request_list import encode
from actors.metric_collector import MetricCollector
from headway.planning import Role
from serve_apps.gateway.request_log import RequestLog
from tests.actors.collector_cases import collecting
from tests.clocks import Clock
from tests.exporter import Exporter
from tests.patience import PATIENCE_S, with_longer_limits
from tests.stores import MemoryStore

pytestmark = pytest.mark.anyio


class Process(Exporter):
    """What one gateway counts, without a port."""

    def __init__(self, clock: Clock) -> None:
        self.log = RequestLog(clock)
        super().__init__(port=1)

    def start(self) -> None:
        self._make(CollectorRegistry())

    def come(self, requests: int) -> None:
        self.serve([0.1] * requests)
        for _ in range(requests):
            self.log.arrived(100)
            self.log.completed(100, 3)


@dataclass
class Gateways:
    """Serve's handle of several gateways; `faults` are those that do not answer."""

    clock: Clock
    running: dict[str, Process] = field(default_factory=dict)
    faults: dict[str, BaseException | None] = field(default_factory=dict)
    found: int = 0

    def begin(self, *names: str) -> None:
        self.running |= {name: Process(self.clock) for name in names}

    def broadcast(self, method: str, *args: float) -> "Gateways":
        self.asked = method, args
        return self

    async def _fetch_replica_results_async(self) -> list["Result"]:
        if not self.running:
            raise RuntimeError("no replica\nand more")
        return [Result(self, name, *self.asked) for name in self.running]


@dataclass
class Result:
    gateways: Gateways
    name: str
    method: str
    args: tuple[float, ...]

    async def get_async(self) -> Page:
        fault = self.gateways.faults.get(self.name, False)
        if fault is None:
            await asyncio.Event().wait()
        if isinstance(fault, BaseException):
            raise fault
        process = self.gateways.running[self.name]
        if self.method == "recent":
            return Page(self.name, "node", encode(process.log.recent(*self.args)).decode())
        return Page(self.name, "node", generate_latest(process.registry).decode())


@contextmanager
def serving(gateways: Gateways) -> Iterator[None]:
    def handle(_: str) -> Gateways:
        gateways.found += 1
        return gateways

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("actors.collector.pages.serve_handle", handle)
        yield


@dataclass
class World:
    clock: Clock
    gateways: Gateways
    collector: MetricCollector

    async def interval(self, **came: int) -> Any:
        """Ten seconds in which so many requests came to the gateways."""
        self.clock.now_s += 5.0
        for name, requests in came.items():
            self.gateways.running[name].come(requests)
        self.clock.now_s += 5.0
        return await self.collector.collect(10.0)


@asynccontextmanager
async def world(*names: str, store: MemoryStore | None = None, **metrics: Any) -> AsyncIterator[World]:
    """Gateways that were read once, and their collector."""
    clock = Clock()
    gateways = Gateways(clock)
    gateways.begin(*names)
    with serving(gateways):
        async with collecting("gateway", None, store, clock, **metrics) as collector:
            await collector.collect(10.0)
            yield World(clock, gateways, collector)


async def test_the_load_of_all_of_them_is_added_up():
    async with world("a", "b") as it:
        for name, replica in (("a", "r1"), ("b", "r1"), ("a", "r2"), ("b", "r2")):
            it.gateways.running[name].load("mixed", replica, running=3.0, waiting=1.0, kv_usage=0.5)
        it.gateways.running["a"].arrive(400.0)
        found = await it.interval(a=3, b=4)
        assert (found.health.status, found.requests, found.completed) == (HealthStatus.OK, 8.0, 7.0)
        assert found.isl_tokens == pytest.approx((7 * 100 + 400) / 8)
        assert (found.ttft_s.count, found.attainment) == (7.0, 1.0)
        assert len(found.traffic.arrival_s) == 7
        assert len(found.traffic.completed_output_tokens) == 7
        # Both show the same two replicas.
        assert found.load[Role.MIXED].running == pytest.approx(6.0)
        assert found.load[Role.MIXED].kv_usage == pytest.approx(0.5)
        assert (await it.collector.status())["url"] == "headway/Gateway"


async def test_one_that_begins_counts_from_its_first_request():
    async with world("a") as it:
        await it.interval(a=50)
        it.gateways.begin("b")
        found = await it.interval(a=5, b=400)
        assert (found.health.status, found.requests) == (HealthStatus.OK, 405.0)
        assert len(found.traffic.arrival_s) == 405


async def test_what_one_that_dies_had_counted_when_it_was_read_stays_counted():
    async with world("a", "b") as it:
        it.gateways.running["a"].come(2)
        it.gateways.running["b"].come(7)
        it.clock.now_s += 1.0
        await it.collector.ready()  # a read within the interval
        it.gateways.running["b"].come(1)  # which nobody reads any more
        it.gateways.faults["b"] = ActorDiedError()
        found = await it.interval(a=3)
        assert (found.health.status, found.requests, found.completed) == (HealthStatus.OK, 12.0, 12.0)
        # Its list died with it: a part of the requests must not pass for all.
        assert found.traffic is None
        assert found.counted is not None
        assert "is gone" in (await it.collector.status())["no_traffic"]
        del it.gateways.running["b"]
        it.gateways.begin("c")
        found = await it.interval(a=3, c=2)
        assert (found.requests, len(found.traffic.arrival_s)) == (5.0, 5)


@pytest.mark.parametrize("fault", [None, ActorUnavailableError("b is away", b"1" * 16), ValueError("x")])
def test_one_that_does_not_answer_makes_the_interval_unknown_and_the_next_whole(fault):
    limits_s = (0.1, 1.0, 10.0, 60.0) if fault is None else (PATIENCE_S,)
    with_longer_limits(lambda limit_s: asyncio.run(an_interval_without_one(fault, limit_s)), *limits_s)


async def an_interval_without_one(fault, limit_s: float) -> None:
    async with world("a", "b", timeout_s=limit_s) as it:
        it.gateways.faults["b"] = fault
        found = await it.interval(a=6, b=4)
        assert found.health.status is HealthStatus.PARTIAL
        assert found.health.detail.startswith("not read: 1 gateway of headway/Gateway: ")
        assert found.requests != found.requests  # NaN: a part is no demand
        assert found.traffic is None
        del it.gateways.faults["b"]
        found = await it.interval(a=1, b=2)
        # Of the 6 that it counted since it was read last, 20 s ago, the half is of this interval.
        assert (found.health.status, found.requests) == (HealthStatus.OK, pytest.approx(1 + 6 / 2))


def test_one_that_was_away_in_between_is_counted_whole():
    with_longer_limits(lambda limit_s: asyncio.run(a_read_without_one(limit_s)), 0.1, 1.0, 10.0, 60.0)


async def a_read_without_one(limit_s: float) -> None:
    async with world("a", "b", timeout_s=limit_s) as it:
        it.gateways.faults["b"] = None
        it.gateways.running["b"].come(3)
        await it.collector.ready()
        del it.gateways.faults["b"]
        found = await it.interval(a=1, b=2)
        assert (found.health.status, found.requests) == (HealthStatus.OK, 6.0)


async def test_none_that_answers_is_down_and_looked_for_again():
    async with world("a", "b") as it:
        for fault in (ActorUnavailableError("away", b"1" * 16), ActorDiedError()):
            it.gateways.faults = {"a": fault, "b": fault}
            found = await it.interval()
            assert found.health.status is HealthStatus.DOWN
        it.gateways.running.clear()
        found = await it.interval()
        assert found.health.detail == "the gateway at headway/Gateway: RuntimeError: no replica"
        it.gateways.begin("c")
        # Nothing was read when this one began.
        assert (await it.interval(c=2)).health.status is HealthStatus.STARTING
        assert (await it.interval(c=2)).requests == 2.0
        assert it.gateways.found == 2


async def test_a_restart_of_the_collector_changes_nothing():
    store = MemoryStore()
    async with world("a", "b", store=store) as it:
        await it.interval(a=1, b=1)
    clock, gateways = it.clock, it.gateways
    with serving(gateways):
        async with collecting("gateway", None, store, clock) as collector:
            del gateways.running["b"]
            gateways.begin("c")
            found = await World(clock, gateways, collector).interval(a=4, c=9)
            assert (found.health.status, found.requests) == (HealthStatus.OK, 13.0)


@given(
    st.lists(
        st.tuples(st.sampled_from(["came", "begun", "died", "read"]), st.integers(0, 3), st.integers(0, 500)),
        max_size=30,
    )
)
@settings(max_examples=60, deadline=None)
def test_whatever_happens_the_intervals_add_up_to_what_was_read(events: list[tuple[str, int, int]]) -> None:
    async def scenario() -> None:
        async with world("0") as it:
            names, alive, total, unread = 1, ["0"], 0.0, {"0": 0}
            expected = 0
            for kind, place, requests in [*events, ("read", 0, 0)]:
                name = alive[place % len(alive)]
                if kind == "came":
                    it.gateways.running[name].come(requests)
                    unread[name] += requests
                elif kind == "begun":
                    alive.append(str(names))
                    it.gateways.begin(str(names))
                    unread[str(names)], names = 0, names + 1
                elif kind == "died" and len(alive) > 1:
                    alive.remove(name)
                    del it.gateways.running[name], unread[name]
                elif kind == "read":
                    found = await it.interval()
                    assert found.health.status is HealthStatus.OK
                    assert found.requests >= 0.0
                    total, expected = total + found.requests, expected + sum(unread.values())
                    unread = dict.fromkeys(unread, 0)
            assert total == expected

    asyncio.run(scenario())
