"""The page of one simulation: figures, charts over time, and every decision with its reasons."""

from collections.abc import Iterator, Sequence

from headway.planning.decision_text import change_text
from headway.simulation.report import SimulationReport
from headway.words import duration, milliseconds, money, percent, plural, ratio, targets
from headway_cli.page.result_charts import MOST_DECISIONS, DecisionText, decisions, draw
from headway_cli.page.series import MOST_POINTS, interval_columns
from headway_cli.page.template import card, cards, charts, figures, folded, heading, hint, notes, page, pair
from headway_cli.result_view import BOUND_IS, LATENCIES, QUANTILES, TPOT_IS, headline, movement

HOW_TO_READ = (
    "Point at a decision (diamond: the target changed) for its reasons, at a spike (triangle) for what "
    "happened then: a burst, a start, a drain, a loss of replicas. Work forecast is in replicas that are "
    "always busy. Drag to zoom all panels, double-click to return."
)


def render(report: SimulationReport, price_per_gpu_hour: float | None = None, currency: str = "") -> str:
    """The page of one result, with the cost where a price is known.

    The same report (`wall_s` apart) gives the same text.
    """
    spent = None if price_per_gpu_hour is None else money(report.gpu_hours * price_per_gpu_hour, currency)
    initial = {role: series.desired[0] for role, series in report.replicas.items()}
    worded = decisions(report.intervals, initial)
    body = (
        cards(_cards(report, spent)),
        pair(
            heading("Latencies") + latencies(report) + hint(TPOT_IS), notes([*_merged(report), *report.notes])
        ),
        heading("Over time"),
        hint(HOW_TO_READ),
        charts(draw(report, worded)),
        hint(f"Fluid bound: {BOUND_IS}"),
        _decisions(worded, report),
    )
    return page(*body, title=headline(report), subtitle=_subtitle(report))


def _subtitle(report: SimulationReport) -> str:
    trace, predictor = report.trace, f"predictor {report.predictor}, " if report.predictor else ""
    return (
        f"{plural(report.requests, 'request')} in {duration(report.simulated_s)}, "
        f"mean {trace.isl_mean_tokens:,.0f} input and {trace.osl_mean_tokens:,.0f} output tokens. "
        f"Targets: {targets(report.slo.ttft_s, report.slo.itl_s)}. Fleet: {movement(report)}. "
        f"Routing {report.routing}, {predictor}seed {report.seed}."
    )


def _cards(report: SimulationReport, spent: str | None) -> Iterator[str]:
    target, attainment = report.slo.attainment, report.attainment
    is_met = attainment is not None and attainment >= target
    verdict = f"target {percent(target)}: {'met' if is_met else 'missed'}"
    yield card("Attainment", percent(attainment), verdict, "good" if is_met else "bad")
    yield card("Goodput", f"{report.goodput_rps:.4g}", "requests/s within all targets")
    yield card("GPU-hours", f"{report.gpu_hours:.4g}", f"bound {report.fluid_bound_gpu_hours:.4g}")
    if spent is not None:
        yield card("Cost", spent, f"{report.gpu_hours:.4g} GPU-hours")
    yield card("× fluid bound", ratio(report.fluid_bound_ratio), "the least any fleet needs")
    yield late_card("TTFT", report.ttft_s.p99, report.slo.ttft_s)
    yield late_card("ITL", report.itl_s.p99, report.slo.itl_s)


def latencies(found: object) -> str:
    """The table of all LATENCIES, in milliseconds."""
    rows = (
        (name, *(milliseconds(getattr(getattr(found, key), quantile)) for quantile in QUANTILES))
        for key, name in LATENCIES
    )
    return figures(("ms", *QUANTILES), rows, texts=())


def late_card(name: str, p99_s: float | None, target_s: float) -> str:
    """A latency's 99th percentile beside its target."""
    verdict = "good" if p99_s is not None and p99_s <= target_s else "bad"
    return card(f"{name} p99", f"{milliseconds(p99_s)} ms", f"target {target_s * 1e3:g} ms", verdict)


def _merged(report: SimulationReport) -> Iterator[str]:
    merged = interval_columns(report.intervals).merged
    if merged > 1:
        yield (
            f"charts: more than {MOST_POINTS} intervals; each point stands for {merged} of them, "
            "latencies show the worst"
        )


def _decisions(worded: Sequence[DecisionText], report: SimulationReport) -> str:
    roles, total = tuple(report.replicas), sum(1 for row in report.intervals if row.targets)
    shown = "" if len(worded) == total else f" (the first {MOST_DECISIONS} that changed the fleet)"
    rows = (
        (
            _clock(one.at_s),
            *(change_text(one.before.get(role), one.targets[role]) for role in roles),
            "\n".join(one.lines),
        )
        for one in worded
    )
    table = figures(("time", *roles, "why"), rows, texts=(1 + len(roles),))
    return folded(f"{plural(total, 'decision')}{shown}", table)


def _clock(at_s: float) -> str:
    """`1:02:03` since the start."""
    minutes, seconds = divmod(round(at_s), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"
