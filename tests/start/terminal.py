"""A terminal in which a test types what a page prints, and the folder that its reader is in."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

import pytest

from tests.patience import PATIENCE_S
from tests.start.printed import ROOT

INSTALLED = ("pyproject.toml", "constraints.txt")
"""What `make setup` goes by: older than its stamp, so that it has nothing to do here."""


def clone(folder: Path) -> Path:
    """A reader's clone in which `make setup` is done: this checkout, with its virtual environment."""
    (folder / "out").mkdir(parents=True)
    for entry in ROOT.iterdir():
        if entry.name not in {"out", ".git", ".venv"}:
            (folder / entry.name).symlink_to(entry)
    return set_up(folder)


def set_up(folder: Path) -> Path:
    """Have the environment that runs the tests as that of this clone."""
    venv = Path(sys.prefix)
    if not (venv / ".installed").exists():
        pytest.skip("not the environment that make setup makes")
    (folder / ".venv").symlink_to(venv)
    for name in INSTALLED:
        path = folder / name
        content = path.read_bytes()
        path.unlink()
        path.write_bytes(content)
        os.utime(path, (0, 0))
    return folder


ENDED_S = 20.0
"""For a command that a failed test left running."""


class Terminal:
    """A bash of its own in a folder. What runs in its background ends with it."""

    def __init__(self, folder: Path, **environment: str) -> None:
        script = folder / "browser"
        script.write_text(f'#!/bin/sh\necho "$1" > {folder}/browsed\n', encoding="utf-8")
        script.chmod(0o755)
        self.browsed = folder / "browsed"
        kept = {name: value for name, value in os.environ.items() if not name.startswith("HEADWAY")}
        self._bash = subprocess.Popen(
            ["bash", "--noprofile", "--norc"],
            cwd=folder,
            # Settings that an earlier run left to this user are not this one's.
            env={
                **kept,
                "BROWSER": str(script),
                "PYTHONPATH": str(ROOT),
                "XDG_STATE_HOME": str(folder / "out" / "state"),
                **environment,
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.interrupt(ENDED_S)
        os.killpg(self._bash.pid, signal.SIGKILL)
        self._bash.communicate()

    def type(self, line: str) -> str:
        """What the line printed. It must end with 0."""
        code, printed = self.attempt(line)
        assert code == 0, f"{line}\n{printed}"
        return printed

    def attempt(self, line: str) -> tuple[int, str]:
        """Its exit code, and what it printed."""
        self.begin(f"{line}\nprintf '\\n<%s>\\n' $?")
        printed = ""
        for each in self._lines():
            if end := re.fullmatch(r"<(\d+)>\n", each):
                return int(end[1]), printed
            printed += each
        raise AssertionError(f"the shell ended in {line}\n{printed}")

    def until(self, line: str, holds: Callable[[str], bool]) -> str:
        """Type it again and again until it ends with 0 and prints what holds."""
        end_s = time.monotonic() + PATIENCE_S
        while True:
            code, printed = self.attempt(line)
            if code == 0 and holds(printed):
                return printed
            assert time.monotonic() < end_s, f"{line}\n{printed}"
            time.sleep(1.0)

    def begin(self, line: str) -> None:
        """Type it, and do not wait for its end."""
        assert self._bash.stdin is not None
        self._bash.stdin.write(line + "\n")
        self._bash.stdin.flush()

    def shows(self, pattern: str) -> "re.Match[str]":
        """Read what the running command prints until a line has that pattern."""
        printed = ""
        for each in self._lines():
            printed += each
            if found := re.search(pattern, each):
                return found
        raise AssertionError(f"{pattern} never came:\n{printed}")

    def interrupt(self, within_s: float = PATIENCE_S) -> None:
        """Ctrl-C, and wait until the commands that heed it have ended; those in the background do not."""
        children = subprocess.run(
            ["ps", "-o", "pid=", "--ppid", str(self._bash.pid)], capture_output=True, text=True, check=False
        )
        pids = [int(each) for each in children.stdout.split()]
        for pid in pids:
            os.kill(pid, signal.SIGINT)
        end_s = time.monotonic() + within_s
        while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < end_s:
            time.sleep(0.1)

    def _lines(self) -> Iterator[str]:
        assert self._bash.stdout is not None
        while line := self._bash.stdout.readline():
            yield line


@contextmanager
def below(parent: Path) -> Iterator[Path]:
    """A clone in that folder, gone afterwards."""
    folder = clone(parent / "headway")
    try:
        yield folder
    finally:
        shutil.rmtree(folder)
