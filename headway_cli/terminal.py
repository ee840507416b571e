"""Output for people: tables, named sentences and notes; progress, where a person watches standard error."""

import sys
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from textwrap import wrap

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.measure import Measurement
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

WIDTH_OF_FILES = 120
NOTES_SHOWN = 8
MINIMUM_WIDTH = 40
UNBOUNDED = 10_000

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
) -> RenderableType:
    """Columns of plain text: the first `names` stand left, figures right; those in `whole` are not folded.

    Where a window is too narrow for the figures, each row is a block of lines instead.
    """
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0) if dense else (0, 1))
    for at, name in enumerate(head):
        if at < names:
            made.add_column(Text(name), no_wrap=at in whole, overflow="fold")
        else:
            made.add_column(Text(name), no_wrap=at in whole, justify="right")
    every = [list(cells) for cells in rows]
    for column, texts in zip(made.columns, zip(head, *every, strict=False), strict=False):
        if column.no_wrap:
            # Rich takes a column for as narrow as its longest word, also where it may not wrap.
            column.min_width = max(cell_len(line) for text in texts for line in text.split("\n"))
    for cells in every:
        made.add_row(*map(Text, cells))
    return _FittingTable(made, head, every)


class _FittingTable:
    """A table, or its rows one after the other, a line for each cell that is not empty."""

    def __init__(self, made: Table, head: Cells, rows: Sequence[Cells]) -> None:
        self._made, self._head, self._rows = made, head, rows

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        needed = Measurement.get(console, options.update(width=UNBOUNDED), self._made).minimum
        if needed <= options.max_width:
            yield self._made
            return
        margin = max(map(len, self._head)) + 2
        for cells in self._rows:
            yield ""
            yield from (
                Text(f"{name:<{margin}}{cell}".replace("\n", " "))
                for name, cell in zip(self._head, cells, strict=True)
                if cell
            )
        yield ""


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
    share = TaskProgressColumn("[progress.percentage]{task.percentage:>3.0f} %")
    columns = (TextColumn("{task.description}"), BarColumn(), share, TimeRemainingColumn())
    with Progress(*columns, console=error_console(), transient=True) as progress:
        task = progress.add_task(label, total=None)
        yield lambda done, total: progress.update(task, completed=min(done, total), total=total)


def say(text: str) -> None:
    """A remark on standard error, if that is a terminal."""
    if sys.stderr.isatty():
        error_console().print(text)


def announce_compilation() -> None:
    """Say so if the simulator has yet to be compiled."""
    from headway.simulation.kernel import COMPILED_FROM
    from interp.jit import drop_stale_cache

    if drop_stale_cache(*COMPILED_FROM):
        say("compiling the simulator (once) …")
