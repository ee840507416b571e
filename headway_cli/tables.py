"""Results as text for people: the table of one simulation, and the comparison of several."""

from collections.abc import Callable, Mapping, Sequence
from textwrap import wrap

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from headway_cli.words import LATENCIES, QUANTILES, Document, figures, headline, milliseconds, percent

WIDTH_OF_FILES = 120
NOTES_SHOWN = 8
MINIMUM_WIDTH = 40

# The columns of the table of classes; latencies in milliseconds.
OF_CLASS: Mapping[str, Callable[[Document], str]] = {
    "TTFT SLO": lambda row: milliseconds(row["slo"]["ttft_s"]),
    "TPOT SLO": lambda row: milliseconds(row["slo"]["tpot_s"]),
    "requests": lambda row: f"{row['requests']:,}",
    "attained": lambda row: percent(row["attainment"]),
    "goodput/s": lambda row: f"{row['goodput_rps']:.4g}",
    "shed": lambda row: f"{row['shed']:,}",
    "failed": lambda row: f"{row['failed']:,}",
    "TTFT p90": lambda row: milliseconds(row["ttft_s"]["p90"]),
    "TPOT p90": lambda row: milliseconds(row["tpot_s"]["p90"]),
}
# The columns of a comparison; latencies in milliseconds.
COMPARED: Mapping[str, Callable[[Document], str]] = {
    "attained": lambda row: percent(row["attainment"]),
    "goodput/s": lambda row: f"{row['goodput_rps']:.4g}",
    "GPU-hours": lambda row: f"{row['gpu_hours']:.4g}",
    "× bound": lambda row: "n/a" if row["fluid_bound_ratio"] is None else f"{row['fluid_bound_ratio']:.2f}",
    "scalings": lambda row: f"{row['scale_events']:,}",
    "reversals": lambda row: f"{row['direction_reversals']:,}",
    "TTFT p99": lambda row: milliseconds(row["ttft_s"]["p99"]),
    "ITL p99": lambda row: milliseconds(row["itl_s"]["p99"]),
}


def console(*, to_stderr: bool = False) -> Console:
    """Where tables go; a fixed width where nobody has a window."""
    found = Console(stderr=to_stderr, highlight=False)
    return found if found.is_terminal else Console(stderr=to_stderr, highlight=False, width=WIDTH_OF_FILES)


def print_result(document: Document, out: Console) -> None:
    """One simulation."""
    out.print(Text(headline(document), style="bold"))
    print_facts(figures(document), out)
    out.print(latency_table(document))
    if "classes" in document:
        out.print(class_table(document["classes"]))
    if "routing_metrics" in document:
        print_facts(routed(document), out)
    print_notes(document["notes"], out)


def print_comparison(document: Document, out: Console) -> None:
    """Several policies on one trace, and the fixed fleets if they were swept."""
    trace, slo = document["trace"], document["slo"]
    scale = f" × {trace['rate_scale']:g}" if trace["rate_scale"] != 1 else ""
    title = f"{trace['name']}{scale}, {trace['requests']:,} requests, profile {document['profile']}"
    out.print(Text(title, style="bold"))
    out.print(
        Text(
            f"TTFT {slo['ttft_s'] * 1e3:g} ms, ITL {slo['itl_s'] * 1e3:g} ms, "
            f"aim {percent(slo['attainment'])}, attainable {percent(document['attainable'])}; "
            f"fluid bound {document['policies'][0]['fluid_bound_gpu_hours']:.4g} GPU-hours"
        )
    )
    out.print(_comparison_table(document["policies"]))
    if "static_pareto" in document:
        tried = document["static_fleets_tried"]
        out.print(
            Text(f"Fixed fleets that no other of {tried} beats in both attainment and cost", style="bold")
        )
        out.print(_comparison_table(document["static_pareto"]))
    print_notes(_common_notes(document["policies"]), out)


def _comparison_table(rows: Sequence[Document]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("policy", overflow="fold")
    for column in COMPARED:
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(Text(row["label"]), *(show(row) for show in COMPARED.values()))
    return table


def _common_notes(rows: Sequence[Document]) -> list[str]:
    """The notes that all rows have: those on trace and profile."""
    return [note for note in rows[0]["notes"] if all(note in row["notes"] for row in rows)]


def print_facts(facts: Mapping[str, str], out: Console) -> None:
    """Names and sentences, in two columns."""
    margin = max(map(len, facts), default=0) + 2
    for name, text in facts.items():
        _print_wrapped(text, out, f"{name:<{margin}}", " " * margin)


def print_notes(notes: Sequence[str], out: Console, rest: str = "--json") -> None:
    """The notes, the first ones in full; `rest` is the flag that gives all."""
    if not notes:
        return
    out.print(Text("Notes", style="bold"))
    for note in notes[:NOTES_SHOWN]:
        _print_wrapped(note, out, "- ", "  ")
    if len(notes) > NOTES_SHOWN:
        out.print(Text(f"- and {len(notes) - NOTES_SHOWN} more, see {rest}", style="dim"))


def _print_wrapped(text: str, out: Console, first: str, rest: str) -> None:
    width = max(MINIMUM_WIDTH, out.width)
    for line in wrap(text, width, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False):
        out.print(Text(line), soft_wrap=True)


def latency_table(document: Document) -> Table:
    """TTFT, ITL, TPOT and E2E in milliseconds."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("ms")
    for quantile in QUANTILES:
        table.add_column(quantile, justify="right")
    for key, name in LATENCIES:
        table.add_row(name, *(milliseconds(document[key][quantile]) for quantile in QUANTILES))
    return table


def class_table(classes: Document) -> Table:
    """Each SLO class: its promises, how many requests, what came of them."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("class")
    for column in OF_CLASS:
        table.add_column(column, justify="right")
    for name, row in classes.items():
        table.add_row(Text(name), *(show(row) for show in OF_CLASS.values()))
    return table


def routed(document: Document) -> dict[str, str]:
    """What the router did: placements and sheds by reason, and what prefix caches saved."""
    metrics, hits = document["routing_metrics"], document["prefix_hits"]
    facts = {"Placed": _counted(metrics.get("placements", {})), "Shed": _counted(metrics.get("sheds", {}))}
    if hits["combined"]:
        facts["Prefix hits"] = f"{percent(hits['local'])} local, {percent(hits['external'])} external"
    return {name: text for name, text in facts.items() if text}


def _counted(counts: Mapping[str, float]) -> str:
    """`slo 120, slo/WARM 3`: the most frequent first."""
    ordered = sorted(counts.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {count:,.0f}" for name, count in ordered)
