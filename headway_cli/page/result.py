"""The page of one simulation: figures, charts over time, and every decision with its reasons."""

from collections.abc import Iterator, Sequence
from html import escape

from headway.simulation.report import SimulationReport
from headway.words import duration, milliseconds, money, percent, plural, ratio, targets
from headway_cli.page.result_charts import MOST_DECISIONS, DecisionText, decisions, draw
from headway_cli.page.series import MOST_POINTS, interval_columns
from headway_cli.page.template import card, charts, hint, notes, page, part
from headway_cli.result_view import BOUND_IS, LATENCIES, QUANTILES, TPOT_IS, headline, movement


def render(report: SimulationReport, price_per_gpu_hour: float | None = None, currency: str = "") -> str:
    """The page of one result, with money where a price is known.

    The same report (`wall_s` apart) gives the same text.
    """
    spent = None if price_per_gpu_hour is None else money(report.gpu_hours * price_per_gpu_hour, currency)
    initial = {role: series.desired[0] for role, series in report.replicas.items()}
    worded = decisions(report.intervals, initial)
    body = part("result.html").substitute(
        cards="\n".join(_cards(report, spent)),
        latencies=_latencies(report),
        notes=notes([*_merged(report), *report.notes]),
        charts=charts(draw(report, worded)),
        bound=escape(f"Fluid bound: {BOUND_IS}"),
        decisions=_decisions(worded, report),
    )
    return page(title=headline(report), subtitle=_subtitle(report), body=body)


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
    for key, name in (("ttft_s", "TTFT"), ("itl_s", "ITL")):
        late, target_s = getattr(report, key).p99, getattr(report.slo, key)
        verdict = "good" if late is not None and late <= target_s else "bad"
        yield card(f"{name} p99", f"{milliseconds(late)} ms", f"target {target_s * 1e3:g} ms", verdict)


def _latencies(report: SimulationReport) -> str:
    head = "".join(f"<th>{quantile}</th>" for quantile in QUANTILES)
    rows = ""
    for key, name in LATENCIES:
        values = (milliseconds(getattr(getattr(report, key), quantile)) for quantile in QUANTILES)
        rows += f"<tr><th>{name}</th>{''.join(f'<td>{value}</td>' for value in values)}</tr>"
    return f"<table><thead><tr><th>ms</th>{head}</tr></thead><tbody>{rows}</tbody></table>{hint(TPOT_IS)}"


def _merged(report: SimulationReport) -> Iterator[str]:
    merged = interval_columns(report.intervals).merged
    if merged > 1:
        yield (
            f"charts: more than {MOST_POINTS} intervals; each point stands for {merged} of them, "
            "latencies show the worst"
        )


def _decisions(worded: Sequence[DecisionText], report: SimulationReport) -> str:
    roles = tuple(report.replicas)
    head = "".join(f"<th>{escape(role)}</th>" for role in roles)
    rows = "".join(_row(decision, roles) for decision in worded)
    total = sum(1 for row in report.intervals if row.targets)
    shown = "" if len(worded) == total else f" (the first {MOST_DECISIONS} that changed the fleet)"
    table = f"<table><thead><tr><th>time</th>{head}<th>why</th></tr></thead><tbody>{rows}</tbody></table>"
    summary = f"<summary>{plural(total, 'decision')}{shown}</summary>"
    return f'<details>{summary}<div class="wide">{table}</div></details>'


def _row(decision: DecisionText, roles: Sequence[str]) -> str:
    counts = ""
    for role in roles:
        marked = ' class="moved"' if role in decision.changed else ""
        counts += f"<td{marked}>{decision.targets[role]}</td>"
    why = "<br>".join(escape(line) for line in decision.lines)
    minutes, seconds = divmod(round(decision.at_s), 60)
    clock = f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"
    return f'<tr><td>{clock}</td>{counts}<td class="why">{why}</td></tr>'
