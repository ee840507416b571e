"""Profiles as text for people."""

from collections.abc import Mapping

from rich import box
from rich.console import Console
from rich.table import Table

from headway.profiling.comparison import Ratios
from headway_cli.profile_document import Document
from headway_cli.tables import print_facts, print_notes


def print_profile(entry: Document, out: Console) -> None:
    """What one profile holds."""
    prefill, decode = entry["prefill"], entry["decode"]
    contexts = sorted(set(decode["context"]))
    facts = {
        "Profile": f"{entry['name']}, {entry['source']}",
        "GPUs": f"prefill {entry['gpus']['prefill']}, decode {entry['gpus']['decode']} per engine",
        "Prefill": f"{len(prefill['isl'])} samples, ISL {_range(prefill['isl'])} tokens, "
        f"TTFT {_range(prefill['ttft_ms'])} ms",
        "Decode": f"{len(decode['itl_ms'])} samples on {len(contexts)} contexts of {_range(contexts)} "
        f"tokens, KV usage {_range(decode['kv_usage'])}, ITL {_range(decode['itl_ms'])} ms",
        "KV cache": f"{entry['max_kv_tokens']:,.0f} tokens",
    }
    print_facts(facts, out)
    print_notes(entry["notes"], out, rest="--plot")


def print_ratios(title: str, ratios: Mapping[str, Ratios], out: Console) -> None:
    """The table of a comparison."""
    table = Table(title=title, box=box.SIMPLE, title_justify="left")
    for column in ("", "median", "least", "most", "samples", "outside"):
        table.add_column(column, justify="left" if not column else "right")
    for name, one in ratios.items():
        figures = [_ratio(value) for value in (one.median, one.least, one.most)]
        table.add_row(name, *figures, str(one.points), str(one.outside))
    out.print(table)


def _range(values: list[float]) -> str:
    return f"{min(values):,.4g} to {max(values):,.4g}"


def _ratio(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.3f}"
