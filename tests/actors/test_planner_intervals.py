"""Each moment belongs to one interval at most, whatever the policy and whenever it decides."""

import asyncio
from itertools import pairwise
from unittest.mock import AsyncMock, Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.collector.engines import EngineFleet
from actors.collector.interval import PoolLoad
from actors.collector.presets import PRESETS
from actors.collector.scrape import ScrapeSource
from actors.collector.series import ModelSeries
from actors.collector.tracker import Tracker
from actors.planning.context import ActorFailure
from actors.planning.tick import LONGEST
from headway.planning import Role
from interp import scaled
from tests.actors import planner_cases
from tests.actors.planner_cases import EPOCH, INTERVAL_S, Deployment, Script, ScriptedActors, busy, clock
from tests.actors.planner_cases import settings as configured
from tests.engines.virtual_loop import run as in_virtual_time
from tests.planning.planning_cases import PROFILE
from tests.stores import MemoryStore
from tests.truth.engines import MODEL, Engine, requests
from tests.truth.reading import Found, Pages

UNTIL_S = 400.0
ENGINE = Engine(served=requests(6.0, 1, until_s=UNTIL_S))
POLICIES = ("reference", "headway", "threshold", "static")
EVENTS = ("engines change", "no answer", "store away", "killed", "none")


class _Now(Pages):
    """The pages of now."""

    at_s = property(lambda _: asyncio.get_running_loop().time(), lambda _, __: None)


class Measuring(ScriptedActors):
    """What the collector makes of an engine's pages, which are read each second."""

    def __init__(self) -> None:
        super().__init__(collecting=Script(None))
        series = ModelSeries(PRESETS["vllm"], MODEL, (Role.MIXED,))
        fleet = EngineFleet(series, Found([ENGINE]), _Now([ENGINE]), stale_s=30.0, clock=clock)
        self.source = ScrapeSource(Tracker(series, 1.0), fleet, MemoryStore(), clock=clock)
        self.source._writes = AsyncMock(put=Mock())  # its thread does not know virtual time

    async def collect(self, interval_s, since_s, counts):
        await self.collecting.play()
        return await self.source.collect(clock() - interval_s, clock(), since_s)

    async def read_on(self):
        while True:
            await self.source.read()
            await asyncio.sleep(1.0)


async def story(policy, events):
    """A deployment's records after these events, each so many seconds after the one before."""
    changes = {"planner__threshold__interval_s": INTERVAL_S, "planner__policy": policy}
    deployment = Deployment(config=configured(**changes), actors=Measuring())
    actors, profile = deployment.actors, 1
    tasks = [asyncio.create_task(work) for work in (actors.read_on(), deployment.loop.run())]
    for after_s, event in [*events, (25.0, "none")]:
        await asyncio.sleep(after_s)
        if event == "engines change":
            profile += 1
            actors.mapping.usual = profile, scaled(PROFILE, 0.6 + 0.4 * (profile % 2))
        if event == "no answer":
            actors.collecting.answers.append(ActorFailure("MetricCollector: gone"))
        deployment.store_away = event == "store away"
        if event == "killed":
            tasks.pop().cancel()
            deployment = deployment.again()
            tasks.append(asyncio.create_task(deployment.loop.run()))
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    return deployment.log.records


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=12)
@given(st.lists(st.tuples(st.floats(0.5, 26.0), st.sampled_from(EVENTS)), max_size=8))
def test_intervals_follow_on_each_other_and_each_request_is_in_one(policy, events):
    records = in_virtual_time(story(policy, [(12.0, "engines change"), *events]))
    assert any(record.measured.health.status == "ok" for record in records)
    for before, after in pairwise(records):
        gap_s = after.interval.start_s - before.interval.end_s
        # What happened while the planner was away for long is in none; what was not measured ends between
        # reads.
        away = after.due_at - before.due_at > LONGEST * INTERVAL_S
        assert gap_s > 0.0 if away else abs(gap_s) <= 1.0 * (before.measured.health.status != "ok")
    for record in records:
        assert record.interval.end_s >= record.interval.start_s
        if record.measured.health.status == "ok":
            came = ENGINE.arrived(record.interval.start_s - EPOCH, record.interval.end_s - EPOCH)
            assert record.measured.requests == came


@pytest.mark.parametrize("by_s", [3600.0, -3600.0, 40.0, -40.0])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_clock_that_is_set_costs_one_interval(policy, by_s, monkeypatch):
    """An hour that did not pass is no hour without traffic, and one that comes again blinds nobody."""
    monkeypatch.setattr(planner_cases, "AHEAD_S", 0.0)

    async def story():
        changes = {"planner__threshold__interval_s": INTERVAL_S, "planner__policy": policy}
        deployment = Deployment(config=configured(**changes), actors=Measuring())
        tasks = [asyncio.create_task(work) for work in (deployment.actors.read_on(), deployment.loop.run())]
        await asyncio.sleep(75.0)
        monkeypatch.setattr(planner_cases, "AHEAD_S", by_s)
        await asyncio.sleep(75.0)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        return deployment.log.records, deployment.status()["planner"]

    records, planner = in_virtual_time(story())
    health = [record.measured.health.status for record in records]
    assert planner["failed_ticks"] == 0
    assert health[:7] == ["ok"] * 7
    # A clock that is ahead of the grid is decided on twice at once.
    assert [place for place, each in enumerate(health) if each != "ok"] in ([7], [7, 8])
    assert records[7].measured.health.detail.startswith("the clock was set back: ") == (by_s < 0.0)
    assert health[-5:] == ["ok"] * 5
    for record in [*records[:7], *records[-5:]]:
        shift_s = EPOCH + (by_s if record in records[-5:] else 0.0)
        came = ENGINE.arrived(record.interval.start_s - shift_s, record.interval.end_s - shift_s)
        assert record.measured.requests == came
        assert record.interval.end_s - record.interval.start_s == pytest.approx(INTERVAL_S, abs=1.0)


@pytest.mark.parametrize("policy", [each for each in POLICIES if each != "static"])
def test_after_a_clock_was_set_back_replicas_go_as_soon_as_after_any_other_hour(policy, monkeypatch):
    async def story():
        def load():
            each = 20.0 if asyncio.get_running_loop().time() < 230.0 else 1.0
            pools = {
                role: PoolLoad(running=each, waiting=0.0, kv_usage=0.1)
                for role in (Role.PREFILL, Role.DECODE)
            }
            return busy(100.0 * each, load=pools)

        changes = {"threshold__interval_s": INTERVAL_S, "threshold__downscale_delay_s": 120.0}
        config = configured(planner__policy=policy, **{f"planner__{key}": it for key, it in changes.items()})
        deployment = Deployment(config=config, actors=ScriptedActors(collecting=Script(load)))
        async with deployment.running():
            await asyncio.sleep(205.0)
            most = deployment.log.records[-1].targets
            monkeypatch.setattr(planner_cases, "AHEAD_S", -3600.0)
            await asyncio.sleep(700.0)
        return most, deployment.log.records[-1].targets

    monkeypatch.setattr(planner_cases, "AHEAD_S", 0.0)
    most, last = in_virtual_time(story())
    assert sum(last.values()) < sum(most.values()) / 3
