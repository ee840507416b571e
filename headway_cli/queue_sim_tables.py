"""The document of `headway queue-sim` on the terminal."""

from collections.abc import Iterable

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from headway_cli.queue_sim_words import (
    HEAD,
    MOST_PATTERNS,
    Cells,
    Document,
    headline,
    orders,
    pattern_head,
    pattern_rows,
    rows,
)
from headway_cli.tables import print_facts, print_notes


def print_document(document: Document, out: Console) -> None:
    """Policies, patterns, orders, notes."""
    out.print(Text(headline(document), style="bold"))
    out.print(_table(HEAD, rows(document)))
    if len(document["setup"]["patterns"]) <= MOST_PATTERNS:
        out.print(_table(pattern_head(document), pattern_rows(document)))
    else:
        out.print(Text("The figures of each pattern are in the --json and --plot files.", style="dim"))
    for title, lines in orders(document):
        out.print(Text(title, style="bold"))
        print_facts(lines, out)
    print_notes(document["notes"], out)


def _table(head: Cells, body: Iterable[Cells]) -> Table:
    """Two columns of names, then figures."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for at, name in enumerate(head):
        is_name = at < 2
        table.add_column(Text(name), justify="left" if is_name else "right", no_wrap=is_name)
    for cells in body:
        table.add_row(*map(Text, cells))
    return table
