"""A replica that sleeps and wakes, in virtual time, and turns on GPUs."""

import asyncio
import os
import stat
import sys
import time
from pathlib import Path
from subprocess import Popen

import pytest

from serve_apps.call_server import CallServer
from serve_apps.engines.protocol import EngineFailed
from serve_apps.sleeping import QUIET_S, GpuTurn, Sleeper, shared_gpus
from tests.engines.virtual_loop import run

TAKES_S, WITHIN_S = 5.0, 50.0


class Engine:
    """Takes its time to sleep and to wake; `running` requests are its load."""

    def __init__(self) -> None:
        self.running, self.log = 0, list[tuple[str, float]]()
        self.fault: Exception | None = None

    async def sleep(self, level: int) -> None:
        await self._does(f"sleep {level}")

    async def wake(self) -> None:
        await self._does("wake")

    async def _does(self, what: str) -> None:
        await asyncio.sleep(TAKES_S)
        if self.fault is not None:
            raise self.fault
        self.log.append((what, asyncio.get_running_loop().time()))


def sleeper(engine: Engine, turn: GpuTurn | None = None) -> tuple[Sleeper, CallServer]:
    calls = CallServer(lambda: "127.0.0.1", {})
    return Sleeper(
        engine, 1, calls, turn or GpuTurn(()), lambda: engine.running == 0, within_s=WITHIN_S
    ), calls


def test_it_sleeps_once_it_has_been_idle_and_refuses_calls_until_it_is_awake() -> None:
    engine = Engine()

    async def scenario() -> None:
        one, calls = sleeper(engine)
        engine.running = 1
        one.rest(True)
        await asyncio.sleep(60.0)
        assert (one.state, calls.refuses) == ("falling", "")
        engine.running = 0
        await asyncio.sleep(QUIET_S + TAKES_S + 1.0)
        assert (one.state, calls.refuses) == ("asleep", "it sleeps")
        one.rest(True)
        one.rest(False)
        await asyncio.sleep(TAKES_S / 2.0)
        assert one.said() == {"rest": "waking"}
        assert calls.refuses
        await asyncio.sleep(TAKES_S)
        assert (one.state, calls.refuses) == ("awake", "")

    run(scenario())
    assert [what for what, _ in engine.log] == ["sleep 1", "wake"]


def test_who_is_wanted_again_while_it_falls_asleep_never_slept() -> None:
    engine = Engine()

    async def scenario() -> None:
        one, _ = sleeper(engine)
        one.rest(True)
        await asyncio.sleep(QUIET_S / 2.0)
        one.rest(False)
        await asyncio.sleep(QUIET_S)
        assert one.state == "awake"

    run(scenario())
    assert engine.log == []


def test_who_is_wanted_again_while_the_engine_is_put_to_sleep_wakes_after_it() -> None:
    engine = Engine()

    async def scenario() -> None:
        one, _ = sleeper(engine)
        one.rest(True)
        await asyncio.sleep(QUIET_S + TAKES_S / 2.0)
        one.rest(False)
        await asyncio.sleep(2.0 * TAKES_S)
        assert one.state == "awake"

    run(scenario())
    assert [what for what, _ in engine.log] == ["sleep 1", "wake"]


def test_an_engine_that_can_not_wake_is_broken() -> None:
    async def scenario() -> None:
        engine = Engine()
        one, calls = sleeper(engine)
        one.rest(True)
        await asyncio.sleep(QUIET_S + TAKES_S + 1.0)
        engine.fault = RuntimeError("no memory")
        one.rest(False)
        await asyncio.sleep(TAKES_S + 1.0)
        with pytest.raises(EngineFailed, match="can't sleep or wake: no memory"):
            one.check()
        one.rest(False)
        assert calls.refuses

    run(scenario())


