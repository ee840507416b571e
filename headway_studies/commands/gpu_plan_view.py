"""A GPU plan as text: what the types would need alone, the plan, what else it could be, and the intervals."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from headway.words import percent, plural, scaled, targets
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
