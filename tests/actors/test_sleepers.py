"""Replicas that sleep, over a scripted Serve."""

import asyncio
from collections.abc import Mapping

from actors.connectors.protocol import ConnectorError, PoolCounts
from actors.connectors.served import ServedDeployment, ServedReplica, counts_of
from actors.connectors.sleepers import Said, Sleepers, told

AWAKE, ASLEEP, FALLING, WAKING = ({"rest": each} for each in ("awake", "asleep", "falling", "waking"))


class Pool:
    """A deployment of Serve whose replicas begin awake and obey at once; some do not answer."""

    def __init__(self, target: int, *names: str) -> None:
        self.target, self.rests, self.silent = target, dict.fromkeys(names, "awake"), set[str]()

    async def read(self, name: str) -> ServedDeployment:
        replicas = (ServedReplica(replica=each, state="RUNNING", started_s=0.0) for each in self.rests)
        return ServedDeployment(target=self.target, replicas=tuple(replicas))

    async def scale(self, name: str, replicas: int) -> None:
        self.target = replicas

    async def tell(self, name: str, replica: str, asleep: bool | None) -> Said:
        if replica in self.silent:
            raise ConnectorError("gone")
        if asleep is not None:
            self.rests[replica] = "asleep" if asleep else "awake"
        return {"rest": self.rests[replica]}


def counts(sleepers: Sleepers) -> tuple[PoolCounts, int]:
    found = asyncio.run(sleepers.read("Mixed"))
    return counts_of(found), found.asleep


def pool_counts(desired: int, ready: int, starting: int = 0, draining: int = 0) -> PoolCounts:
    return PoolCounts(desired=desired, starting=starting, ready=ready, draining=draining)


def test_the_emptiest_sleep_first_and_no_more_than_are_not_wanted() -> None:
    said: Mapping[str, Said] = {
        "busy": {**AWAKE, "requests": 9},
        "idle": {**AWAKE, "requests": 0},
        "waking": {**WAKING, "requests": 0},
    }
    assert told(1, 3, said) == {"waking": True, "idle": True}
    assert told(2, 3, said) == {"waking": True}
    assert told(3, 3, said) == {}
    # Of two that are to run one has not started: the other one stays.
    assert told(1, 2, {"only": AWAKE}) == {}


def test_those_that_only_fall_asleep_wake_first() -> None:
    said = {"a": ASLEEP, "b": FALLING, "c": AWAKE}
    assert told(2, 3, said) == {"b": False}
    assert told(3, 3, said) == {"a": False, "b": False}


def test_a_pool_keeps_its_sleepers_in_serve_and_counts_those_awake() -> None:
    pool = Pool(2, "a", "b")
    sleepers = Sleepers(pool, {"Mixed": 2}, pool.tell)
    asyncio.run(sleepers.scale("Mixed", 0))
    assert (pool.target, set(pool.rests.values())) == (2, {"asleep"})
    assert counts(sleepers) == (pool_counts(0, 0), 2)
    asyncio.run(sleepers.scale("Mixed", 3))
    assert (pool.target, set(pool.rests.values())) == (3, {"awake"})
    assert counts(sleepers) == (pool_counts(3, 2), 0)


def test_one_that_wakes_starts_and_one_that_falls_asleep_drains() -> None:
    pool = Pool(3, "a", "b", "c")
    pool.rests |= {"a": "waking", "b": "falling"}
    assert counts(Sleepers(pool, {"Mixed": 3}, pool.tell)) == (pool_counts(2, 1, starting=1, draining=1), 0)


def test_a_planner_that_comes_back_knows_what_was_wanted() -> None:
    pool = Pool(2, "a", "b")
    asyncio.run(Sleepers(pool, {"Mixed": 2}, pool.tell).scale("Mixed", 1))
    assert counts(Sleepers(pool, {"Mixed": 2}, pool.tell)) == (pool_counts(1, 1), 1)


def test_who_replaces_a_sleeper_that_died_is_put_to_sleep_at_the_next_look() -> None:
    pool = Pool(1, "a")
    sleepers = Sleepers(pool, {"Mixed": 1}, pool.tell)
    asyncio.run(sleepers.scale("Mixed", 0))
    pool.rests = {"new": "awake"}
    assert counts(sleepers)[0].desired == 0
    assert pool.rests == {"new": "asleep"}


def test_nobody_is_put_to_sleep_while_one_does_not_answer() -> None:
    pool = Pool(2, "a", "b")
    pool.silent = {"a"}
    sleepers = Sleepers(pool, {"Mixed": 2}, pool.tell)
    asyncio.run(sleepers.scale("Mixed", 1))
    assert pool.rests == {"a": "awake", "b": "awake"}


def test_a_count_that_somebody_else_set_is_what_is_wanted() -> None:
    pool = Pool(2, "a", "b")
    sleepers = Sleepers(pool, {"Mixed": 1}, pool.tell)
    asyncio.run(sleepers.scale("Mixed", 1))
    pool.target = 4
    assert counts(sleepers)[0] == pool_counts(4, 2)


def test_of_fewer_that_may_sleep_the_others_go() -> None:
    pool = Pool(2, "a", "b")
    sleepers = Sleepers(pool, {"Mixed": 2}, pool.tell)
    sleepers.keep("Mixed", 1)
    asyncio.run(sleepers.scale("Mixed", 0))
    assert pool.target == 1
    sleepers.keep("Mixed", None)
    asyncio.run(sleepers.scale("Mixed", 0))
    assert pool.target == 2
