"""The result of a replay as text for people."""

from rich.console import Console
from rich.text import Text

from headway_cli.tables import latency_table, print_facts, print_notes
from headway_cli.words import Document, duration, milliseconds, percent


def print_load(document: Document, out: Console) -> None:
    """Headline, figures, latencies, notes."""
    trace = document["trace"]
    out.print(Text(f"{trace['name']} on {document['model']} at {document['url']}", style="bold"))
    print_facts(load_figures(document), out)
    out.print(latency_table(document))
    print_notes(document["notes"], out)


def load_figures(document: Document) -> dict[str, str]:
    """The headline figures by name, as sentences."""
    slo, lag = document["slo"], document["send_lag_s"]
    ended = ", ".join(f"{count:,} {name}" for name, count in document["outcomes"].items())
    return {
        "Requests": f"{document['requests']:,} in {duration(document['duration_s'])}: {ended or 'none'}",
        "Attainment": f"{percent(document['attainment'])} within TTFT {slo['ttft_s'] * 1e3:g} ms and "
        f"ITL {slo['itl_s'] * 1e3:g} ms, aim {percent(slo['attainment'])}",
        "Goodput": f"{document['goodput_rps']:.4g} requests/s",
        "Tokens": f"{document['input_tokens']:,} in, {document['output_tokens']:,} out",
        "Send lag": f"p99 {milliseconds(lag['p99'])} ms, highest {milliseconds(lag['max'])} ms",
    }
