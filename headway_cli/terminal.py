"""Output for people: tables, named sentences and notes; progress, where a person watches standard error."""

import sys
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from textwrap import wrap

from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

WIDTH_OF_FILES = 120
NOTES_SHOWN = 8
MINIMUM_WIDTH = 40

Report = Callable[[float, float], None]
Cells = Sequence[str]


def console(*, to_stderr: bool = False) -> Console:
    """The console for tables; a fixed width where there is no window."""
    found = Console(stderr=to_stderr, highlight=False)
    return found if found.is_terminal else Console(stderr=to_stderr, highlight=False, width=WIDTH_OF_FILES)


def error_console() -> Console:
    """Standard error."""
    return Console(stderr=True, highlight=False)


def bold(text: str) -> Text:
    """A headline."""
    return Text(text, style="bold")


def table(
    head: Cells, rows: Iterable[Cells], *, names: int = 1, dense: bool = True, whole: Container[int] = ()
) -> Table:
    """Columns of plain text: the first `names` stand left, figures right; those in `whole` are not folded."""
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0) if dense else (0, 1))
    for at, name in enumerate(head):
        if at < names:
            made.add_column(Text(name), no_wrap=at in whole, overflow="fold")
        else:
            made.add_column(Text(name), no_wrap=at in whole, justify="right")
    for cells in rows:
        made.add_row(*map(Text, cells))
    return made


def print_facts(facts: Mapping[str, str], out: Console) -> None:
    """Names and sentences, in two columns."""
    margin = max(map(len, facts), default=0) + 2
    for name, text in facts.items():
        _print_wrapped(text, out, f"{name:<{margin}}", " " * margin)


def print_notes(notes: Sequence[str], out: Console, rest: str = "--json") -> None:
    """The notes, the first ones in full; `rest` is the flag that gives all."""
    if not notes:
        return
    out.print(bold("Notes"))
    for note in notes[:NOTES_SHOWN]:
        _print_wrapped(note, out, "- ", "  ")
    if len(notes) > NOTES_SHOWN:
        out.print(Text(f"- and {len(notes) - NOTES_SHOWN} more, see {rest}", style="dim"))


def _print_wrapped(text: str, out: Console, first: str, rest: str) -> None:
    width = max(MINIMUM_WIDTH, out.width)
    for line in wrap(text, width, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False):
        out.print(Text(line), soft_wrap=True)


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
