"""The page of `headway load`: what clients saw, over time, from the document that the verb writes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from headway.simulation.report import Count, Measured, Number, Quantiles, ReportSlo
from headway.words import duration, percent, scaled, targets
from headway_cli.page.charts import BLUE, GREEN, GREY, ORANGE, PURPLE, Board, Figure, Style
from headway_cli.page.result import late_card, latencies
from headway_cli.page.template import card, cards, charts, heading, hint, named, notes, page
from headway_cli.result_view import TPOT_IS, load_figures

LEAST_SPAN_S = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadTrace:
    """The name of the load."""

    name: str = "load"
    rate_scale: Number = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadInterval:
    """Requests that should have left in it; the quantiles were not in every version's document."""

    start_s: Number
    end_s: Number
    requests: Count
    attainment: Measured
    output_tokens: Count
    ttft_mean_s: Measured
    ttft_p99_s: Measured = None
    tpot_p99_s: Measured = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadResult:
    """What a page shows of the document; other keys are let through."""

    url: str
    model: str
    started_at: str
    trace: LoadTrace
    slo: ReportSlo
    requests: Count
    completed: Count
    shed: Count
    failed: Count
    attainment: Measured
    goodput_rps: Number
    outcomes: Mapping[str, Count]
    input_tokens: Count
    output_tokens: Count
    ttft_s: Quantiles
    itl_s: Quantiles
    tpot_s: Quantiles
    e2e_s: Quantiles
    send_lag_s: Mapping[str, Measured]
    duration_s: Number
    notes: Sequence[str]
    intervals: Sequence[LoadInterval]


def render_load(document: Mapping[str, Any]) -> str:
    """The page; pydantic's ValidationError names what is missing or wrong."""
    found = TypeAdapter(LoadResult).validate_python(document)
    body = (
        cards(_cards(found)),
        named(load_figures(asdict(found))),
        heading("Latencies, as clients saw them"),
        latencies(found),
        hint(TPOT_IS),
        heading("Over time"),
        hint(
            "By the time at which requests should have left. Drag to zoom all panels, double-click to return."
        ),
        charts(_draw(found)) if found.intervals else "<p>No request ended.</p>",
        notes(found.notes),
    )
    trace = found.trace
    return page(
        *body,
        title=f"{found.model} under {scaled(trace.name, trace.rate_scale)}",
        subtitle=f"Load on {found.url} for {duration(found.duration_s)}, begun at {found.started_at}. "
        f"Targets: {targets(found.slo.ttft_s, found.slo.itl_s)}, for {percent(found.slo.attainment)} of "
        "requests.",
    )


def _cards(found: LoadResult) -> Iterator[str]:
    target, kept = found.slo.attainment, found.attainment
    verdict = "good" if kept is not None and kept >= target else "bad"
    yield card("Attainment", percent(kept), f"target {percent(target)}", verdict)
    yield card("Goodput", f"{found.goodput_rps:.4g}", "requests/s within all targets")
    missing = f"{found.failed:,} failed, {found.shed:,} shed"
    yield card(
        "Completed",
        f"{found.completed:,}",
        f"of {found.requests:,}; {missing}",
        "bad" if found.failed else "",
    )
    yield late_card("TTFT", found.ttft_s.p99, found.slo.ttft_s)
    yield late_card("TPOT", found.tpot_s.p99, found.slo.itl_s)


def _without_gaps(rows: Sequence[LoadInterval]) -> Iterator[LoadInterval]:
    """The document leaves out intervals without requests, and a step line ends where the last row begins."""
    unknown: dict[str, Any] = dict.fromkeys(("ttft_mean_s", "ttft_p99_s", "tpot_p99_s"))
    for place, row in enumerate(rows):
        yield row
        next_s = rows[place + 1].start_s if place + 1 < len(rows) else row.end_s
        if next_s > row.end_s:
            quiet = replace(row, requests=0, output_tokens=0, attainment=None, **unknown)
            yield replace(quiet, start_s=row.end_s, end_s=next_s)
    width_s = rows[-1].end_s - rows[-1].start_s
    yield replace(rows[-1], start_s=rows[-1].end_s, end_s=rows[-1].end_s + width_s, **unknown)


def _draw(found: LoadResult) -> Figure:
    rows, slo = list(_without_gaps(found.intervals)), found.slo

    def column(name: str) -> Any:  # noqa: ANN401 - an array
        values = [getattr(row, name) for row in rows]
        return np.array([np.nan if value is None else value for value in values], np.float64)

    start_s, end_s = column("start_s"), column("end_s")
    span_s, middle_s = np.maximum(end_s - start_s, LEAST_SPAN_S), (start_s + end_s) / 2.0
    titles = (
        "Requests sent",
        "Output tokens",
        "Time to first token",
        "Time per output token (TPOT)",
        "Attainment",
    )
    board = Board(float(start_s[-1]), titles)
    steps: Style = {"step": True, "unlisted": True}
    board.line(1, "requests", start_s, column("requests") / span_s, {"colour": BLUE, **steps})
    board.axis(1, title="requests/s")
    board.line(2, "tokens", start_s, column("output_tokens") / span_s, {"colour": GREY, **steps})
    board.axis(2, title="tokens/s")
    lines = (
        (3, "mean", "ttft_mean_s", ORANGE),
        (3, "p99", "ttft_p99_s", PURPLE),
        (4, "p99", "tpot_p99_s", PURPLE),
    )
    for row, name, key, colour in lines:
        board.line(row, name, middle_s, column(key) * 1e3, {"colour": colour})
    for row, key, target_s in ((3, "ttft_p99_s", slo.ttft_s), (4, "tpot_p99_s", slo.itl_s)):
        board.latency_target(row, target_s, [column(key)])
    board.share(5, "attainment", start_s, column("attainment"), {"colour": GREEN, "step": True})
    board.attainment_target(5, slo.attainment, column("attainment"))
    return board.finish()
