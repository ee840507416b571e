"""Full collections of a process wait until it is quiet (`actors.garbage`)."""

import asyncio
import gc
import sys

import pytest

from actors.garbage import LOOK_EVERY_S, MOST_BLOCKS, QUIET, collect_when_quiet
from tests.engines.virtual_loop import run


@pytest.fixture
def full(monkeypatch):
    """The moments of full collections; none is done."""
    monkeypatch.setattr(gc, "freeze", lambda: None)
    moments = []
    monkeypatch.setattr(gc, "collect", lambda: moments.append(asyncio.get_running_loop().time()))
    return moments


@pytest.mark.parametrize(
    ("in_flight", "blocks_s", "every_s"),
    [
        (QUIET, 0.0, LOOK_EVERY_S),
        (QUIET + 1, MOST_BLOCKS / (2.5 * LOOK_EVERY_S), 3 * LOOK_EVERY_S),
        (QUIET + 1, 0.0, None),
    ],
)
def test_a_full_collection_waits_for_a_quiet_moment_unless_memory_grows(
    full, monkeypatch, in_flight, blocks_s, every_s
):
    def blocks():
        return int(blocks_s * asyncio.get_running_loop().time())

    monkeypatch.setattr(sys, "getallocatedblocks", blocks)

    async def collecting():
        usual = gc.get_threshold()
        task = asyncio.create_task(collect_when_quiet(lambda: in_flight))
        await asyncio.sleep(3 * (every_s or 100 * LOOK_EVERY_S) + 1)
        assert gc.get_threshold()[:2] == usual[:2]
        assert gc.get_threshold()[2] > 10**9, "Python begins one by itself"
        task.cancel()
        await asyncio.wait([task])
        assert gc.get_threshold() == usual

    run(collecting())
    assert full == ([0, every_s, 2 * every_s, 3 * every_s] if every_s else [0])


def test_a_process_in_parts_passes_over_what_it_has_looked_through(full, monkeypatch):
    frozen = []
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(len(full)))
    grown = MOST_BLOCKS / 20
    monkeypatch.setattr(sys, "getallocatedblocks", lambda: int(grown * asyncio.get_running_loop().time()))

    async def collecting():
        task = asyncio.create_task(collect_when_quiet(lambda: QUIET + 1, in_parts=True))
        await asyncio.sleep(6.5)
        task.cancel()
        await asyncio.wait([task])

    run(collecting())
    assert full == [0, 3, 6]
    assert frozen == [1, 2, 3]
