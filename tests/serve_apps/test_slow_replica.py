"""A slow replica in a live pool: it reports, the Interpolator tells it apart, gateways send it less.

Real engines, observers, reporters, Interpolator and membership; the calls between them are made here.
"""

import asyncio
from collections import Counter
from dataclasses import asdict

import pytest

from actors.interpolator import Interpolator
from headway.config import Role, load_config
from headway.engine.observed_latency import LatencyObserver
from serve_apps.deployments import LatencyReporter, MeasuredEngine
from serve_apps.engines.simulated import SimulatedEngine
from serve_apps.membership import Membership
from tests.engines.engine_cases import collect, request
from tests.engines.virtual_loop import run
from tests.stores import MemoryStore

NAMES = ("slow", "a", "b", "c")
SETTINGS = {"pools.mixed": {}, "slo.itl_ms": 30}
STATS_S, GAP_S, TOKENS = 0.5, 0.08, 60


class Link:
    """The Interpolator as replicas reach it."""

    def __init__(self, interpolator: Interpolator) -> None:
        self._interpolator = interpolator

    async def call(self, method, *args, timeout_s):
        return getattr(self._interpolator, method)(*args)


class Replica:
    """An engine with its observer and reporter."""

    def __init__(self, name: str, speed: float, link: Link) -> None:
        speeds = {"simulation.engine.prefill_speed": speed, "simulation.engine.decode_speed": speed}
        engine = SimulatedEngine(load_config(None, {**SETTINGS, **speeds}), Role.MIXED, name)
        observer = LatencyObserver()
        self.reporter = LatencyReporter(observer, 5.0, link, name)  # type: ignore[arg-type]
        self.engine = MeasuredEngine(engine, observer, self.reporter.start)
        self.stats = engine.stats


async def served(seconds: float, slow_speed: float) -> tuple[Counter[str], Counter[str], Interpolator]:
    """Requests by replica in the first and in the second half."""
    loop = asyncio.get_running_loop()
    interpolator = Interpolator(load_config(None, SETTINGS).model_dump_json(), MemoryStore(), loop.time)
    link, pool = Link(interpolator), Membership()
    replicas = {name: Replica(name, slow_speed if name == "slow" else 1.0, link) for name in NAMES}
    counts, tasks, reported_s = (Counter[str](), Counter[str]()), set(), -STATS_S

    async def ask(name: str, number: str) -> None:
        pool.sent(name, number, 1000)
        await collect(
            replicas[name].engine.decode(request(number, input_tokens=1000, max_tokens=TOKENS), None)
        )
        pool.done(name, number)

    while loop.time() < seconds:
        if loop.time() - reported_s >= STATS_S:
            reported_s = loop.time()
            pool.update(
                (name, {**asdict(each.stats()), **each.reporter.standing}) for name, each in replicas.items()
            )
        name = pool.pick("least_load", loop.time())
        assert name is not None
        counts[loop.time() > seconds / 2][name] += 1
        tasks.add(asyncio.create_task(ask(name, str(len(tasks)))))
        await asyncio.sleep(GAP_S)
    await asyncio.gather(*tasks)
    return *counts, interpolator


def test_it_gets_fewer_requests_once_it_is_known():
    _, later, interpolator = run(served(40.0, slow_speed=0.5))
    model = interpolator.model()
    ((one,),) = model.differing.values()
    assert one.replica == "slow"
    assert one.slowness == pytest.approx(2.0, rel=0.15)
    assert later["slow"] < 0.5 * min(later[name] for name in "abc")
    factors = model.profile.meta.get("refined", {}).get("factors", {})
    assert factors.get("decode", 1.0) == pytest.approx(1.0, abs=0.12)


def test_replicas_that_are_alike_are_not_told_apart():
    _, _, interpolator = run(served(40.0, slow_speed=1.0))
    assert interpolator.model().differing == {}
