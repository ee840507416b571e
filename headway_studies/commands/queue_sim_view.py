"""The results of `headway queue-sim`: the JSON document, the tables of the terminal, and the HTML page.

Waits are seconds, violations and utilisation shares in [0, 1]. Every figure is {mean, half_width} over the
seeds, half_width that of the 95 % interval; null where there is no value (one seed, no requests). The same
input gives the same bytes.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from math import floor, log10
from operator import attrgetter
from typing import Any

from rich.console import Console
from rich.text import Text

from headway.planning.policies import jsonable
from headway.words import plural
from headway_cli.page.charts import BLUE, GREEN, ORANGE, Figure, Series
from headway_cli.page.template import charts, figures, heading, named, notes, page
from headway_cli.terminal import bold, print_facts, print_notes, table
from headway_studies.queue_simulator.experiment import Experiment, Figures, PolicyResult, estimate, order_by
from headway_studies.queue_simulator.load import fluid_load
from headway_studies.queue_simulator.model import Setup, documented

WAIT, VIOLATIONS = "mean_wait_s", "slo_violations"
Results = Sequence[PolicyResult]

Document = Mapping[str, Any]
Value = Mapping[str, float | None]
Cells = Sequence[str]
MOST_DECIMALS = 6
MOST_PATTERNS = 4
"""Beyond these the terminal has no room for a column each."""
HEAD: Cells = ("routing", "queue", "mean wait s", "p50", "p95", "p99", "SLO missed %", "busy %")
WAIT_ORDER = "Mean wait, by routing"
VIOLATION_ORDER = "SLO violations, by queue policy"
PANELS = (
    ("Mean wait", "s", "mean_wait_s", 1.0),
    ("99th percentile of waits", "s", "p99_wait_s", 1.0),
    ("SLO missed", "%", "slo_violations", 100.0),
    ("Utilisation", "%", "utilisation", 100.0),
)
QUEUE_COLOURS: Mapping[str, str] = {"simple": BLUE, "slo": ORANGE, "slo-savable": GREEN}
HEIGHT_PX = 240


def make_document(experiment: Experiment, results: Results) -> dict[str, Any]:
    """Everything about one experiment as JSON-able data, without NaN."""
    setup = experiment.setup
    claims = documented(setup)
    return {
        "setup": _describe(setup),
        "seeds": experiment.seeds,
        "amount": asdict(experiment.amount),
        "service": experiment.service.value,
        "passing": experiment.policies[0].passing.value,
        "policies": [_row(setup, result) for result in results],
        "orders": {
            WAIT: _orders(results, WAIT, key="queue", label="routing"),
            VIOLATIONS: _orders(results, VIOLATIONS, key="routing", label="queue"),
        },
        "documented": claims and {WAIT: claims.wait, VIOLATIONS: claims.violations},
        "notes": list(_notes(experiment)),
    }


def _describe(setup: Setup) -> dict[str, Any]:
    kinds = Counter(id(consumer) for consumer in setup.consumers)
    first = {id(consumer): consumer for consumer in setup.consumers}
    return {
        "name": setup.name,
        "load": fluid_load(setup),
        "patterns": [asdict(pattern) for pattern in setup.patterns],
        "consumers": [
            {
                "kind": first[key].kind,
                "count": count,
                "profiles": {
                    name: {**asdict(profile), "capacity": profile.capacity}
                    for name, profile in first[key].profiles.items()
                },
            }
            for key, count in kinds.items()
        ],
    }


def _row(setup: Setup, result: PolicyResult) -> dict[str, Any]:
    return {
        "label": result.policy.label,
        "routing": result.policy.routing.value,
        "queue": result.policy.queue.value,
        **_figures([run.total for run in result.runs]),
        "utilisation": jsonable(result.estimate(attrgetter("utilisation"))),
        "patterns": {
            pattern.name: _figures([run.patterns[index] for run in result.runs])
            for index, pattern in enumerate(setup.patterns)
        },
    }


def _figures(runs: Sequence[Figures]) -> dict[str, Any]:
    return {item.name: jsonable(estimate(map(attrgetter(item.name), runs))) for item in fields(Figures)}


def _orders(results: Results, metric: str, *, key: str, label: str) -> dict[str, list[dict[str, Any]]]:
    """For each value of one policy part, the others in order."""
    groups: dict[str, list[PolicyResult]] = {}
    for result in results:
        groups.setdefault(getattr(result.policy, key).value, []).append(result)
    return {
        name: [
            {
                "name": getattr(place.result.policy, label).value,
                "relation": place.relation,
                "difference": place.difference and jsonable(place.difference),
            }
            for place in order_by(group, attrgetter(f"total.{metric}"))
        ]
        for name, group in groups.items()
        if len(group) > 1
    }


def _notes(experiment: Experiment) -> Iterator[str]:
    setup = experiment.setup
    load, gpus = fluid_load(setup), len(setup.consumers)
    if load >= 1:
        yield (
            f"load {load:.2f}: the arrivals need {load * gpus:.2f} GPUs, there are {gpus}; "
            "queues grow for as long as requests arrive, and waits with the length of the run"
        )
    if documented(setup) is not None and setup.name == "multi":
        yield "the document's first throughput, 3,774, is taken for 3.774; it gives no number of GPUs"
    if experiment.seeds == 1:
        yield "one seed: no confidence intervals, and no order can be told"


def headline(document: Document) -> str:
    """Set-up, load and size in one line."""
    setup, amount = document["setup"], document["amount"]
    size = plural(amount["count"], "request") if "count" in amount else f"{amount['seconds']:g} s"
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


def print_document(document: Document, out: Console) -> None:
    """Policies, patterns, orders, notes."""
    out.print(bold(headline(document)))
    out.print(table(HEAD, rows(document), names=2, whole=(0, 1)))
    if len(document["setup"]["patterns"]) <= MOST_PATTERNS:
        out.print(table(pattern_head(document), pattern_rows(document), names=2, whole=(0, 1)))
    else:
        out.print(Text("The figures of each pattern are in the --json and --plot files.", style="dim"))
    for title, lines in orders(document):
        out.print(bold(title))
        print_facts(lines, out)
    print_notes(document["notes"], out)


def render(document: Document) -> str:
    """The page; the same document gives the same text."""
    body = (
        charts(_draw(document)),
        heading("Policies"),
        figures(HEAD, rows(document)),
        heading("Patterns"),
        figures(pattern_head(document), pattern_rows(document)),
        *(heading(title) + named(lines) for title, lines in orders(document)),
        notes(document["notes"]),
    )
    return page(*body, title=headline(document), subtitle=_subtitle(document))


def _subtitle(document: Document) -> str:
    patterns = "; ".join(
        f"{one['name']} {one['arrival_rps']:.4g}/s, SLO {one['slo_s']:g} s"
        for one in document["setup"]["patterns"]
    )
    return (
        f"Patterns: {patterns}. Service {document['service']}, bin-pack-pull passing: {document['passing']}. "
        "Bars are means over the seeds, whiskers and ± their 95 % confidence intervals; "
        "orders are of differences paired by seed."
    )


def _draw(document: Document) -> Figure:
    routings = list(dict.fromkeys(row["routing"] for row in document["policies"]))
    return {
        "wide": True,
        "panels": [
            {
                "title": title,
                "x": {"scale": "names", "names": routings},
                "y": {"title": unit},
                "series": list(_bars(document, key, factor, routings)),
                "height": HEIGHT_PX,
            }
            for title, unit, key, factor in PANELS
        ],
    }


def _bars(document: Document, key: str, factor: float, routings: Sequence[str]) -> Iterator[Series]:
    """One row of bars for each queue policy."""
    for queue, colour in QUEUE_COLOURS.items():
        found = [row for row in document["policies"] if row["queue"] == queue]
        if found:
            yield {
                "name": queue,
                "group": queue,
                "colour": colour,
                "bars": True,
                "x": [routings.index(row["routing"]) for row in found],
                "y": [_times(row[key]["mean"], factor) for row in found],
                "spread": [_times(row[key]["half_width"], factor) for row in found],
            }


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor
