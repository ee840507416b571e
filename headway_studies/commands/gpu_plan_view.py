"""A GPU plan as text and as a page: what each type needs alone, the plan, alternatives, the intervals."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from rich.console import Console
from rich.text import Text

from headway.words import duration, percent, plural, scaled, targets
from headway_cli.page.charts import BLUE, GREY, SKY, Board, Figure, colour
from headway_cli.page.series import Floats
from headway_cli.page.template import bars, charts, figures, folded, heading, named, notes, page
from headway_cli.terminal import bold, print_facts, print_notes, table

Document = Mapping[str, Any]


def print_plan(document: Document, out: Console) -> None:
    """Print what the types would need alone, the plan and what else it could be, and the intervals."""
    trace = document["trace"]
    out.print(bold(f"{scaled(trace['name'], trace['rate_scale'])}, {plural(trace['requests'], 'request')}"))
    print_facts(facts(document), out)
    pools = list(document["needs"])
    head = ["plan", *pools, "cost per hour"]
    out.print(table(head, plan_rows(document), names=len(head), dense=False))
    if "intervals" in document:
        head = ["from s", "requests", *pools, "cost per hour"]
        out.print(table(head, interval_rows(document), names=len(head), dense=False))
        costs = [row["cost_per_hour"] for row in document["intervals"]]
        out.print(Text(f"mean cost per hour by interval {sum(costs) / len(costs):.4g}"))
    print_notes(document["notes"], out)


def plan_rows(document: Document) -> list[list[str]]:
    """The plan and what else it could be: name, replicas of each pool, cost."""
    rows = [{"name": "cheapest mix", **document["plan"], "problem": None}, *document["alternatives"]]
    return [_plan_row(row, list(document["needs"])) for row in rows]


def interval_rows(document: Document) -> list[list[str]]:
    """The plan of each interval: begin, requests, replicas of each pool, cost."""
    pools = list(document["needs"])
    return [
        [
            f"{row['start_s']:g}",
            f"{row['requests']:,}",
            *_fleets(row, pools),
            f"{row['cost_per_hour']:.4g}",
        ]
        for row in document["intervals"]
    ]


def facts(document: Document) -> Mapping[str, str]:
    """The SLO, and how many replicas of each type alone each pool needs."""
    slo = document["slo"]
    found = {
        "SLO": f"{targets(slo['ttft_s'], slo['itl_s'])}; "
        f"{percent(slo['loss_budget'])} may miss it; "
        f"{plural(document['hopeless'], 'request')} no type can keep"
    }
    for pool, need in document["needs"].items():
        found[f"{pool} alone"] = ", ".join(_alone(need["shares"], name) for name in need["gpus_per_replica"])
    return found


def _alone(shares: Sequence[Document], name: str) -> str:
    """`h100 3.2 (late with 12 requests)`."""
    if not all(name in share["replicas_alone"] for share in shares):
        return f"{name} cannot"
    replicas = sum(share["replicas_alone"][name] for share in shares)
    late = sum(share["requests"] for share in shares if name in share["late"])
    return f"{name} {replicas:.2f}" + (f" (late with {plural(late, 'request')})" if late else "")


def _plan_row(row: Document, pools: Sequence[str]) -> list[str]:
    if row["replicas"] is None:
        return [row["name"], row["problem"], *[""] * (len(pools) - 1), "–"]
    cost = f"{row['cost_per_hour']:.4g}" + (f" ({row['problem']})" if row["problem"] else "")
    return [row["name"], *_fleets(row, pools), cost]


def _fleets(row: Document, pools: Sequence[str]) -> Iterator[str]:
    """`2 h100 + 1 l40s` for each pool."""
    for pool in pools:
        yield " + ".join(f"{count} {name}" for name, count in row["replicas"][pool].items()) or "0"


CHEAPEST, OTHER = BLUE, SKY


def render(document: Document) -> str:
    """The page; the same document gives the same text. KeyError or TypeError where it is no such one."""
    trace, slo, pools = document["trace"], document["slo"], list(document["needs"])
    intervals = document.get("intervals", ())
    body = (
        named(facts(document)),
        heading("Cost per hour"),
        _bars(document),
        heading("Plans"),
        figures(("plan", *pools, "cost per hour"), plan_rows(document), range(1, 1 + len(pools))),
        _over_time(document, intervals) if intervals else "",
        notes(document["notes"]),
    )
    return page(
        *body,
        title=f"GPU plan for {scaled(trace['name'], trace['rate_scale'])}",
        subtitle=f"{plural(trace['requests'], 'request')} in {duration(trace['duration_s'])}. "
        f"{targets(slo['ttft_s'], slo['itl_s'])}; {percent(slo['loss_budget'])} of the requests may miss it. "
        "Whole replicas; costs are in the unit of the prices.",
    )


def _bars(document: Document) -> str:
    rows = [("cheapest mix", CHEAPEST, document["plan"])]
    rows += [
        (row["name"], OTHER, row) for row in document["alternatives"] if row["cost_per_hour"] is not None
    ]
    most = max(row["cost_per_hour"] for _, _, row in rows)
    return bars(
        {"the plan": CHEAPEST, "what else it could be": OTHER},
        (
            (name, [(colour, row["cost_per_hour"] / most if most else 0.0, _words(row))])
            for name, colour, row in rows
        ),
    )


def _words(row: Document) -> str:
    """`4.2: 2 h100 + 1 l40s GPUs`, and why it does not do."""
    gpus = " + ".join(f"{count} {name}" for name, count in row["gpus"].items() if count)
    problem = f" ({row['problem']})" if row.get("problem") else ""
    return f"{row['cost_per_hour']:.4g}: {gpus or 'no'} GPUs{problem}"


def _over_time(document: Document, intervals: Sequence[Document]) -> str:
    pools = list(document["needs"])
    fleets = range(2, 2 + len(pools))
    table = figures(("from s", "requests", *pools, "cost per hour"), interval_rows(document), fleets)
    drawn = charts(_draw(document["trace"], intervals))
    return heading("By interval") + drawn + folded(f"{len(intervals)} intervals", table)


def _draw(trace: Mapping[str, float], intervals: Sequence[Document]) -> Figure:
    ends = [*(row["start_s"] for row in intervals[1:]), trace["duration_s"]]
    times = np.array([*(row["start_s"] for row in intervals), ends[-1]], np.float64)
    board = Board(float(times[-1]), ("Load", "GPUs by type", "Cost per hour"))
    rates = [
        row["requests"] / max(end_s - row["start_s"], 1e-9)
        for row, end_s in zip(intervals, ends, strict=True)
    ]
    board.line(1, "arrivals", times, _closed(rates), {"colour": GREY, "step": True, "unlisted": True})
    board.axis(1, title="requests/s")
    for at, name in enumerate(dict.fromkeys(name for row in intervals for name in row["gpus"])):
        counts = [float(row["gpus"].get(name, 0)) for row in intervals]
        board.line(2, name, times, _closed(counts), {"colour": colour(at), "step": True})
    board.axis(2, whole=True)
    costs = [row["cost_per_hour"] for row in intervals]
    board.line(3, "cost per hour", times, _closed(costs), {"colour": BLUE, "step": True, "unlisted": True})
    return board.finish()


def _closed(values: Sequence[float]) -> Floats:
    """With the last value again, where the last interval ends."""
    return np.array([*values, values[-1]], np.float64)
