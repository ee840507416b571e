"""Planners of several applications on one budget, in virtual time: ticks are spread, the sum is kept."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from actors.collector.interval import Measured, PoolLoad
from actors.connectors.protocol import Action, PoolCounts
from actors.planning.common_budget import GONE_S, CommonBudget
from headway.config import ConfigError
from headway.planning import PlanningError, Role
from headway.planning.policies import refuse_simulated_only
from headway.planning.sharing import GpuLosses
from headway.planning.status_text import facts
from tests.actors.planner_cases import (
    INTERVAL_S,
    Deployment,
    Script,
    ScriptedActors,
    ScriptedPools,
    busy,
    clock,
    settings,
)
from tests.engines.virtual_loop import on_virtual_time

CALM, FLOOD = 200.0, 3000.0
"""Requests an interval that need 3 GPUs once it is learnt, and more than there are."""
GPUS, SPREAD_S = 12, 3.0


@dataclass
class WatchedPools(ScriptedPools):
    seen: Callable[[], None] = lambda: None

    async def set_targets(self, targets: Mapping[Role, int], reasons: Mapping[str, Any]) -> Action:
        action = await super().set_targets(targets, reasons)
        self.seen()
        return action


@dataclass
class Fleet:
    """Deployments with mixed replicas of a GPU each, that begin `SPREAD_S` apart; `load` by name."""

    settings: Mapping[str, Mapping[str, Any]]
    gpus: int = GPUS
    load: dict[str, float] = field(default_factory=dict)
    most: int = 0
    """GPUs that all together had at most, after any call of a connector."""

    def __post_init__(self) -> None:
        self.budget = CommonBudget()
        self.load = dict.fromkeys(self.settings, CALM) | self.load
        self.deployments = {name: self._deployment(name, own) for name, own in self.settings.items()}

    def __getitem__(self, name: str) -> Deployment:
        return self.deployments[name]

    def _deployment(self, name: str, own: Mapping[str, Any]) -> Deployment:
        config = settings(
            planner__policy="headway",
            planner__headway__hold_s=0.0,
            **{
                "planner__headway__lead_s": 20.0,
                "fleet__gpus": self.gpus,
                "pools": mixed(1),
                **own,
            },
        )
        return Deployment(
            config=config,
            actors=ScriptedActors(collecting=Script(lambda: self._measured(self.load[name]))),
            pools=WatchedPools(counts={Role.MIXED: 1}, seen=self.seen),
            name=name,
            budget=self.budget,
        )

    @staticmethod
    def _measured(requests: float) -> Measured:
        if requests:
            return busy(requests=requests, completed=requests, load={})
        nothing = PoolLoad(running=0.0, waiting=0.0, kv_usage=0.0)
        return busy(requests=0.0, completed=0.0, isl_tokens=float("nan"), load={Role.MIXED: nothing})

    def gpus_of(self, name: str) -> int:
        return self[name].pools.counts[Role.MIXED]

    def all_gpus(self) -> int:
        return sum(map(self.gpus_of, self.deployments))

    def seen(self) -> None:
        self.most = max(self.most, self.all_gpus())

    def words(self, name: str) -> str:
        return next(each.words for each in self.budget.document().deployments if each.name == name)

    def killed(self) -> None:
        """What `kill -9` of the one Planner leaves: what is stored, and the replicas."""
        self.budget = CommonBudget()
        for name, each in self.deployments.items():
            self.deployments[name] = Deployment(
                each.config,
                each.store,
                each.actors,
                each.pools,
                resumed=True,
                name=name,
                budget=self.budget,
            )

    @asynccontextmanager
    async def running(self, *names: str) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for name in names or self.deployments:
                await stack.enter_async_context(self[name].running())
                await asyncio.sleep(SPREAD_S)
            yield


def mixed(least: int) -> Mapping[str, Any]:
    return {"mixed": {"min_replicas": least, "max_replicas": 20}}


def two(**chat: Any) -> Fleet:
    return Fleet({"batch": {}, "chat": {"share__priority": 1, **chat}})


def out_of_turn(planner: Deployment) -> int:
    """Ticks that came sooner than an interval after the one before."""
    times = planner.times()
    return sum(later - before < INTERVAL_S - 0.5 for before, later in pairwise(times))


def test_planners_that_begin_at_once_tick_apart():
    budget, phases = CommonBudget(), []
    for number in range(30):
        phases.append(budget.phase(str(number)))
        Deployment(name=str(number), budget=budget)
    assert phases[0] == 0.0
    around = sorted(phases)
    gaps = [later - before for before, later in pairwise([*around, 1.0])]
    assert min(gaps) > 0.3 / 30
    assert max(gaps) < 3.0 / 30


@on_virtual_time
async def test_a_higher_priority_has_its_gpus_within_two_ticks_and_each_decision_says_why():
    fleet = two()
    async with fleet.running():
        fleet.load["batch"] = FLOOD
        await asyncio.sleep(60.0)
        assert (fleet.gpus_of("batch"), fleet.gpus_of("chat")) == (9, 3)
        assert "went to chat (priority 1)" in fleet["batch"].log.last.summary
        fleet.load["chat"] = FLOOD
        seen = fleet["chat"].log.next_id
        while fleet.gpus_of("chat") < GPUS - 1:
            await asyncio.sleep(0.1)
        assert fleet["chat"].log.next_id - seen <= 2
        assert "8 still held by batch" in fleet["chat"].log.get(seen).summary
        assert fleet["batch"].log.last.reasons["grant"] == {
            "gpus": 1,
            "wanted": 20,
            "ahead": {"chat (priority 1)": 10},
            "kept_free": {},
            "above_ceiling": 0,
            "sleepers": {},
            "awaited": {},
            "fault": "",
            "lent": 0,
            "unplaced": "",
        }
        assert "limited to 1 by max_replicas and fleet.gpus" in fleet["batch"].log.last.summary
    assert fleet.most <= GPUS


@on_virtual_time
async def test_the_budget_is_kept_at_any_time_whatever_comes_and_whoever_is_killed():
    chance = random.Random(3)
    names = {
        name: {"share__priority": chance.randrange(2), "share__floor_gpus": chance.choice([0, 2])}
        for name in "abcd"
    }
    fleet = Fleet(names)
    for _ in range(3):
        async with fleet.running():
            for _ in range(8):
                fleet.load[chance.choice("abcd")] = chance.choice([0.0, CALM, 3 * CALM, FLOOD])
                await asyncio.sleep(chance.uniform(1.0, INTERVAL_S))
        fleet.killed()
    assert GPUS - 2 <= fleet.most <= GPUS
    for each in fleet.deployments.values():
        assert [record["id"] for record in each.records()] == list(range(each.log.next_id))


@on_virtual_time
async def test_an_idle_model_of_a_higher_priority_yields_to_a_request_for_one_that_sleeps():
    sleepers = {"mixed": {"min_replicas": 0, "max_replicas": 1}}
    fleet = Fleet({"rare": {"pools": sleepers}, "main": {"pools": sleepers, "share__priority": 1}}, gpus=1)
    fleet.load |= {"rare": 0.0, "main": 1.0}

    async def asked(name: str, seconds: float) -> bool:
        """A request waits so long; whether its model lacked GPUs all the time."""
        lacked = []
        for _ in range(int(seconds)):
            lacked.append(fleet[name].loop.held("gateway", 1)[1])
            await asyncio.sleep(1.0)
        return all(lacked[1:])

    async with fleet.running():
        await asyncio.sleep(10 * INTERVAL_S)
        assert (fleet.gpus_of("rare"), fleet.gpus_of("main")) == (0, 1)
        assert await asked("rare", 3 * INTERVAL_S)
        assert fleet.words("rare") == "holds 0 of 1 GPUs wanted; 1 went to main (priority 1)"
        fleet.load["main"] = 0.0
        # A lead after its last request, and at its next decision.
        assert not await asked("rare", 20.0 + 2 * INTERVAL_S)
        assert (fleet.gpus_of("rare"), fleet.gpus_of("main")) == (1, 0)
        fleet.load["rare"] = 1.0
        await asyncio.sleep(INTERVAL_S)
        fleet.load["rare"] = 0.0
        await asyncio.sleep(3 * INTERVAL_S)
        assert (fleet.gpus_of("rare"), fleet.gpus_of("main")) == (1, 0)
        assert not await asked("main", INTERVAL_S + 1.0)
        assert (fleet.gpus_of("rare"), fleet.gpus_of("main")) == (0, 1)
    for each in fleet.deployments.values():
        assert [record["id"] for record in each.records()] == list(range(each.log.next_id))


@on_virtual_time
async def test_a_request_that_waits_after_others_gave_up_is_seen_before_the_next_tick():
    sleepers = {"mixed": {"min_replicas": 0, "max_replicas": 1}}
    main = {"pools": {"mixed": {"min_replicas": 1, "max_replicas": 1}}}
    fleet = Fleet({"rare": {"pools": sleepers}, "main": main}, gpus=1, load={"rare": 0.0})
    async with fleet.running():
        await asyncio.sleep(10 * INTERVAL_S)
        rare, ticks = fleet["rare"], len(fleet["rare"].times())
        rare.loop.held("gateway", 1)
        await asyncio.sleep(1.0)
        rare.loop.held("gateway", 1)
        await asyncio.sleep(4.5)
        assert len(rare.times()) == ticks + 1
        rare.loop.held("gateway", 1)
        await asyncio.sleep(0.5)
        assert len(rare.times()) == ticks + 2
        assert out_of_turn(rare) == 2


@on_virtual_time
async def test_what_is_given_up_for_a_request_that_waits_is_taken_at_once():
    sleepers = {"mixed": {"min_replicas": 0, "max_replicas": 1}}
    fleet = Fleet({"rare": {"pools": sleepers}, "main": {"pools": sleepers}}, gpus=1, load={"rare": 0.0})
    async with fleet.running():
        # To shortly before a tick of `main`, which gives its GPU up after one of `rare` then.
        await asyncio.sleep(10.5 * INTERVAL_S)
        fleet.load["main"], free_s = 0.0, 0.0
        while not fleet.gpus_of("rare"):
            free_s += not fleet.gpus_of("main")
            fleet["rare"].loop.held("gateway", 1)
            await asyncio.sleep(1.0)
        assert free_s <= INTERVAL_S / 2


@on_virtual_time
async def test_a_budget_that_grows_is_taken_at_once_by_who_waits():
    sleepers = {"mixed": {"min_replicas": 0, "max_replicas": 1}}
    main = {"mixed": {"min_replicas": 1, "max_replicas": 1}}
    fleet = Fleet({"rare": {"pools": sleepers}, "main": {"pools": main}}, gpus=1, load={"rare": 0.0})
    async with fleet.running():
        # To a second after a tick of `main`.
        await asyncio.sleep(10.8 * INTERVAL_S)
        for second in range(int(INTERVAL_S / 2) + 1):
            fleet["rare"].loop.held("gateway", 1)
            await asyncio.sleep(1.0)
            if second == 0:
                assert "holds 0 of 1 GPUs wanted" in fleet.words("rare")
                for each in fleet.deployments.values():
                    each.loop.update_settings({"fleet.gpus": 2})
        assert (fleet.gpus_of("rare"), fleet.gpus_of("main")) == (1, 1)


@on_virtual_time
async def test_who_leaves_a_free_gpu_to_another_that_waits_wakes_it():
    none, one = (PoolCounts(desired=n, starting=0, ready=n, draining=0) for n in (0, 1))
    fleet = Fleet({name: {"pools": {"mixed": {"min_replicas": 0}}} for name in "abc"}, gpus=1)
    parts, woken = fleet.budget.parts, list[str]()
    for name, part in parts.items():
        part.wake = partial(woken.append, name)

    def asked(name: str, lost_rps: float) -> int:
        woken.clear()
        losses = GpuLosses(minimum_gpus=0, lost_rps=np.array([lost_rps, 0.0]), waiting=1.0)
        granted = parts[name].ask(losses, INTERVAL_S).gpus
        parts[name].hold({Role.MIXED: one if granted else none}, settled=True)
        return granted

    assert (asked("a", 9.0), asked("b", 5.0)) == (1, 0)
    # What has run ends, and nothing is held any more.
    assert (asked("a", 0.0), woken) == (0, ["b"])
    assert (asked("c", 6.0), asked("b", 0.5)) == (1, 0)
    assert (asked("c", 0.1), woken) == (0, ["b"])
    assert (asked("a", 0.2), woken) == (0, ["b"])
    assert (asked("b", 0.1), woken) == (0, ["a"])
    assert asked("a", 0.2) == 1


@on_virtual_time
@pytest.mark.parametrize(("load", "floor", "keeps"), [(0.0, 0, 0), (0.0, 1, 1), (CALM, 0, 3)])
async def test_an_idle_one_lends_the_gpu_that_an_engine_of_another_waits_for_though_others_are_free(
    load: float, floor: int, keeps: int
) -> None:
    pools = {"mixed": {"min_replicas": 0, "max_replicas": 3, "sleepers": 1}}
    one = {"pools": pools, "share__floor_gpus": floor, "planner__headway__lead_s": 2.0}
    fleet = Fleet({"one": one, "other": {"pools": pools}}, load={"other": 0.0})
    async with fleet.running():
        await asyncio.sleep(10 * INTERVAL_S)
        fleet.load["one"] = load
        await asyncio.sleep(INTERVAL_S + 1.0)
        before = fleet.gpus_of("one")
        fleet["one"].pools.crowded = True
        await asyncio.sleep(INTERVAL_S)
        assert fleet.gpus_of("one") == min(before, keeps)
        if keeps == 0:
            said = "holds 0 of 3 GPUs wanted; 3 lent to engines that wait for the same GPU"
            assert any(each.summary.endswith(f"{said}.") for each in fleet["one"].log.records)
            fleet["one"].pools.crowded = False
            await asyncio.sleep(2 * INTERVAL_S)
            assert fleet.gpus_of("one") == 0
            assert not fleet["one"].loop.held("gateway", 1)[1]
            await asyncio.sleep(2.0)
            assert fleet.gpus_of("one") > 0


@on_virtual_time
async def test_what_was_granted_is_nobody_elses_until_the_decision_is_there_however_late():
    async def late(work: Any) -> Any:
        decision = work()
        await asyncio.sleep(5 * INTERVAL_S)
        return decision

    fleet = two(planner__tick_deadline_s=100.0)
    async with fleet.running():
        await asyncio.sleep(60.0)
        fleet.load["chat"], fleet["chat"].compute = FLOOD, late
        await asyncio.sleep(INTERVAL_S)
        fleet.load["batch"] = FLOOD
        await asyncio.sleep(7 * INTERVAL_S)
        assert fleet.gpus_of("chat") > GPUS / 2
    assert fleet.most <= GPUS


@on_virtual_time
async def test_in_lasting_want_nobody_is_woken_any_more():
    fleet = two()
    fleet.load |= {"batch": FLOOD, "chat": FLOOD}
    async with fleet.running():
        await asyncio.sleep(60.0)
        before = {name: out_of_turn(fleet[name]) for name in fleet.deployments}
        await asyncio.sleep(30 * INTERVAL_S)
        assert {name: out_of_turn(fleet[name]) for name in fleet.deployments} == before
        assert max(before.values()) <= 2
    assert fleet.most == GPUS


@on_virtual_time
async def test_a_holder_that_cannot_decide_is_asked_once_for_each_decision_of_who_waits():
    fleet = two()
    fleet.load["batch"] = FLOOD
    async with fleet.running():
        await asyncio.sleep(60.0)
        fleet["batch"].pools.setting.usual = TimeoutError()
        fleet.load["chat"] = FLOOD
        waited = fleet["chat"].log.next_id, fleet["batch"].log.next_id
        await asyncio.sleep(20 * INTERVAL_S)
        assert fleet.gpus_of("chat") == 3
        assert fleet["chat"].log.next_id - waited[0] <= 21
        assert fleet["batch"].log.next_id - waited[1] <= 2 * 21
        fleet["batch"].pools.setting.usual = None
        await asyncio.sleep(2 * INTERVAL_S)
        assert fleet.gpus_of("chat") == GPUS - 1
    assert fleet.most <= GPUS


@on_virtual_time
async def test_after_kill_9_who_has_not_spoken_yet_keeps_what_it_holds():
    fleet = two()
    fleet.load["batch"] = FLOOD
    async with fleet.running():
        await asyncio.sleep(60.0)
    ids = fleet["chat"].log.next_id
    fleet.killed()
    fleet.load["chat"] = FLOOD
    # Only one of them comes back: the other's data is not there for a while.
    async with fleet.running("chat"):
        await asyncio.sleep(3 * INTERVAL_S)
        assert (fleet.gpus_of("batch"), fleet.gpus_of("chat")) == (9, 3)
        assert "still held by batch" in fleet.words("chat")
        async with fleet["batch"].running():
            await asyncio.sleep(2 * INTERVAL_S)
            assert (fleet.gpus_of("batch"), fleet.gpus_of("chat")) == (1, 11)
    assert [record["id"] for record in fleet["chat"].records()] == list(range(fleet["chat"].log.next_id))
    assert fleet["chat"].log.next_id > ids
    assert fleet.most <= GPUS


@on_virtual_time
async def test_who_is_removed_gives_its_share_back_unless_it_comes_again():
    fleet, there = two(), {"batch"}
    fleet.load |= {"batch": FLOOD, "chat": FLOOD}
    async with fleet.running("batch"):
        await asyncio.sleep(SPREAD_S)
        async with fleet.running("chat"):
            await asyncio.sleep(60.0)
        fleet.load["batch"] = FLOOD
        assert (fleet.gpus_of("batch"), fleet.gpus_of("chat")) == (1, 11)
        there.add("chat")

        async def comes_again() -> bool:
            return "chat" in there

        fleet.budget.parts["chat"].leave(comes_again)
        await asyncio.sleep(3 * GONE_S)
        assert fleet.gpus_of("batch") == 1
        there.remove("chat")
        fleet["chat"].pools.counts = {Role.MIXED: 0}
        await asyncio.sleep(GONE_S + 2 * INTERVAL_S)
        assert fleet.gpus_of("batch") == GPUS
        assert [each.name for each in fleet.budget.document().deployments] == ["batch"]


@on_virtual_time
async def test_a_new_one_gets_its_minimum_before_it_decides():
    fleet = two(pools=mixed(4))
    fleet.load["batch"] = FLOOD
    late = fleet.budget.parts.pop("chat")
    async with fleet["batch"].running():
        await asyncio.sleep(60.0)
        assert fleet.gpus_of("batch") == GPUS
        # As Serve starts it: its replicas are there, whatever the budget says.
        fleet["chat"].pools.counts = {Role.MIXED: 4}
        fleet.budget.parts["chat"] = late
        async with fleet["chat"].running():
            await asyncio.sleep(2 * INTERVAL_S)
            assert fleet.gpus_of("batch") == GPUS - 4
    assert all(record.targets[Role.MIXED] == 4 for record in fleet["chat"].log.records)


@on_virtual_time
@pytest.mark.parametrize(("priority", "cut", "lacks"), [(1, 8, "8 of 12"), (-1, 8, "8 of 12"), (1, 0, "")])
async def test_minimums_by_schedule_give_way_to_the_own_minimums_of_others(
    priority: int, cut: int, lacks: str
) -> None:
    always = {"from": "00:00", "to": "24:00", "min_replicas": GPUS if cut else GPUS - 4}
    batch = {"min_replicas": 1, "max_replicas": 20, "schedule": [always]}
    fleet = Fleet(
        {"batch": {"pools": {"mixed": batch}}, "chat": {"share__priority": priority, "pools": mixed(4)}}
    )
    late = fleet.budget.parts.pop("chat")
    fleet["chat"].pools.counts = {Role.MIXED: 0}
    async with fleet["batch"].running():
        await asyncio.sleep(5 * INTERVAL_S)
        assert fleet.gpus_of("batch") == always["min_replicas"]
        fleet.budget.parts["chat"] = late
        async with fleet["chat"].running():
            await asyncio.sleep(2 * INTERVAL_S)
            assert (fleet.gpus_of("batch"), fleet.gpus_of("chat")) == (GPUS - 4, 4)
            await asyncio.sleep(2 * INTERVAL_S)
            assert lacks in fleet.words("batch")
            last = fleet["batch"].log.records[-1]
            asked = f", which asks for {GPUS}" if cut else ""
            assert last.reasons["schedule"] == {"mixed": f"min 8 by schedule, from 00:00{asked}"}
    assert fleet.most <= GPUS


@on_virtual_time
async def test_a_grant_below_the_minimum_of_another_time_of_day_is_decided_within() -> None:
    at_night = {"from": "03:00", "to": "04:00", "min_replicas": GPUS}
    batch = {"min_replicas": 1, "max_replicas": 20, "schedule": [at_night]}
    fleet = Fleet(
        {"batch": {"pools": {"mixed": batch}}, "chat": {"share__priority": 1}}, load={"chat": FLOOD}
    )
    async with fleet.running():
        await asyncio.sleep(10 * INTERVAL_S)
    assert fleet.gpus_of("chat") == GPUS - 1
    assert len(fleet["batch"].log.records) >= 10


@on_virtual_time
async def test_a_minimum_by_schedule_above_the_ceiling_stops_nobody() -> None:
    always = {"from": "00:00", "to": "24:00", "min_replicas": 6}
    batch = {"min_replicas": 1, "max_replicas": 20, "schedule": [always]}
    fleet = Fleet(
        {"batch": {"pools": {"mixed": batch}, "share__ceiling_gpus": 3}, "chat": {}}, load={"chat": FLOOD}
    )
    async with fleet.running():
        await asyncio.sleep(6 * INTERVAL_S)
    assert (fleet.gpus_of("batch"), fleet.gpus_of("chat")) == (3, GPUS - 3)
    assert "3 above its ceiling" in fleet.words("batch")


@on_virtual_time
async def test_a_dry_run_holds_what_it_really_has_and_takes_nothing_from_others():
    fleet = two(planner__dry_run=True)
    fleet.load |= {"batch": FLOOD, "chat": FLOOD}
    fleet["chat"].pools.counts = {Role.MIXED: 3}
    async with fleet.running():
        await asyncio.sleep(60.0)
        assert fleet.gpus_of("batch") == GPUS - 3
        assert fleet["chat"].log.last.targets == {Role.MIXED: GPUS - 1}
        entry = fleet.budget.document().deployments[1]
        assert (entry.dry_run, entry.holds, entry.granted) == (True, 3, GPUS - 1)


@on_virtual_time
async def test_the_smallest_of_the_budgets_stated_holds_and_a_change_acts_at_once():
    fleet = Fleet({"batch": {}, "chat": {"fleet__gpus": GPUS + 4, "share__priority": 1}})
    fleet.load["batch"] = FLOOD
    async with fleet.running():
        await asyncio.sleep(60.0)
        assert fleet.all_gpus() == GPUS
        fleet["chat"].loop.update_settings({"fleet.gpus": 9})
        await asyncio.sleep(INTERVAL_S + 1.0)
        assert (fleet.gpus_of("batch"), fleet.gpus_of("chat")) == (6, 3)
        fleet["batch"].loop.update_settings({"share.priority": 2})
        await asyncio.sleep(3 * INTERVAL_S)
        assert (fleet.gpus_of("batch"), fleet.gpus_of("chat")) == (8, 1)
        with pytest.raises(
            ConfigError, match=r"9 GPUs do not hold the floors of all deployments \(batch 9, chat 1\)"
        ):
            fleet["batch"].loop.update_settings({"share.floor_gpus": 9})
        more = {"share.ceiling_gpus": 3, "pools.mixed": {"min_replicas": 4, "max_replicas": 20}}
        with pytest.raises(ConfigError, match=r"share.ceiling_gpus: chat may hold 3, its minimum is 4"):
            fleet["chat"].loop.update_settings(more)
    assert fleet.most <= GPUS


@on_virtual_time
async def test_the_status_and_the_fleet_say_who_has_what():
    fleet = two()
    fleet.load["batch"] = FLOOD
    async with fleet.running():
        await asyncio.sleep(60.0)
        words = "holds 9 of 20 GPUs wanted; 2 went to chat (priority 1)"
        document = fleet["batch"].status()
        assert document["fleet"] == {"gpus": GPUS, "wanted": 20, "holds": 9, "granted": 9, "words": words}
        line = next(
            fact.text for fact in facts(fleet["batch"].loop.status(), clock()) if fact.name == "Budget"
        )
        assert line == f"9 of {GPUS} GPUs in common; {words}"
        batch, chat = fleet.budget.document().document()["deployments"]
        assert (batch["name"], batch["state"], batch["words"]) == ("batch", "running", words)
        assert (chat["holds"], chat["standing"]["priority"], chat["words"]) == (3, 1, "")


@on_virtual_time
async def test_without_a_budget_nothing_says_a_word_of_it():
    fleet = two(fleet__gpus=None)
    fleet.load |= {"batch": FLOOD, "chat": FLOOD}
    async with fleet.running():
        await asyncio.sleep(60.0)
        assert fleet.gpus_of("chat") == 20
        assert fleet.gpus_of("batch") == GPUS
        assert "fleet" not in fleet["chat"].status()
        assert "grant" not in fleet["chat"].log.last.reasons


def test_other_policies_cannot_share():
    with pytest.raises(PlanningError, match=r"fleet.gpus: live, .* planner.policy is reference"):
        refuse_simulated_only(settings(fleet__gpus=8))


@on_virtual_time
async def test_budgets_of_gpu_types_have_nothing_to_do_with_each_other():
    fleet = Fleet(
        {
            "chat": {"fleet__gpu_type": "H100", "share__priority": 1},
            "code": {"fleet__gpu_type": "H100"},
            "batch": {"fleet__gpu_type": "L20", "fleet__gpus": 5},
        },
        load={"chat": FLOOD, "code": FLOOD, "batch": FLOOD},
    )
    async with fleet.running():
        await asyncio.sleep(12 * INTERVAL_S)
        assert [fleet.gpus_of(name) for name in ("chat", "code", "batch")] == [11, 1, 5]
        document = fleet.budget.document()
        assert (document.gpus, document.by_type) == (GPUS + 5, {"H100": GPUS, "L20": 5})
        assert [each.gpu_type for each in document.deployments] == ["L20", "H100", "H100"]
        assert "chat" not in fleet.words("batch")
