"""The page of `headway compare`: cost and attainment of each policy, what bounds them, and all over time."""

from collections.abc import Iterator, Mapping, Sequence

from headway.simulation.report import SimulationReport
from headway.words import duration, money, percent, plural, scaled, targets
from headway_cli.compare_document import AUTO, PolicyComparison
from headway_cli.compare_policies import pareto
from headway_cli.page.charts import (
    GREY,
    SKY,
    VERMILLION,
    Board,
    Figure,
    Panel,
    Series,
    Style,
    attained,
    attainment_axis,
    colour,
    missed,
)
from headway_cli.page.series import gpu_hours, interval_columns, pool_columns, steps
from headway_cli.page.template import card, cards, charts, figures, heading, hint, named, notes, page
from headway_cli.result_view import BOUND_IS, COMPARED, TPOT_IS, common_notes, movement

FRONTIER_PX = 420
ROOM = 0.06
"""Of the span of costs, left free at both ends of the frontier's axis."""


def render(found: PolicyComparison) -> str:
    """The page; the same comparison (`wall_s` apart) gives the same text."""
    first, trace = found.first, found.first.trace
    body = (
        cards(_cards(found)),
        named(dict(_sentences(found))),
        heading("Attainment and cost"),
        charts(_frontier(found)),
        heading("Over time"),
        hint("Click a policy in the legend to hide it. Drag to zoom all panels, double-click to return."),
        charts(_over_time(found)),
        heading("Figures"),
        figures(_head(found), _rows(found)),
        notes(common_notes(list(found.policies.values()))),
    )
    subtitle = (
        f"{plural(trace.requests, 'request')} in {duration(trace.duration_s)}, "
        f"mean {trace.isl_mean_tokens:,.0f} input and {trace.osl_mean_tokens:,.0f} output tokens, "
        f"profile {first.profile}. "
        f"Targets: {targets(first.slo.ttft_s, first.slo.itl_s)}, for {percent(first.slo.attainment)} of "
        f"requests; attainable {percent(first.attainable)}."
    )
    title = f"Policies on {scaled(trace.name, trace.rate_scale)}"
    return page(*body, title=title, subtitle=subtitle)


def _keeps(found: PolicyComparison, report: SimulationReport) -> bool:
    return report.attainment is not None and report.attainment >= found.first.slo.attainment


def _money(found: PolicyComparison, hours: float) -> str:
    """Nothing where no price is known."""
    price = found.price_per_gpu_hour
    return "" if price is None else money(hours * price, found.currency)


def _cost(found: PolicyComparison, hours: float) -> str:
    """`5.08 GPU-hours`, and the money where there is a price."""
    spent = _money(found, hours)
    return f"{hours:.4g} GPU-hours" + (f" ({spent})" if spent else "")


def _cards(found: PolicyComparison) -> Iterator[str]:
    for label, report in found.policies.items():
        spent = _money(found, report.gpu_hours)
        remark = f"{percent(report.attainment)} attained" + (f", {spent}" if spent else "")
        value = f"{report.gpu_hours:.4g} GPU-h"
        yield card(label, value, remark, "good" if _keeps(found, report) else "bad")


def _sentences(found: PolicyComparison) -> Iterator[tuple[str, str]]:
    target = percent(found.first.slo.attainment)
    yield f"Cheapest at {target}", _cheapest(found)
    best = best_static(found)
    if best is not None:
        label, report = best
        yield (
            "Best fixed fleet",
            f"{label}, {_cost(found, report.gpu_hours)}, {percent(report.attainment)} attained. "
            "Chosen in hindsight, from the whole trace",
        )
    else:
        tried = any(map(_is_fixed, found.policies.values())) or found.fixed
        yield (
            "Best fixed fleet",
            f"none that was tried reaches {target}"
            if tried
            else "not tried; --policies with static:auto finds it",
        )
    bound = found.first.fluid_bound_gpu_hours
    yield "Fluid bound", f"{_cost(found, bound)}: {BOUND_IS}"
    yield "ITL and TPOT", TPOT_IS


def _cheapest(found: PolicyComparison) -> str:
    """It, what the others that meet the target take beside it, and which ones miss it."""
    kept = {label: one for label, one in found.policies.items() if _keeps(found, one)}
    missed = [
        f"{label} attains {percent(one.attainment)}"
        for label, one in found.policies.items()
        if label not in kept
    ]
    if not kept:
        return f"none of these; {', '.join(missed)}"
    label, least = min(kept.items(), key=lambda item: item[1].gpu_hours)
    parts = [f"{label}, {_cost(found, least.gpu_hours)}, {percent(least.attainment)} attained"]
    parts += [
        f"{other} takes {one.gpu_hours / least.gpu_hours:.2f} × that"
        if least.gpu_hours
        else f"{other} takes {_cost(found, one.gpu_hours)}"
        for other, one in kept.items()
        if other != label
    ]
    return "; ".join([*parts, *missed])


def _is_fixed(report: SimulationReport) -> bool:
    return report.policy == "static"


def best_static(found: PolicyComparison) -> tuple[str, SimulationReport] | None:
    """The fixed fleet that `static:auto` found, else the cheapest of those tried that meets the target."""
    searched = [item for item in found.policies.items() if item[0].startswith(AUTO)]
    if searched:
        return searched[0]
    fixed = {**found.fixed, **{label: one for label, one in found.policies.items() if _is_fixed(one)}}
    keeping = [item for item in fixed.items() if _keeps(found, item[1])]
    return min(keeping, key=lambda item: item[1].gpu_hours, default=None)


