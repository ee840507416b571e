"""The process that is up: the lock, the file, and what becomes of them when their holder goes."""

import fcntl
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from headway_cli import ownership
from headway_cli.errors import CliError

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


def test_somebody_who_only_looks_does_not_keep_the_next_one_out() -> None:
    with ownership._lock_file() as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        looking = threading.Timer(0.1, lambda: fcntl.flock(lock, fcntl.LOCK_UN))
        looking.start()
        with ownership.owning():
            assert ownership.is_up()
        looking.join()
