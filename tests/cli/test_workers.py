"""The processes that simulate beside one another end with the command that started them."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from headway_cli.job import gathered, workers
from tests.patience import PATIENCE_S, until


def slow_to_end(started: Path) -> None:
    started.touch()
    try:
        time.sleep(60.0)
    finally:
        time.sleep(1.0)


def says_who(file: Path) -> None:
    written = file.with_suffix(".new")
    written.write_text(str(os.getpid()))
    written.rename(file)
    time.sleep(300.0)


def test_outcomes_come_in_the_order_of_the_calls_whichever_ends_first() -> None:
    first = threading.Event()
    calls = [lambda: (first.wait(PATIENCE_S), 1)[1], lambda: (first.set(), 2)[1]]
    done: list[int] = []
    with ThreadPoolExecutor(2) as pool:
        assert gathered(pool, calls, done.append) == [1, 2]  # type: ignore[arg-type]
    assert done == [1, 2]


def test_those_that_are_told_twice_in_one_call_end_too(tmp_path: Path) -> None:
    """Such a process took both for its call's error and waited for the next call, and its parent for it."""

    def interrupted() -> None:
        with workers(1) as pool:
            pool.submit(slow_to_end, tmp_path / "started")
            until((tmp_path / "started").exists)
            (process,) = multiprocessing.active_children()
            assert process.pid is not None
            os.kill(process.pid, signal.SIGTERM)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    # The pool's own thread may have reaped it, and have yet to note that.
    until(lambda: not multiprocessing.active_children())


@pytest.mark.slow
def test_they_end_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    """They went on with what it had asked for, and then waited, for good."""
    program = f"""
from pathlib import Path
from headway_cli.job import workers
from tests.cli.test_workers import says_who
if __name__ == "__main__":
    with workers(1) as pool:
        pool.submit(says_who, Path({str(tmp_path / "pid")!r})).result()
"""
    (tmp_path / "parent.py").write_text(program)
    root = str(Path(__file__).parents[2])
    parent = subprocess.Popen(
        [sys.executable, tmp_path / "parent.py"], env={**os.environ, "PYTHONPATH": root}
    )
    try:
        until((tmp_path / "pid").exists)
    finally:
        parent.kill()
        parent.wait()
    process = int((tmp_path / "pid").read_text())
    until(lambda: not Path(f"/proc/{process}").exists())
