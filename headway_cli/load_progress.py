"""The progress of a replay on standard error: rate, attainment and errors so far, where a person watches."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from headway.loadgen import Progress as LoadProgress
from headway_cli.progress import error_console
from headway_cli.words import percent

Tell = Callable[[LoadProgress], None]


@contextmanager
def load_bar(requests: int, span_s: float) -> Iterator[Tell | None]:
    """A bar over the trace's time, with the figures so far; None when standard error is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    columns = (BarColumn(bar_width=24), TextColumn("{task.description}"), TimeRemainingColumn())
    with Progress(*columns, console=error_console(), transient=True) as progress:
        task = progress.add_task("waiting for the first answer", total=span_s)

        def tell(state: LoadProgress) -> None:
            text = f"{state.sent:,} of {requests:,} sent, {figures(state)}"
            progress.update(task, completed=min(state.elapsed_s, span_s), description=text)

        yield tell


def figures(state: LoadProgress) -> str:
    """`3.2/s, 14 in flight, 98.7 % within SLO, 2 failed`."""
    tally = state.tally
    parts = [
        f"{state.sent / state.elapsed_s:.3g}/s" if state.elapsed_s else "0/s",
        f"{state.in_flight} in flight",
        f"{percent(tally.attainment)} within SLO",
    ]
    parts += [f"{count} {name}" for name, count in (("failed", tally.failed), ("shed", tally.shed)) if count]
    return ", ".join(parts)
