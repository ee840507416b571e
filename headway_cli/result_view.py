"""Results as text: of one simulation, of several beside each other, and of a load on a live endpoint."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Console, RenderableType
from rich.text import Text

from headway.simulation.report import ClassFigures, Quantiles, SimulationReport
from headway.words import duration, milliseconds, percent, plural, ratio, scaled, targets
from headway_cli.terminal import bold, print_facts, print_notes, table

LATENCIES = (("ttft_s", "TTFT"), ("itl_s", "ITL"), ("tpot_s", "TPOT"), ("e2e_s", "E2E"))
TPOT_IS = (
    "ITL is each gap between two tokens; TPOT is one request's mean gap, (E2E − TTFT) / (output tokens − 1)."
)
BOUND_IS = (
    "the GPU-hours if every GPU always ran at its best throughput within the targets, and GPUs came in "
    "fractions. No fleet needs less."
)
QUANTILES = ("mean", "p50", "p90", "p95", "p99")

# The columns of the table of classes; latencies in milliseconds.
OF_CLASS: Mapping[str, Callable[[ClassFigures], str]] = {
    "TTFT SLO": lambda row: milliseconds(row.slo.ttft_s),
    "TPOT SLO": lambda row: milliseconds(row.slo.tpot_s),
    "requests": lambda row: f"{row.requests:,}",
    "attained": lambda row: percent(row.attainment),
    "goodput/s": lambda row: f"{row.goodput_rps:.4g}",
    "shed": lambda row: f"{row.shed:,}",
    "failed": lambda row: f"{row.failed:,}",
    "TTFT p90": lambda row: milliseconds(row.ttft_s.p90),
    "TPOT p90": lambda row: milliseconds(row.tpot_s.p90),
}

# The columns of a comparison; latencies in milliseconds.
COMPARED: Mapping[str, Callable[[SimulationReport], str]] = {
    "attained": lambda row: percent(row.attainment),
    "goodput/s": lambda row: f"{row.goodput_rps:.4g}",
    "GPU-hours": lambda row: f"{row.gpu_hours:.4g}",
    "× bound": lambda row: "n/a" if row.fluid_bound_ratio is None else f"{row.fluid_bound_ratio:.2f}",
    "changes": lambda row: f"{row.scale_events:,}",
    "reversals": lambda row: f"{row.direction_reversals:,}",
    "TTFT p99": lambda row: milliseconds(row.ttft_s.p99),
    "ITL p99": lambda row: milliseconds(row.itl_s.p99),
}


def print_result(report: SimulationReport, out: Console) -> None:
    """One simulation."""
    out.print(bold(headline(report)))
    print_facts(figures(report), out)
    out.print(latency_table({name: getattr(report, key) for key, name in LATENCIES}))
    if report.classes is not None:
        rows = ([name, *(show(row) for show in OF_CLASS.values())] for name, row in report.classes.items())
        out.print(table(["class", *OF_CLASS], rows, dense=False))
    if report.routing_metrics is not None:
        print_facts(_routed(report, report.routing_metrics), out)
    print_notes(report.notes, out)


def headline(report: SimulationReport) -> str:
    """Policy, trace and profile in one line."""
    trace = scaled(report.trace.name, report.trace.rate_scale)
    return f"{report.policy} on {trace}, profile {report.profile}"


def figures(report: SimulationReport) -> dict[str, str]:
    """The headline figures by name, as sentences."""
    slo = report.slo
    counts = {"completed": report.completed, "failed": report.failed, "shed": report.shed}
    ended = ", ".join(f"{count:,} {name}" for name, count in counts.items() if count)
    within = targets(slo.ttft_s, slo.itl_s, " and ")
    if report.classes is not None:
        within = "the SLOs of their classes"
    return {
        "Requests": f"{report.requests:,} in {duration(report.simulated_s)}: {ended}",
        "Attainment": f"{percent(report.attainment)} within {within}, target {percent(slo.attainment)}, "
        f"attainable {percent(report.attainable)}",
        "Goodput": f"{report.goodput_rps:.4g} requests/s",
        "GPU-hours": f"{report.gpu_hours:.4g}, {ratio(report.fluid_bound_ratio)} "
        f"the least any fleet needs (fluid bound: {report.fluid_bound_gpu_hours:.4g})",
        "Fleet": movement(report),
    }


def movement(report: SimulationReport) -> str:
    """`prefill 2 to 5, decode 4; 3 changes, 1 reversal`: desired counts per role, and their changes."""
    parts = []
    for role, series in report.replicas.items():
        low, high = min(series.desired), max(series.desired)
        parts.append(f"{role} {low:g}" if low == high else f"{role} {low:g} to {high:g}")
    events, reversals = report.scale_events, report.direction_reversals
    return f"{', '.join(parts)}; {plural(events, 'change')}, {plural(reversals, 'reversal')}"


def latency_table(latencies: Mapping[str, object]) -> RenderableType:
    """Named latencies (anything with QUANTILES, in seconds) in milliseconds."""
    rows = (
        [name, *(milliseconds(getattr(row, key)) for key in QUANTILES)] for name, row in latencies.items()
    )
    return table(["ms", *QUANTILES], rows, dense=False)


def _routed(report: SimulationReport, metrics: Mapping[str, Mapping[str, float | None]]) -> dict[str, str]:
    """Placements and sheds of the router by reason, and what prefix caches saved."""
    hits = report.prefix_hits
    facts = {"Placed": _counted(metrics.get("placements", {})), "Shed": _counted(metrics.get("sheds", {}))}
    if hits is not None and hits.combined:
        facts["Prefix hits"] = f"{percent(hits.local)} local, {percent(hits.external)} external"
    return {name: text for name, text in facts.items() if text}


def _counted(counts: Mapping[str, float | None]) -> str:
    """`slo 120, slo/WARM 3`: the most frequent first."""
    ordered = sorted(((name, count or 0.0) for name, count in counts.items()), key=lambda item: -item[1])
    return ", ".join(f"{name} {count:,.0f}" for name, count in ordered)


def print_comparison(
    rows: Mapping[str, SimulationReport], fixed: Mapping[str, SimulationReport], tried: int, out: Console
) -> None:
    """Policies on one trace by label, and the best fixed fleets of those `tried`, if there was a sweep."""
    first = next(iter(rows.values()))
    trace, slo = first.trace, first.slo
    title = scaled(trace.name, trace.rate_scale)
    out.print(bold(f"{title}, {plural(trace.requests, 'request')}, profile {first.profile}"))
    wanted = f"{targets(slo.ttft_s, slo.itl_s)}, target {percent(slo.attainment)}"
    bound = f"no fleet needs less than {first.fluid_bound_gpu_hours:.4g} GPU-hours (fluid bound)"
    out.print(Text(f"{wanted}, attainable {percent(first.attainable)}; {bound}"))
    out.print(_comparison_table(rows))
    if fixed:
        out.print(bold(f"Fixed fleets that none of {tried} beats in both attainment and cost"))
        out.print(_comparison_table(fixed))
    print_notes(common_notes(list(rows.values())), out)


def _comparison_table(reports: Mapping[str, SimulationReport]) -> RenderableType:
    rows = ([label, *(show(row) for show in COMPARED.values())] for label, row in reports.items())
    return table(["policy", *COMPARED], rows, whole=range(1, len(COMPARED) + 1))


def common_notes(reports: Sequence[SimulationReport]) -> list[str]:
    """The notes that all results have: those on trace and profile."""
    return [note for note in reports[0].notes if all(note in row.notes for row in reports)]


def print_load(document: Mapping[str, Any], out: Console) -> None:
    """Headline, figures, latencies, notes."""
    out.print(bold(f"{document['trace']['name']} on {document['model']} at {document['url']}"))
    print_facts(load_figures(document), out)
    out.print(latency_table({name: Quantiles(**document[key]) for key, name in LATENCIES}))
    print_notes(document["notes"], out)


def load_figures(document: Mapping[str, Any]) -> dict[str, str]:
    """The headline figures by name, as sentences."""
    slo, lag = document["slo"], document["send_lag_s"]
    ended = ", ".join(f"{count:,} {name}" for name, count in document["outcomes"].items())
    return {
        "Requests": f"{document['requests']:,} in {duration(document['duration_s'])}: {ended or 'none'}",
        "Attainment": f"{percent(document['attainment'])} within "
        f"{targets(slo['ttft_s'], slo['itl_s'], ' and ')}, target {percent(slo['attainment'])}",
        "Goodput": f"{document['goodput_rps']:.4g} requests/s",
        "Tokens": f"{document['input_tokens']:,} in, {document['output_tokens']:,} out",
        "Send lag": f"p99 {milliseconds(lag['p99'])} ms, highest {milliseconds(lag['max'])} ms",
    }
