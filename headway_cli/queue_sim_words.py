"""The document of `headway queue-sim` as text: what the terminal and the page both show."""

from collections.abc import Iterator, Mapping, Sequence
from math import floor, log10
from typing import Any

from headway_cli.words import plural

Document = Mapping[str, Any]
Value = Mapping[str, float | None]
Cells = Sequence[str]

MOST_DECIMALS = 6
MOST_PATTERNS = 4
"""Beyond these the terminal has no room for a column each."""

HEAD: Cells = ("routing", "queue", "mean wait s", "p50", "p95", "p99", "SLO missed %", "busy %")
WAIT_ORDER = "Mean wait, by routing"
VIOLATION_ORDER = "SLO violations, by queue policy"


def headline(document: Document) -> str:
    """What was run."""
    setup, amount = document["setup"], document["amount"]
    size = f"{amount['count']:,} requests" if "count" in amount else f"{amount['seconds']:g} s"
    gpus = " + ".join(f"{one['count']} {one['kind']}" for one in setup["consumers"])
    return (
        f"Queue simulator: {setup['name']}, {gpus}, load {setup['load']:.2f}, "
        f"{plural(document['seeds'], 'seed')} of {size}"
    )


def rows(document: Document) -> Iterator[Cells]:
    """One row per policy, in the columns of HEAD."""
    for row in document["policies"]:
        waits = (short(row[f"{quantile}_wait_s"]) for quantile in ("p50", "p95", "p99"))
        yield (
            row["routing"],
            row["queue"],
            figure(row["mean_wait_s"]),
            *waits,
            figure(row["slo_violations"], 100),
            short(row["utilisation"], 100),
        )


def pattern_head(document: Document) -> Cells:
    """The columns of `pattern_rows`."""
    names = [pattern["name"] for pattern in document["setup"]["patterns"]]
    return ("routing", "queue", *(f"{name}: {what}" for name in names for what in ("wait s", "miss %")))


def pattern_rows(document: Document) -> Iterator[Cells]:
    """Mean wait and violations of each pattern, per policy."""
    for row in document["policies"]:
        cells = (
            text
            for one in row["patterns"].values()
            for text in (short(one["mean_wait_s"]), short(one["slo_violations"], 100))
        )
        yield (row["routing"], row["queue"], *cells)


def orders(document: Document) -> Iterator[tuple[str, Mapping[str, str]]]:
    """The measured orders, the document's first where it has one: title, then who is compared → order."""
    for key, title in (("mean_wait_s", WAIT_ORDER), ("slo_violations", VIOLATION_ORDER)):
        measured = {name: chain(places) for name, places in document["orders"][key].items()}
        claims = document["documented"]
        if measured:
            yield title, ({"document": claims[key]} if claims else {}) | measured


def chain(places: Sequence[Mapping[str, Any]]) -> str:
    """`bin-pack-pull < least-load-pull = least-load-push`."""
    return " ".join(f"{place['relation']} {place['name']}".strip() for place in places)


def figure(value: Value, factor: float = 1.0) -> str:
    """`27.8 ± 2.2`: two digits of the half width, and as many decimals of the mean."""
    mean, half_width = value["mean"], value["half_width"]
    if mean is None or not half_width:
        return short(value, factor)
    decimals = min(MOST_DECIMALS, max(0, 1 - floor(log10(half_width * factor))))
    return f"{mean * factor:,.{decimals}f} ± {half_width * factor:,.{decimals}f}"


def short(value: Value, factor: float = 1.0) -> str:
    """The mean alone, to three digits or whole."""
    mean = value["mean"]
    if mean is None:
        return "n/a"
    scaled = mean * factor
    return f"{scaled:,.0f}" if abs(scaled) >= 100 else f"{scaled:.3g}"
