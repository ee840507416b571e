"""The document of `headway gpu-plan` on the terminal, and the solver's own output kept out of it."""

import ctypes
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from headway_cli.tables import print_facts, print_notes
from headway_cli.words import Document, percent

STDOUT, STDERR = 1, 2


def print_plan(document: Document, out: Console) -> None:
    """What the types would need alone, the plan and what else it could be, and the intervals."""
    trace, slo = document["trace"], document["slo"]
    scale = f" × {trace['rate_scale']:g}" if trace["rate_scale"] != 1 else ""
    out.print(Text(f"{trace['name']}{scale}, {trace['requests']:,} requests", style="bold"))
    print_facts(_facts(document, slo), out)
    pools = list(document["needs"])
    rows = [{"name": "cheapest mix", **document["plan"], "problem": None}, *document["alternatives"]]
    out.print(_table(["plan", *pools, "cost per hour"], (_plan_row(row, pools) for row in rows)))
    if "intervals" in document:
        head = ["from s", "requests", *pools, "cost per hour"]
        out.print(_table(head, (_interval_row(row, pools) for row in document["intervals"])))
        costs = [row["cost_per_hour"] for row in document["intervals"]]
        out.print(Text(f"mean cost per hour by interval {sum(costs) / len(costs):.4g}"))
    print_notes(document["notes"], out)


def _facts(document: Document, slo: Document) -> Mapping[str, str]:
    facts = {
        "SLO": f"TTFT {slo['ttft_s'] * 1e3:g} ms, ITL {slo['itl_s'] * 1e3:g} ms; "
        f"{percent(slo['loss_budget'])} may miss it; {document['hopeless']:,} requests no type can keep",
    }
    for pool, need in document["needs"].items():
        facts[f"{pool} alone"] = ", ".join(_alone(need["shares"], name) for name in need["gpus_per_replica"])
    return facts


def _alone(shares: Sequence[Document], name: str) -> str:
    """`h100 3.2 replicas (late with 12 requests)`."""
    if not all(name in share["replicas_alone"] for share in shares):
        return f"{name} cannot"
    replicas = sum(share["replicas_alone"][name] for share in shares)
    late = sum(share["requests"] for share in shares if name in share["late"])
    return f"{name} {replicas:.2f}" + (f" (late with {late:,} requests)" if late else "")


def _plan_row(row: Document, pools: Sequence[str]) -> list[str]:
    if row["replicas"] is None:
        return [row["name"], row["problem"], *[""] * (len(pools) - 1), "–"]
    cost = f"{row['cost_per_hour']:.4g}" + (f" ({row['problem']})" if row["problem"] else "")
    return [row["name"], *(_counts(row["replicas"][pool]) for pool in pools), cost]


def _interval_row(row: Document, pools: Sequence[str]) -> list[str]:
    counts = (_counts(row["replicas"][pool]) for pool in pools)
    return [f"{row['start_s']:g}", f"{row['requests']:,}", *counts, f"{row['cost_per_hour']:.4g}"]


def _counts(counts: Mapping[str, int]) -> str:
    return " + ".join(f"{count} {name}" for name, count in counts.items()) or "0"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for name in head:
        table.add_column(Text(name), overflow="fold")
    for cells in rows:
        table.add_row(*map(Text, cells))
    return table


@contextmanager
def stdout_of_c_to_stderr() -> Iterator[None]:
    """What compiled code writes to standard output in this block goes to standard error."""
    sys.stdout.flush()
    kept = os.dup(STDOUT)
    os.dup2(STDERR, STDOUT)
    try:
        yield
    finally:
        ctypes.CDLL(None).fflush(None)
        os.dup2(kept, STDOUT)
        os.close(kept)
