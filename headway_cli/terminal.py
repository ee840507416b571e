"""Progress on standard error, only where a person watches it."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

Report = Callable[[float, float], None]


def error_console() -> Console:
    """Standard error."""
    return Console(stderr=True, highlight=False)


@contextmanager
def bar(label: str) -> Iterator[Report | None]:
    """A progress bar as a function of (done, total); None when standard error is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=error_console(), transient=True) as progress:
        task = progress.add_task(label, total=None)
        yield lambda done, total: progress.update(task, completed=min(done, total), total=total)


def say(text: str) -> None:
    """A remark to a person who waits; nothing when standard error is no terminal."""
    if sys.stderr.isatty():
        error_console().print(text)


def announce_compilation() -> None:
    """Say so if the simulator has yet to be compiled."""
    from headway.simulation.kernel import COMPILED_FROM
    from interp.jit import drop_stale_cache

    if drop_stale_cache(*COMPILED_FROM):
        say("compiling the simulator (once) …")
