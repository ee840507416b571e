import asyncio
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.config import HeadwayConfig, Role
from headway.routing.shared_rules import FRESH_S, SaturationRule
from serve_apps.membership import SUSPECT_S, Membership, Saturated
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.anyio


def pool(*replicas: str, stats=None, seed=0) -> Membership:
    made = Membership(random.Random(seed))
    made.update((replica, stats or {}) for replica in replicas)
    return made


def test_none_each_in_turn_or_any():
    assert pool().pick("least_load", 0.0) is None
    made = pool("a", "b", "c")
    assert [made.pick("round_robin", 0.0) for _ in range(6)] == ["a", "b", "c", "a", "b", "c"]
    assert {made.pick("random", 0.0) for _ in range(100)} == {"a", "b", "c"}


def test_least_load_of_prefill_replicas_counts_prompt_tokens():
    made = pool("a", "b")
    made.sent("a", "long", 900)
    made.sent("b", "short", 100)
    made.sent("b", "short", 100)  # it is there already
    made.sent("b", "shorter", 50)
    assert made.pick("least_load", 0.0, Role.PREFILL) == "b"
    assert made.pick("least_load", 0.0, Role.DECODE) == "a"
    made.done("a", "long")
    assert made.pick("least_load", 0.0, Role.PREFILL) == "a"


def test_prompts_of_others_count_as_long_as_ours_are_on_average():
    made = pool("a", "b")
    made.sent("a", "1", 300)
    made.sent("a", "2", 100)
    made.update([("a", {"running": 2}), ("b", {"running": 1})])
    assert made.pick("least_load", 0.0, Role.PREFILL) == "b"  # 400 tokens of ours, some 200 of others
    made.done("a", "1")
    assert made.pick("least_load", 0.0, Role.PREFILL) == "a"


def test_replicas_that_stay_keep_their_places_and_new_ones_come_last():
    made = pool("b", "c")
    made.update([("a", {}), ("c", {}), ("b", {})])
    assert [member.replica for member in made.members] == ["b", "c", "a"]


def test_load_that_others_put_on_a_replica_counts():
    made = pool("a", "b")
    made.sent("b", "1")
    made.update([("a", {"running": 3, "waiting": 1}), ("b", {"running": 1})])
    assert {member.replica: member.load for member in made.members} == {"a": 4, "b": 1}
    assert made.pick("least_load", 0.0) == "b"


def test_a_report_does_not_count_our_own_requests_twice():
    made = pool("a")
    for request in ("1", "2", "3"):
        made.sent("a", request)
    made.update([("a", {"running": 3})])
    assert made.members[0].load == 3
    made.done("a", "1")
    assert made.members[0].load == 2
    made.sent("a", "4")
    assert made.members[0].load == 3


def test_our_requests_survive_an_update_and_leave_with_their_replica():
    made = pool("a", "b")
    made.sent("a", "1")
    made.update([("a", {}), ("c", {})])
    assert {member.replica: member.load for member in made.members} == {"a": 1, "c": 0}
    made.remove("a")
    made.done("a", "1")
    assert "a" not in made
    assert len(made) == 1


def test_suspects_are_used_only_when_there_is_no_other():
    made = pool("a", "b")
    made.suspect("a", 10.0)
    assert {made.pick("random", 10.0) for _ in range(20)} == {"b"}
    assert {made.pick("random", 10.0 + SUSPECT_S) for _ in range(50)} == {"a", "b"}
    made.remove("b")
    assert made.pick("random", 10.0) == "a"


async def test_watchers_hear_of_every_change_and_waiters_wake():
    made, heard = pool("a"), []
    made.watch(lambda: heard.append(len(made)))
    waiting = asyncio.create_task(made.change())
    await asyncio.sleep(0)
    made.update([("a", {}), ("b", {})])
    await asyncio.wait_for(waiting, PATIENCE_S)
    made.remove("a")
    assert heard == [2, 1]


STEPS = st.lists(st.tuples(st.sampled_from(["sent", "done"]), st.sampled_from("abc"), st.integers(0, 5)))


@given(STEPS)
def test_counts_are_exact_whatever_the_order(steps):
    made, expected = pool("a", "b", "c"), {"a": set(), "b": set(), "c": set()}
    for step, replica, request in steps:
        getattr(made, step)(replica, str(request))
        getattr(expected[replica], "add" if step == "sent" else "discard")(str(request))
        picked = made.pick("least_load", 0.0)
        assert len(expected[picked]) == min(map(len, expected.values()))
    assert {member.replica: member.load for member in made.members} == {
        replica: len(requests) for replica, requests in expected.items()
    }


