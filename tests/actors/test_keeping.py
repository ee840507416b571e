"""Actors that hang, over doubles of Ray: what is ended, and when again."""

import asyncio

import pytest

from actors import keeping
from actors.keeping import ANSWER_WITHIN_S, END_S, KEEP_S, Hanging
from actors.names import ActorGone, TooSlow
from tests.engines.virtual_loop import on_virtual_time


class Actor:
    """One that answers, hangs, or is gone."""

    state = "answers"

    def __init__(self, name: str) -> None:
        self.name = name

    async def call(self, method: str, *, timeout_s: float) -> None:
        if Actor.state == "gone":
            raise ActorGone(f"{self.name} is not there")
        if Actor.state == "hangs":
            await asyncio.sleep(timeout_s)
            raise TooSlow(f"{self.name}.{method}")


@pytest.fixture
def hanging(monkeypatch) -> Hanging:
    monkeypatch.setattr(keeping, "NamedActor", Actor)
    return Hanging(now_s)


def now_s() -> float:
    return asyncio.get_running_loop().time()


async def ended(hanging: Hanging, state: str, seconds: float) -> list[float]:
    """The times at which the actor is to be ended, while it is in that state for so long."""
    Actor.state, times, until_s = state, [], now_s() + seconds
    while now_s() < until_s:
        await asyncio.sleep(KEEP_S)
        times += [now_s() for _ in await hanging.look(("Predictor",))]
    return times


@on_virtual_time
async def test_an_actor_that_hangs_is_ended_and_later_each_time(hanging) -> None:
    for times in (1.0, 2.0, 4.0):
        assert await ended(hanging, "answers", 30.0) == []
        began_s = now_s()
        (end_s,) = await ended(hanging, "hangs", 10.0 * END_S)
        assert end_s - began_s == pytest.approx(times * END_S, abs=KEEP_S + 2 * ANSWER_WITHIN_S)


@on_virtual_time
async def test_an_actor_that_starts_or_is_gone_is_left_alone(hanging) -> None:
    assert await ended(hanging, "hangs", 10 * END_S) == []
    assert await ended(hanging, "answers", 30.0) == []
    assert await ended(hanging, "gone", 10 * END_S) == []
    assert await ended(hanging, "hangs", 10 * END_S) == []
