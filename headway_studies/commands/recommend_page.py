"""The page of a recommendation: each candidate's cost with its attainment, and the chosen fleet over time."""

from collections.abc import Iterator

from headway.simulation.report import ReportError, SimulationReport, parse_report
from headway.words import duration, percent, plural, scaled, targets
from headway_cli.page.charts import BLUE, GREEN, GREY, ORANGE, PURPLE, ROLE_COLOURS, SKY, Board, Figure, Style
from headway_cli.page.series import interval_columns, pool_columns, steps
from headway_cli.page.template import bars, charts, figures, heading, named, notes, page
from headway_studies.commands.recommend_view import POLICY, Document, cells

FIXED, FOLLOWED, BOUND = "least fixed fleet", f"policy {POLICY}", "at least (not simulated)"
MISSED = f"{FOLLOWED}, misses the target"
COLOURS = {FIXED: SKY, FOLLOWED: BLUE, MISSED: ORANGE, BOUND: "#D9DFE5"}


def render(document: Document) -> str:
    """The page; the same document gives the same text. KeyError, TypeError or ReportError for another."""
    trace, slo, unit, choice = (document[key] for key in ("trace", "slo", "unit", "recommended"))
    rows = [(one["label"], document["candidates"][one["candidate"]]) for one in document["shown"]]
    table = ([row["profile"], label, *cells(row, slo["attainment"])] for label, row in rows)
    course = "" if choice is None else charts(_over_time(_simulated(choice["simulation"])))
    body = (
        named({"Nothing": document["nothing"]} if choice is None else choice["sentences"]),
        f"<h2>{'Cost' if unit == 'cost' else 'GPU-hours'} of each candidate</h2>",
        _bars(rows, slo["attainment"]),
        course and heading("The recommended fleet over time") + course,
        heading("Candidates"),
        figures(("profile", "mode", "fixed", "attained", unit, POLICY, "attained", unit), table),
        notes(document["notes"]),
    )
    return page(
        *body,
        title=f"Recommendation for {scaled(trace['name'], trace['rate_scale'])}",
        subtitle=f"{plural(trace['requests'], 'request')} in {duration(trace['duration_s'])}. "
        f"{targets(slo['ttft_s'], slo['itl_s'])}, target {percent(slo['attainment'])}. "
        "Every bar with a percentage is a simulation of the whole trace.",
    )


def _simulated(document: Document) -> SimulationReport:
    try:
        return parse_report(document)
    except ReportError as error:
        raise ReportError(f"recommended.simulation: {error}") from error


def _bars(rows: list[tuple[str, Document]], aim: float) -> str:
    points = [(f"{row['profile']}, {label}", dict(_points(row, aim))) for label, row in rows]
    most = max((cost for _, ways in points for cost, _ in ways.values()), default=0.0) or 1.0
    key = {name: colour for name, colour in COLOURS.items() if any(name in ways for _, ways in points)}
    return bars(
        key,
        (
            (
                name,
                [
                    (COLOURS[kind], cost / most, f"{cost:.4g}: {words}")
                    for kind, (cost, words) in ways.items()
                ],
            )
            for name, ways in points
            if ways
        ),
    )


def _points(row: Document, aim: float) -> Iterator[tuple[str, tuple[float, str]]]:
    """Kind, cost and words of each bar that the row has."""
    followed = row[POLICY]
    missed = followed is not None and followed["attainment"] < aim
    for kind, outcome in ((FIXED, row["fixed"]), (MISSED if missed else FOLLOWED, followed)):
        if outcome is not None:
            fleet = " + ".join(f"{count} {role}" for role, count in outcome["replicas"].items())
            yield kind, (outcome["cost"], f"{percent(outcome['attainment'])}, {fleet}")
    if row["problem"] is None and row["fixed"] is None:
        yield BOUND, (row["cost_at_least"], "or more")


def _over_time(report: SimulationReport) -> Figure:
    columns = interval_columns(report.intervals)
    board = Board(report.simulated_s, ("Replicas ready", "Attainment"))
    for role, series in report.replicas.items():
        pool = pool_columns(series, report.simulated_s)
        board.line(1, role, pool.time_s, pool.ready, {"colour": ROLE_COLOURS.get(role, GREEN), "step": True})
    load: Style = {"colour": GREY, "line": "dot", "step": True, "right": True}
    board.line(1, "requests/s", *steps(columns, columns.load_rps), load)
    board.axis(1, whole=True)
    board.right(1, title="requests/s")
    board.share(2, "attainment", *steps(columns, columns.attainment), {"colour": PURPLE, "step": True})
    board.attainment_target(2, report.slo.attainment, columns.attainment)
    return board.finish()
