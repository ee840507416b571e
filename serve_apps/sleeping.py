"""A replica that sleeps while it is not wanted, and engines that take turns on a GPU.

    awake ── rest(True) ──▶ falling ── idle for QUIET_S ──▶ asleep ── rest(False) ──▶ waking ──▶ awake
                               └──────────── rest(False) ───────────────────────────────────────▶ awake

A replica that is not awake says so in its reports, and gateways send it nothing more; what it has ends whole.
KV that a decode replica may yet fetch counts as work. A call that comes while it sleeps is refused as by a
replica that is gone, and placed elsewhere.

Engines that share a GPU hold the lock of a file of this machine while they are awake or start: one at a time.
Those of several GPUs hold all of these or none, so none waits with a lock that another wants. Those that wait
share the lock of a second file, so the holder knows of them. The kernel takes the locks from a process that
dies.
"""

import asyncio
import fcntl
import logging
import os
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import Context
from pathlib import Path
from typing import Any, Literal, NamedTuple

from serve_apps.call_server import CallServer
from serve_apps.engines.protocol import EngineFailed, SleepingEngine

QUIET_S = 2.0
"""Several periods in which gateways hear of it."""

POLL_S = 0.1
TURNS = Path(tempfile.gettempdir()) / f"headway-gpus-{os.getuid()}"
"""One a user: GPUs are shared inside one Ray, and others are not to hold these locks."""

State = Literal["awake", "falling", "asleep", "waking"]
logger = logging.getLogger("ray.serve")


class GpuTurn:
    """The right to use some GPUs of this machine; without any it is always there."""

    def __init__(self, gpus: Sequence[str], folder: Path = TURNS) -> None:
        self._paths = [folder / f"gpu-{gpu}.lock" for gpu in sorted(gpus)]
        self._held, self._asked = list[int](), list[int]()

    def take(self) -> bool:
        """False while another engine has one of them. EngineFailed where the folder is another user's."""
        for path in self._paths[len(self._held) :]:
            if (file := _locked(path, fcntl.LOCK_EX)) is None:
                _close(self._held)
                return False
            self._held.append(file)
        _close(self._asked)
        return True

    def ask(self) -> bool:
        """The same; until it is there, or left, the holder sees that it is wanted."""
        if not (taken := self.take()) and not self._asked:
            files = (_locked(path.with_suffix(".asked"), fcntl.LOCK_SH) for path in self._paths)
            self._asked = [file for file in files if file is not None]
        return taken

    @property
    def wanted(self) -> bool:
        """True while others ask for it."""
        files = [_locked(path.with_suffix(".asked"), fcntl.LOCK_EX) for path in self._paths]
        _close([file for file in files if file is not None])
        return None in files

    async def wait(self) -> None:
        """Take it as soon as it is free. EngineFailed."""
        while not self.ask():
            await asyncio.sleep(POLL_S)

    def leave(self) -> None:
        """Others may take it."""
        _close(self._held)
        _close(self._asked)


def _locked(path: Path, kind: int) -> int | None:
    """An open file that is locked; None while others have a lock of it. EngineFailed."""
    path.parent.mkdir(mode=0o700, exist_ok=True)
    if path.parent.lstat().st_uid != os.getuid():
        raise EngineFailed(f"{path.parent} belongs to another user; locks of GPUs can't be there")
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        return None
    return file


def _close(files: list[int]) -> None:
    while files:
        os.close(files.pop())


class Place(NamedTuple):
    """Of an engine of several GPUs; nobody else has it while `held` is."""

    gpus: Sequence[str]
    held: GpuTurn


def shared_gpus(gpus: int, engines: int, *, of: int, folder: Path = TURNS) -> Place:
    """One of `engines` places on so many of the `of` GPUs of this machine. EngineFailed: all are taken.

    The GPUs are sets that do not overlap, 0 1 and 2 3 for example, and that with the fewest engines is taken.
    """
    for number in range(engines):
        for first in range(0, of - gpus + 1, gpus):
            names = [str(gpu) for gpu in range(first, first + gpus)]
            held = GpuTurn([f"{'+'.join(names)}-engine-{number}"], folder)
            if held.take():
                return Place(names, held)
    raise EngineFailed(f"the {of} GPUs of this node have no place for one more engine of {gpus}")


class Sleeper:
    """Puts one engine to sleep and wakes it; all calls belong to one event loop."""

    def __init__(
        self,
        engine: SleepingEngine,
        level: int,
        calls: CallServer,
        turn: GpuTurn,
        idle: Callable[[], bool],
        *,
        within_s: float,
    ) -> None:
        """`idle`: True while the engine has nothing that anybody may want. One that takes longer than
        `within_s` to sleep or wake has failed.
        """
        self._engine, self._level, self._calls, self._turn, self._idle = engine, level, calls, turn, idle
        self._within_s = within_s
        self.state: State = "awake"
        self.waits = False
        """True while another engine has its GPU."""
        self._wanted = True
        self._settling: asyncio.Task[None] | None = None

    def rest(self, asleep: bool) -> None:
        """Begin to fall asleep, or to wake; nothing where that is so already."""
        self._wanted = not asleep
        if self._settling is None or (self._settling.done() and not self._failed):
            # In a context of its own: Serve cancels with a call whatever was called in its context.
            self._settling = asyncio.create_task(self._settle(), context=Context())

    def check(self) -> None:
        """EngineFailed where the engine could not sleep or wake."""
        if self._failed:
            assert self._settling is not None
            raise EngineFailed(f"it can't sleep or wake: {self._settling.exception()}")

    def said(self) -> Mapping[str, Any]:
        """For reports."""
        wanted = self.state == "awake" and self._turn.wanted
        return {
            "rest": self.state,
            **({"waits": True} if self.waits else {}),
            **({"wanted": True} if wanted else {}),
        }

    @property
    def _failed(self) -> bool:
        task = self._settling
        return task is not None and task.done() and not task.cancelled() and task.exception() is not None

    async def _settle(self) -> None:
        while self._wanted != (self.state == "awake"):
            await (self._wake() if self._wanted else self._fall())

    async def _fall(self) -> None:
        if self.state != "asleep":
            self.state = "falling"
        quiet_s = 0.0
        while self.state == "falling":
            if self._wanted:
                self.state = "awake"
            elif quiet_s < QUIET_S:
                await asyncio.sleep(POLL_S)
                quiet_s = quiet_s + POLL_S if self._idle() and not self._calls.busy else 0.0
            else:
                # Nothing comes between the last look and this.
                self._calls.refuses = "it sleeps"
                await self._in_time(self._engine.sleep(self._level))
                self._turn.leave()
                self.state = "asleep"

    async def _wake(self) -> None:
        self.state = "waking"
        while self._wanted and not self._turn.ask():
            self.waits = True
            await asyncio.sleep(POLL_S)
        self.waits = False
        if not self._wanted:
            self._turn.leave()
            self.state = "asleep"
            return
        await self._in_time(self._engine.wake())
        self._calls.refuses = ""
        self.state = "awake"

    async def _in_time(self, work: Awaitable[None]) -> None:
        try:
            async with asyncio.timeout(self._within_s):
                await work
        except TimeoutError as error:
            raise EngineFailed(f"no end of it after {self._within_s:g} s") from error