def test_it_waits_for_its_gpu_and_sleeps_on_when_it_is_no_longer_wanted(tmp_path: Path) -> None:
    async def scenario() -> None:
        one, _ = sleeper(Engine(), GpuTurn(["0"], tmp_path))
        one.rest(True)
        await asyncio.sleep(QUIET_S + TAKES_S + 1.0)
        other = GpuTurn(["1", "0"], tmp_path)
        assert other.take()
        one.rest(False)
        await asyncio.sleep(60.0)
        assert one.said() == {"rest": "waking", "waits": True}
        one.rest(True)
        await asyncio.sleep(1.0)
        assert one.said() == {"rest": "asleep"}
        one.rest(False)
        other.leave()
        await asyncio.sleep(TAKES_S + 1.0)
        assert one.said() == {"rest": "awake"}
        assert not other.take()

    run(scenario())


def test_who_holds_a_gpu_sees_that_others_wait_for_it_until_they_give_up_or_die(tmp_path: Path) -> None:
    holder, one, both = (GpuTurn(each, tmp_path) for each in (["0"], ["0"], ["0", "1"]))
    assert holder.take()
    # A look asks for nothing.
    assert not one.take()
    assert not holder.wanted
    assert not one.ask()
    assert not both.ask()
    assert holder.wanted
    one.leave()
    assert holder.wanted
    both.leave()
    assert not holder.wanted
    waiting = (
        f"from serve_apps.sleeping import *; asyncio.run(GpuTurn(['0'], Path({str(tmp_path)!r})).wait())"
    )
    with Popen([sys.executable, "-c", waiting]) as process:
        while not holder.wanted:
            time.sleep(0.01)
        process.kill()
    assert not holder.wanted
    assert not one.ask()
    holder.leave()
    assert one.ask()
    assert not one.wanted


def test_who_does_not_get_all_gpus_has_none_of_them(tmp_path: Path) -> None:
    both, last, first = (GpuTurn(each, tmp_path) for each in (["0", "1"], ["1"], ["0"]))
    assert last.take()
    assert not both.take()
    assert first.take()
    assert first.take()


def test_engines_of_several_gpus_fill_sets_that_do_not_overlap(tmp_path: Path) -> None:
    places = [shared_gpus(2, 2, of=5, folder=tmp_path) for _ in range(4)]
    assert [place.gpus for place in places] == [["0", "1"], ["2", "3"]] * 2
    with pytest.raises(EngineFailed, match="the 5 GPUs of this node have no place for one more engine of 2"):
        shared_gpus(2, 2, of=5, folder=tmp_path)
    places[3].held.leave()
    # Engines of another size lie across them.
    assert shared_gpus(4, 2, of=5, folder=tmp_path).gpus == ["0", "1", "2", "3"]
    assert shared_gpus(2, 2, of=5, folder=tmp_path).gpus == ["2", "3"]


def test_engines_that_share_some_of_their_gpus_never_wait_for_each_other(tmp_path: Path) -> None:
    small, large = GpuTurn(["1", "2"], tmp_path), GpuTurn(["3", "2", "1", "0"], tmp_path)
    assert large.take()
    assert not small.take()
    large.leave()
    assert small.take()
    # It gave 0 back when it did not get 1.
    assert not large.take()
    assert GpuTurn(["0"], tmp_path).take()


def test_locks_are_private_and_a_folder_of_another_user_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn = GpuTurn(["0"], tmp_path / "turns")
    assert turn.take()
    folder, lock = tmp_path / "turns", tmp_path / "turns" / "gpu-0.lock"
    assert [stat.S_IMODE(each.stat().st_mode) for each in (folder, lock)] == [0o700, 0o600]
    turn.leave()
    monkeypatch.setattr(os, "getuid", lambda: (tmp_path / "turns").stat().st_uid + 1)
    with pytest.raises(EngineFailed, match="turns belongs to another user"):
        turn.take()


def test_an_engine_that_does_not_end_waking_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        engine = Engine()
        one, _ = sleeper(engine)
        one.rest(True)
        await asyncio.sleep(QUIET_S + TAKES_S + 1.0)
        monkeypatch.setitem(globals(), "TAKES_S", 1e6)
        one.rest(False)
        await asyncio.sleep(WITHIN_S - 1.0)
        one.check()
        await asyncio.sleep(2.0)
        with pytest.raises(EngineFailed, match="no end of it after 50 s"):
            one.check()

    run(scenario())
