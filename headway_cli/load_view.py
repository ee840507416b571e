"""The result of `headway load` as text, and its figures as sentences."""

from collections.abc import Mapping
from typing import Any

from rich.console import Console

from headway.simulation.report import Quantiles
from headway.words import duration, milliseconds, percent, targets
from headway_cli.result_view import LATENCIES, latency_table
from headway_cli.terminal import bold, print_facts, print_notes


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
