"""A comparison of routings as text: figures with their spread for each load, and who is ahead by how much."""

from collections.abc import Callable, Mapping

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from headway_cli.tables import print_notes
from headway_cli.words import Document, milliseconds, percent, plural

Spread = Mapping[str, float | None]


def print_routings(document: Document, out: Console) -> None:
    """The whole comparison."""
    trace, slo = document["trace"], document["slo"]
    out.print(
        Text(f"{trace['name']}, fleet {document['fleet']}, profile {document['profile']}", style="bold")
    )
    out.print(
        Text(
            f"TTFT {slo['ttft_s'] * 1e3:g} ms, ITL {slo['itl_s'] * 1e3:g} ms where a class names none; "
            f"{plural(document['seeds'], 'seed')}, mean ± standard deviation; 100 % load is what the fleet "
            "does at best (fluid bound)"
        )
    )
    out.print(_figures(document))
    if document["ahead"]:
        out.print(Text(f"Goodput of {document['ahead'][0]['routing']} beside the others", style="bold"))
        out.print(_ahead(document))
    print_notes(document["notes"], out)


def _figures(document: Document) -> Table:
    rows = document["rows"]
    classes = list(rows[0]["classes"])
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("load")
    table.add_column("routing")
    for name in ("goodput/s", "attained", *(f"{name} attained" for name in classes), "shed", "TTFT p90 ms"):
        table.add_column(name, justify="right")
    before = None
    for row in rows:
        table.add_row(
            "" if row["load"] == before else percent(row["load"]),
            Text(row["routing"]),
            spread(row["goodput_rps"], lambda value: f"{value:.4g}"),
            spread(row["attainment"], share),
            *(spread(row["classes"][name]["attainment"], share) for name in classes),
            spread(row["shed_share"], share),
            spread(row["ttft_p90_s"], milliseconds),
        )
        before = row["load"]
    return table


def _ahead(document: Document) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for name in ("load", "of"):
        table.add_column(name)
    for name in ("goodput/s", "relative", "95 % interval"):
        table.add_column(name, justify="right")
    for row in document["ahead"]:
        table.add_row(
            percent(row["load"]),
            Text(row["of"]),
            *lead(row),
        )
    return table


def lead(row: Document) -> tuple[str, str, str]:
    """Of an entry of `ahead`: the difference, the same relative to the other, and its interval."""
    relative = row["relative"]
    return (
        f"{row['goodput_rps']:+.4g}",
        "n/a" if relative is None else f"{_percents(relative)} %",
        interval(relative, row["relative_half_width"]),
    )


def interval(middle: float | None, half: float | None) -> str:
    """`+1.2 to +3.4 %`."""
    if middle is None:
        return "n/a"
    if half is None:
        return "one run"
    return f"{_percents(middle - half)} to {_percents(middle + half)} %"


def _percents(share: float) -> str:
    """With its sign, to three digits: `+1.23`, `+2,090`."""
    return f"{float(f'{share * 100:.3g}'):+,.15g}"


def share(value: float) -> str:
    """A share in percent, to a tenth."""
    return f"{value * 100:.1f} %"


def spread(value: Spread, show: Callable[[float], str]) -> str:
    """`mean ± deviation`."""
    mean, deviation = value["mean"], value["sd"]
    if mean is None:
        return "n/a"
    return show(mean) if deviation is None else f"{show(mean)} ± {show(deviation).removesuffix(' %')}"