def test_there_is_a_better_one_than_a_suspect_only_while_another_is_none():
    made = pool("a", "b")
    assert not made.has_better("a", 0.0)
    made.suspect("a", 0.0)
    assert made.has_better("a", 0.0)
    assert not made.has_better("b", 0.0)
    made.suspect("b", 0.0)
    assert not made.has_better("a", 0.0)
    assert not made.has_better("a", SUSPECT_S)
    assert made.has_better("gone", SUSPECT_S)


def test_a_slow_replica_is_chosen_where_it_is_as_early():
    made = pool("a", "b")
    made.update([("a", {"slowness": 2.0, "idle_requests": 3.0}), ("b", {})])
    taken = []
    for number in range(12):
        replica = made.pick("least_load", 0.0, Role.DECODE)
        taken.append(replica)
        made.sent(replica, str(number))
    # 2 × (3 + 1 request) = 8 = 3 + 5 of the other; then two there for one here.
    assert taken.count("a") == 3
    assert taken[:4] == ["b"] * 4


def test_a_long_prompt_waits_for_a_fast_replica_a_short_one_takes_the_slow():
    made = pool("slow", "fast")
    made.update([("slow", {"slowness": 2.0}), ("fast", {})])
    made.sent("fast", "under way", 1000)
    assert made.pick("least_load", 0.0, Role.PREFILL, 3000) == "fast"
    assert made.pick("least_load", 0.0, Role.PREFILL, 500) == "slow"
    made.update([("slow", {}), ("fast", {})])
    assert made.pick("least_load", 0.0, Role.PREFILL, 3000) == "slow"


class TestSaturation:
    """Batches of 4, and as many may wait."""

    def pool(self, *replicas: str, **stats) -> Membership:
        self.now_s = 100.0
        made = Membership(random.Random(0), clock=lambda: self.now_s)
        made.rule = SaturationRule.of(HeadwayConfig(), 4)
        made.update((replica, stats) for replica in replicas)
        return made

    @pytest.mark.parametrize("profile", ["random", "round_robin", "least_load"])
    @pytest.mark.parametrize("stats", [{"waiting": 5}, {"kv_usage": 0.97}])
    def test_a_saturated_replica_gets_nothing_while_others_are_not(self, profile, stats):
        made = self.pool("a", "b", "c")
        made.update([("a", {}), ("b", {}), ("c", stats)])
        assert {made.pick(profile, self.now_s) for _ in range(30)} <= {"a", "b"}

    @pytest.mark.parametrize("profile", ["random", "round_robin", "least_load"])
    def test_5000_prompts_are_not_handed_to_one_replica(self, profile):
        made = self.pool("a")
        for number in range(5000):
            if made.saturated(self.now_s):
                break
            made.sent(made.pick(profile, self.now_s), str(number))
        assert made.members[0].load == 8

    def test_prefill_replicas_have_no_batch(self):
        made = self.pool("a")
        for number in range(4):
            assert not made.saturated(self.now_s, Role.PREFILL)
            made.sent("a", str(number), 10)
        assert made.saturated(self.now_s, Role.PREFILL)
        assert not made.saturated(self.now_s, Role.DECODE)

    def test_preemptions(self):
        made = self.pool("a", preemptions=3)
        made.update([("a", {"preemptions": 4})])
        assert made.saturated(self.now_s + 1.9)
        assert not made.saturated(self.now_s + 2.1)

    def test_old_news_does_not_count(self):
        made = self.pool("a", waiting=500)
        assert made.saturated(self.now_s + FRESH_S - 0.1)
        assert not made.saturated(self.now_s + FRESH_S + 0.1)

    async def test_room_goes_to_those_that_wait_in_their_order(self):
        made, went = self.pool("a"), []
        for number in range(8):
            made.sent("a", f"before{number}")

        async def ask(number: int) -> None:
            await made.room(Role.MIXED, 10.0, 100)
            made.sent("a", f"r{number}")
            went.append(number)

        asking = [asyncio.create_task(ask(number)) for number in range(6)]
        await asyncio.sleep(0)
        assert went == []
        asking[2].cancel()
        for number in range(5):
            made.done("a", f"before{number}")
            asking.append(asyncio.create_task(ask(6 + number)))
            for _ in range(10):
                await asyncio.sleep(0)
            assert len(went) == number + 1
            assert made.members[0].load == 8
        for task in asking:
            task.cancel()
        assert went == [0, 1, 3, 4, 5]

    async def test_whoever_waits_too_long_or_finds_too_many_is_turned_away(self):
        made = self.pool("a", waiting=50)
        with pytest.raises(Saturated, match="every mixed replica has been saturated"):
            await made.room(Role.MIXED, 0.02, 1)
        first = asyncio.create_task(made.room(Role.MIXED, 10.0, 1))
        await asyncio.sleep(0)
        with pytest.raises(Saturated, match="1 requests wait"):
            await made.room(Role.MIXED, 10.0, 1)
        made.update([("a", {"waiting": 0})])
        await first
