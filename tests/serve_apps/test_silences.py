"""Replicas without progress on a gateway's requests, in virtual time."""

import asyncio

import pytest

from headway.planning import Role
from headway.planning.silence import SILENT_S
from serve_apps.compat_serve import Lost
from serve_apps.membership import Membership
from serve_apps.silences import Silences

pytestmark = pytest.mark.anyio


class Replica:
    """It has sent `received` messages, and its engine has done `progress`; None: it does not answer."""

    def __init__(self) -> None:
        self.received = 0
        self.progress: float | None = 0.0
        self.asked = 0

    async def ask(self) -> tuple[float, ...]:
        self.asked += 1
        if self.progress is None:
            raise Lost("no answer")
        self.received += 1
        return (self.progress,)


class Fleet:
    """Two decode replicas, and requests of ours on `a`."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.replicas = {"a": Replica(), "b": Replica()}
        self.pool = Membership(clock=lambda: self.now_s)
        self.pool.update((name, {}) for name in self.replicas)
        self.silences = Silences(
            {"Decode": (Role.DECODE, self.pool)},
            lambda _, name: self.replicas[name].received,
            lambda _, name: self.replicas[name].ask(),
            SILENT_S,
            lambda: self.now_s,
        )
        self.pool.sent("a", "1")
        self.pool.sent("a", "2")

    async def look(self, seconds: float) -> list[tuple[str, float, int]]:
        """What is silent after looks in that time, one a second."""
        for _ in range(int(seconds)):
            self.now_s += 1.0
            self.silences.look()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        return [tuple(each) for each in self.silences.now()]


@pytest.fixture
def fleet() -> Fleet:
    return Fleet()


async def test_a_process_that_hangs_is_named_within_ten_seconds_and_gets_nothing_new(fleet: Fleet) -> None:
    fleet.replicas["a"].progress = None
    assert await fleet.look(SILENT_S) == []
    assert fleet.pool.pick("least_load", fleet.now_s, Role.DECODE) == "b"
    ((part, seconds, requests),) = await fleet.look(2)
    assert (part, requests) == ("Decode#a", 2)
    assert SILENT_S <= seconds <= 10.0
    fleet.pool.sent("b", "3"), fleet.pool.sent("b", "4"), fleet.pool.sent("b", "5")
    # It has fewer requests, but makes no progress.
    assert fleet.pool.pick("least_load", fleet.now_s, Role.DECODE) == "b"
    fleet.replicas["a"].received += 1
    assert await fleet.look(3) == []
    assert fleet.pool.pick("least_load", fleet.now_s, Role.DECODE) == "a"


async def test_an_engine_that_hangs_beside_its_process_is_named(fleet: Fleet) -> None:
    fleet.replicas["a"].progress = 7.0
    ((part, _, requests),) = await fleet.look(12)
    assert (part, requests) == ("Decode#a", 2)


async def test_an_engine_at_work_on_a_long_prompt_is_not_silent(fleet: Fleet) -> None:
    for chunk in range(30):
        fleet.replicas["a"].progress = float(chunk)
        assert await fleet.look(1) == []


async def test_busy_replicas_are_not_asked_and_idle_ones_are_not_looked_at(fleet: Fleet) -> None:
    for _ in range(20):
        fleet.replicas["a"].received += 5
        assert await fleet.look(1) == []
    assert fleet.replicas["a"].asked == 0
    fleet.pool.done("a", "1"), fleet.pool.done("a", "2")
    assert await fleet.look(20) == []
    assert fleet.replicas["a"].asked == 0


async def test_where_all_hang_none_is_left_out(fleet: Fleet) -> None:
    fleet.pool.sent("b", "3")
    for replica in fleet.replicas.values():
        replica.progress = None
    assert len(await fleet.look(10)) == 2
    assert not any(member.suspect_until_s > fleet.now_s for member in fleet.pool.members)
