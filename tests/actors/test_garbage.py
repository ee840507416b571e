"""Full collections of a process wait until it is quiet (`actors.garbage`)."""

import asyncio
import gc

import pytest

from actors.garbage import AT_LAST_S, LOOK_EVERY_S, QUIET, collect_when_quiet
from tests.engines.virtual_loop import run


@pytest.fixture
def full(monkeypatch):
    """The moments of full collections; none is done."""
    monkeypatch.setattr(gc, "freeze", lambda: None)
    moments = []
    monkeypatch.setattr(gc, "collect", lambda: moments.append(asyncio.get_running_loop().time()))
    return moments


@pytest.mark.parametrize(("in_flight", "every_s"), [(QUIET, LOOK_EVERY_S), (QUIET + 1, AT_LAST_S)])
def test_a_full_collection_waits_for_a_quiet_moment_but_not_for_ever(full, in_flight, every_s):
    async def collecting():
        usual = gc.get_threshold()
        task = asyncio.create_task(collect_when_quiet(lambda: in_flight))
        await asyncio.sleep(3 * every_s + 1)
        assert gc.get_threshold()[:2] == usual[:2]
        assert gc.get_threshold()[2] > 10**9, "Python begins one by itself"
        task.cancel()
        await asyncio.wait([task])
        assert gc.get_threshold() == usual

    run(collecting())
    assert full == [0, every_s, 2 * every_s, 3 * every_s]
