"""The page of a GPU plan: what each way costs, what the types would need alone, and the intervals."""

from collections.abc import Mapping, Sequence

import numpy as np

from headway.words import duration, percent, plural, scaled, targets
from headway_cli.page.charts import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, VERMILLION, Board, Figure
from headway_cli.page.series import Floats
from headway_cli.page.template import bars, charts, figures, named, notes, page
from headway_studies.commands.gpu_plan_view import Document, facts, interval_rows, plan_rows

COLOURS = (BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILLION)
CHEAPEST, OTHER = BLUE, SKY


def render(document: Document) -> str:
    """The page; the same document gives the same text. KeyError or TypeError where it is no such one."""
    trace, slo, pools = document["trace"], document["slo"], list(document["needs"])
    intervals = document.get("intervals", ())
    body = (
        named(facts(document)),
        "<h2>Cost per hour</h2>",
        _bars(document),
        "<h2>Plans</h2>",
        figures(("plan", *pools, "cost per hour"), plan_rows(document), range(1, 1 + len(pools))),
        _over_time(document, intervals) if intervals else "",
        notes(document["notes"]),
    )
    return page(
        title=f"GPU plan for {scaled(trace['name'], trace['rate_scale'])}",
        subtitle=f"{plural(trace['requests'], 'request')} in {duration(trace['duration_s'])}. "
        f"{targets(slo['ttft_s'], slo['itl_s'])}; {percent(slo['loss_budget'])} of the requests may miss it. "
        "Whole replicas; costs are in the unit of the prices.",
        body="\n".join(body),
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
    return (
        f"<h2>By interval</h2>{charts(_draw(document['trace'], intervals))}"
        f"<details><summary>{len(intervals)} intervals</summary>{table}</details>"
    )


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
        board.line(2, name, times, _closed(counts), {"colour": COLOURS[at % len(COLOURS)], "step": True})
    board.axis(2, whole=True)
    costs = [row["cost_per_hour"] for row in intervals]
    board.line(3, "cost per hour", times, _closed(costs), {"colour": BLUE, "step": True, "unlisted": True})
    return board.finish()


def _closed(values: Sequence[float]) -> Floats:
    """With the last value again, where the last interval ends."""
    return np.array([*values, values[-1]], np.float64)