def _head(found: PolicyComparison) -> Sequence[str]:
    return ("policy", "fleet", *COMPARED, *(() if found.price_per_gpu_hour is None else ("cost",)))


def _rows(found: PolicyComparison) -> Iterator[Sequence[str]]:
    for label, report in {**found.policies, **found.fixed}.items():
        spent = _money(found, report.gpu_hours)
        fleet = movement(report).partition(";")[0]
        yield (label, fleet, *(show(report) for show in COMPARED.values()), *((spent,) if spent else ()))


def _frontier(found: PolicyComparison) -> Figure:
    """Each fleet as a point: what it took and what it attained."""
    every = {**found.fixed, **found.policies}
    bound, target = found.first.fluid_bound_gpu_hours, found.first.slo.attainment
    axis = attainment_axis([*(one.attainment for one in every.values()), target])
    hours = [bound, *(one.gpu_hours for one in every.values())]
    room = ROOM * (max(hours) - min(hours)) or 1.0
    span = [max(0.0, min(hours) - room), max(hours) + 2 * room]
    series: list[Series] = []

    def add(name: str, points: Mapping[str, SimulationReport], style: Style) -> None:
        """Points of the plane, each with its label and figures where one points at it."""
        texts = [
            f"{label}: {_cost(found, one.gpu_hours)}, {percent(one.attainment)}"
            for label, one in points.items()
        ]
        values, words = attained(one.attainment for one in points.values())
        places = [one.gpu_hours for one in points.values()]
        series.append({"name": name, "x": places, "y": values, "hover": texts, "told": words, **style})

    def edge(name: str, x: Sequence[float], y: Sequence[float], style: Style) -> None:
        series.append({"name": name, "x": x, "y": y, "width": 1.5, **style})

    edge(
        f"fluid bound {bound:.4g}",
        [bound] * 2,
        [axis["low"], axis["high"]],
        {"colour": SKY, "line": "dashdot"},
    )
    edge(f"target {percent(target)}", span, [missed(target)] * 2, {"colour": VERMILLION, "line": "dash"})
    best = "frontier: nothing here is both cheaper and better"
    add(best, pareto(every), {"colour": GREY, "width": 1.5, "line": "dot", "step": True})
    if found.fixed:
        tried = f"best of {found.fixed_tried} fixed fleets"
        add(tried, found.fixed, {"colour": GREY, "line": "none", "symbol": "square-open", "size": 7})
    for place, (label, report) in enumerate(found.policies.items()):
        add(label, {label: report}, {"colour": colour(place), "line": "none", "symbol": "circle", "size": 13})
    static = best_static(found)
    if static is not None:
        add(
            "best fixed fleet",
            dict([static]),
            {"colour": VERMILLION, "line": "none", "symbol": "star-open", "size": 20},
        )
    panel: Panel = {
        "title": "Attainment over GPU-hours",
        "x": {"title": "GPU-hours", "low": span[0], "high": span[1]},
        "y": axis,
        "series": series,
        "height": FRONTIER_PX,
        "nearest": True,
    }
    return {"panels": [panel]}


def _over_time(found: PolicyComparison) -> Figure:
    roles = tuple(dict.fromkeys(role for one in found.policies.values() for role in one.replicas))
    pools = tuple(f"Replicas ready: {role}" for role in roles)
    titles = (
        "Load",
        *pools,
        "Time to first token, p99",
        "Time between tokens (ITL), p99",
        "Attainment",
        "GPU-hours so far",
    )
    board = Board(max(one.simulated_s for one in found.policies.values()), titles)
    load = interval_columns(max(found.policies.values(), key=lambda one: len(one.intervals)).intervals)
    board.line(1, "arrivals", *steps(load, load.load_rps), {"colour": GREY, "step": True})
    board.axis(1, title="requests/s")
    for place, (label, report) in enumerate(found.policies.items()):
        _lines(board, label, report, roles, colour(place))
    for row, _ in enumerate(roles, start=2):
        board.axis(row, whole=True)
    slo, last = found.first.slo, board.rows
    for row, key, target_s in ((last - 3, "ttft_s", slo.ttft_s), (last - 2, "itl_s", slo.itl_s)):
        late = (interval_columns(one.intervals).latencies[key]["p99"] for one in found.policies.values())
        board.latency_target(row, target_s, late)
    board.attainment_target(
        last - 1, slo.attainment, [row.attainment for one in found.policies.values() for row in one.intervals]
    )
    return board.finish()


def _lines(board: Board, label: str, report: SimulationReport, roles: Sequence[str], colour: str) -> None:
    """One policy in all panels."""
    style: Style = {"group": label, "colour": colour}
    columns, last = interval_columns(report.intervals), board.rows
    for row, role in enumerate(roles, start=2):
        if role in report.replicas:
            pool = pool_columns(report.replicas[role], report.simulated_s)
            board.line(row, label, pool.time_s, pool.ready, {**style, "step": True})
    for row, key in ((last - 3, "ttft_s"), (last - 2, "itl_s")):
        board.line(row, label, columns.middle_s, columns.latencies[key]["p99"] * 1e3, style)
    board.share(last - 1, label, *steps(columns, columns.attainment), {**style, "step": True})
    board.line(last, label, *gpu_hours(report), style)
