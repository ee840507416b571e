"""`headway up`: one process of a user at a time, nothing left of what does not come up, Ray's environment."""

import fcntl
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headway.config import load_config
from headway_cli import ownership
from headway_cli import up as starting
from headway_cli.cluster import Cluster
from headway_cli.deployment import AlreadyThere, Deployed
from headway_cli.errors import CliError
from tests.patience import PATIENCE_S


@pytest.fixture
def deleted(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """One entry for each time that the application was deleted."""
    times: list[bool] = []

    @contextmanager
    def joined(address: str | None, *, insecure: bool) -> Iterator[Cluster]:
        assert not insecure
        yield Cluster(address=address or "")

    def delete(_: str) -> bool:
        times.append(True)
        return True

    monkeypatch.setattr(starting, "cluster", joined)
    monkeypatch.setattr(starting, "addresses", lambda: ["10.0.0.1"])
    monkeypatch.setattr(starting, "delete", delete)
    return times


def up(monkeypatch: pytest.MonkeyPatch, outcome: BaseException | None, *, stay: bool) -> None:
    def deploy(*_: object) -> Deployed:
        if outcome is not None:
            raise outcome
        return Deployed(url="http://127.0.0.1:1")

    monkeypatch.setattr(starting, "deploy", deploy)
    starting.stay_on_cluster(load_config(None), "auto", lambda _: None, stay=stay, insecure=False)


@pytest.mark.parametrize("stay", [True, False])
@pytest.mark.parametrize("fault", [CliError("not ready after 300 s"), KeyboardInterrupt(), SystemExit(143)])
def test_what_does_not_come_up_is_deleted(
    fault: BaseException, stay: bool, deleted: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(type(fault)):
        up(monkeypatch, fault, stay=stay)
    assert len(deleted) == 1


def test_the_application_of_somebody_else_is_not(
    deleted: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(AlreadyThere):
        up(monkeypatch, AlreadyThere("already on this cluster"), stay=True)
    assert deleted == []


def test_detached_it_stays(deleted: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    up(monkeypatch, None, stay=False)
    assert deleted == []


HOLD = """
import sys
from headway_cli import ownership
with ownership.owning():
    ownership.announce("http://127.0.0.1:1234", None)
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


def holder() -> "subprocess.Popen[str]":
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_nothing_is_up() -> None:
    assert not ownership.is_up()
    assert ownership.current() is None


def test_a_holder_is_found_and_another_is_refused() -> None:
    with holder() as process:
        owner = ownership.current()
        assert owner is not None
        assert (owner.pid, owner.url) == (process.pid, "http://127.0.0.1:1234")
        already = f"already up .process {process.pid}. at http://127.0.0.1:1234"
        with pytest.raises(CliError, match=already), ownership.owning():
            pass
        assert process.stdin is not None
        process.stdin.close()
        process.wait()
    assert ownership.current() is None


def test_a_killed_holder_holds_nothing() -> None:
    with holder() as process:
        process.kill()
        process.wait()
        assert ownership.current() is None
        with ownership.owning():
            ownership.announce(None, Path("/somewhere"))
            owner = ownership.current()
            assert owner is not None
            assert (owner.pid, owner.url, owner.directory) == (os.getpid(), None, "/somewhere")


def test_another_process_with_the_same_id_is_no_owner(tmp_path: Path) -> None:
    with holder() as process:
        path = tmp_path / "headway" / "up.json"
        path.write_text(path.read_text().replace('"started": "', '"started": "1'))
        with pytest.raises(CliError, match="just beginning or ending"):
            ownership.current()
        assert process.poll() is None


def test_processes_have_start_times() -> None:
    assert ownership.start_time(os.getpid()) == ownership.start_time(os.getpid())
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert ownership.start_time(gone.pid) is None


def test_somebody_who_only_looks_does_not_keep_the_next_one_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ownership, "LOOK_S", PATIENCE_S)
    (tmp_path / "headway").mkdir()
    with (tmp_path / "headway" / "up.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        looking = threading.Timer(0.1, lambda: fcntl.flock(lock, fcntl.LOCK_UN))
        looking.start()
        with ownership.owning():
            assert ownership.is_up()
        looking.join()


STARTS_CHILDREN = """
import asyncio, signal, subprocess, threading
from headway_cli.cluster import prepare_environment

prepare_environment()
import ray
from grpc import aio

def unblocked():
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})

async def started():
    server = aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        await channel.channel_ready()
        children = [subprocess.Popen(["true"], preexec_fn=unblocked) for _ in range(300)]
        print([child.wait() for child in children].count(0))
    await server.stop(None)

asyncio.run(started())
"""
"""As Ray starts its processes. Without the environment some tens of these children crash, unnoticed."""


@pytest.mark.slow
def test_no_child_crashes_in_a_fork_beside_grpc() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", STARTS_CHILDREN],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split() == ["300"], ran.stderr[-2000:]


@pytest.mark.parametrize(("wished", "says"), [(8000, True), (8001, False), (0, False)])
def test_a_port_that_was_taken_is_said(wished: int, says: bool, capsys: pytest.CaptureFixture[str]) -> None:
    starting.announce_pages(load_config(None, {"gateway.port": wished}), "http://127.0.0.1:8001")
    line = "Port        8000 (gateway.port) is taken, so it listens on 8001"
    assert (line in capsys.readouterr().out) is says
