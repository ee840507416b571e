"""What the demo tells at its end: replicas over time, attainment, cost, one decision, start times."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from headway_cli.decision_view import print_story
from headway_cli.demo_history import History
from headway_cli.status_view import SIMULATED
from headway_cli.tables import console, print_facts, print_notes
from headway_cli.words import milliseconds, percent

if TYPE_CHECKING:
    from headway_cli.demo_live import DemoResult

Record = Mapping[str, Any]

ROW_EVERY_S = 10.0


def print_summary(result: "DemoResult") -> None:
    """Everything, after the run."""
    out = console()
    out.print()
    out.print(Text(f"Replicas over time ({SIMULATED})", style="bold"))
    out.print(replica_table(result))
    print_facts(facts(result), out)
    print_notes(result.tally.notes(), out)
    chosen = example(result.decisions)
    if chosen is not None:
        out.print()
        print_story(chosen, as_json=False)
    _print_starts(result, out)


def replica_table(result: "DemoResult") -> Table:
    """Load, replicas (ready of desired) and attainment, a row every few seconds."""
    history = result.history
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("time", "requests/s", *(f"{role} ready/desired" for role in history.roles), "in flight"):
        table.add_column(name, justify="right")
    table.add_column("within SLO so far", justify="right")
    for moment in history.every(ROW_EVERY_S):
        pools = [f"{pool['ready']}/{pool['desired']}" for pool in moment.pools.values()]
        cells = (f"{moment.time_s:.0f} s", f"{moment.rate_rps:.1f}", *pools, str(moment.in_flight))
        table.add_row(*cells, percent(moment.attainment))
    return table


def facts(result: "DemoResult") -> dict[str, str]:
    """The figures as named sentences."""
    tally, history, slo = result.tally, result.history, result.plan.config.slo
    ended = ", ".join(f"{count:,} {name}" for name, count in sorted(tally.outcomes.items()))
    ttft, itl = (tally.latencies[name].summary() for name in ("ttft_s", "itl_s"))
    reached = ", ".join(f"{role} 1 to {history.highest(role)}" for role in history.roles)
    return {
        "Requests": f"{tally.requests:,}: {ended}",
        "Attainment": f"{percent(tally.attainment)} within TTFT {slo.ttft_ms:g} ms and "
        f"ITL {slo.itl_ms:g} ms, aim {percent(slo.attainment)}",
        "TTFT": f"p50 {milliseconds(ttft['p50'])} ms, p95 {milliseconds(ttft['p95'])} ms",
        "ITL": f"p50 {milliseconds(itl['p50'])} ms, p95 {milliseconds(itl['p95'])} ms",
        "Replicas": f"{reached}; {len(result.decisions)} decisions",
        "GPU-seconds": gpu_text(history),
    }


def gpu_text(history: History) -> str:
    """What the fleet cost, beside a fleet that has the crest's replicas all the time (one GPU each)."""
    used = sum(history.replica_seconds(role) for role in history.roles)
    span_s = history.moments[-1].time_s - history.moments[0].time_s if history.moments else 0.0
    fixed = span_s * sum(history.highest(role) for role in history.roles)
    share = f", {used / fixed:.0%} of the {fixed:,.0f} of the crest's fleet all the time" if fixed else ""
    return f"{used:,.0f} simulated{share}"


def example(decisions: Sequence[Record]) -> Record | None:
    """The decision that started the most replicas and was reached, the first such."""
    started = [record for record in decisions if record["replicas"] and record["reached_at"] is not None]
    return max(started, key=lambda record: len(record["replicas"]), default=None)


def starts(decisions: Sequence[Record]) -> Iterator[tuple[int, str, float]]:
    """Per replica: the decision that started it, its role, seconds from decision to RUNNING."""
    for record in decisions:
        for replica in record["replicas"]:
            if replica["running_at"] is not None:
                yield record["id"], replica["role"], replica["running_at"] - record["created_at"]


def _print_starts(result: "DemoResult", out: Console) -> None:
    found = list(starts(result.decisions))
    if not found:
        return
    own_s = result.plan.config.engine.start_up_s
    seconds = sorted(taken_s for _, _, taken_s in found)
    out.print()
    out.print(Text("From decision to RUNNING", style="bold"))
    for decision, role, taken_s in found:
        out.print(f"  #{decision} {role}: {taken_s:.1f} s, of which Ray and Serve {taken_s - own_s:.1f} s")
    middle = seconds[len(seconds) // 2]
    out.print(
        f"  {len(seconds)} replicas: {seconds[0]:.1f} to {seconds[-1]:.1f} s, median {middle:.1f} s; "
        f"the simulated engine's own start is {own_s:g} s of that"
    )
