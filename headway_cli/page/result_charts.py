"""The charts of one simulation: load, replicas with decisions, latencies with spikes, attainment and cost."""

from collections.abc import Mapping

import numpy as np

from headway.planning.reasons import jsonable
from headway.simulation.report import SimulationReport
from headway.words import milliseconds
from headway_cli.page.causes import Spike, spikes
from headway_cli.page.charts import BLUE, GREEN, GREY, ORANGE, PURPLE, ROLE_COLOURS, SKY, VERMILLION, Board
from headway_cli.page.figure import Figure, Style, plain
from headway_cli.page.reasons import DecisionText
from headway_cli.page.series import (
    Floats,
    IntervalColumns,
    PoolColumns,
    gpu_hours,
    interval_columns,
    pool_columns,
    steps,
)

LINE_STYLES: Mapping[str, Style] = {
    "mean": {"colour": GREY, "width": 1.5, "line": "dot"},
    "p50": {"colour": SKY},
    "p95": {"colour": ORANGE},
    "p99": {"colour": PURPLE},
}
MANY_DECISIONS = 120
MOST_WORDS = 12
"""Spikes that have a word beside their mark, the highest ones; all say more where one points at them."""


def draw(report: SimulationReport, decisions: list[DecisionText]) -> Figure:
    """All panels of one result."""
    roles = tuple(report.replicas)
    latency_titles = ("Time to first token", "Time between tokens (ITL)")
    pool_titles = tuple(f"Replicas: {role}" for role in roles)
    board = Board(report.simulated_s, ("Load", *pool_titles, *latency_titles, "Attainment and cost"))
    columns = interval_columns(report.intervals)
    _draw_load(board, columns)
    for row, role in enumerate(roles, start=2):
        _draw_pool(board, row, role, pool_columns(report.replicas[role], report.simulated_s))
        _draw_expected(board, row, role, report)
        _draw_decisions(board, row, role, decisions)
    for row, key in enumerate(("ttft_s", "itl_s"), start=2 + len(roles)):
        _draw_latency(board, row, columns.latencies[key], columns.middle_s, getattr(report.slo, key))
        _draw_spikes(board, row, spikes(report, key))
    _draw_outcome(board, report, columns)
    return board.finish()


def _draw_load(board: Board, columns: IntervalColumns) -> None:
    measured, forecast = steps(columns, columns.load_rps), steps(columns, columns.forecast_rps, shift=True)
    board.line(1, "arrivals", *measured, {"colour": BLUE, "step": True})
    if np.isfinite(columns.forecast).any():
        style: Style = {"colour": VERMILLION, "width": 1.5, "line": "dot", "step": True}
        board.line(1, "forecast", *forecast, style)
    board.axis(1, title="requests/s")


def _draw_pool(board: Board, row: int, role: str, pool: PoolColumns) -> None:
    colour = ROLE_COLOURS.get(role, GREEN)
    up = pool.ready + pool.starting
    for name, low, high, fill in (
        ("starting", pool.ready, up, colour),
        ("draining", up, pool.up, GREY),
    ):
        board.line(
            row, name, pool.time_s, high, {"colour": fill, "base": plain(low), "step": True, "quiet": True}
        )
    board.line(row, "ready", pool.time_s, pool.ready, {"colour": colour, "width": 2.5, "step": True})
    board.line(
        row,
        "desired",
        pool.time_s,
        pool.desired,
        {"colour": GREY, "width": 1.5, "line": "dash", "step": True},
    )
    board.axis(row, whole=True)


def _draw_expected(board: Board, row: int, role: str, report: SimulationReport) -> None:
    """The forecast of the policy `headway`: work expected when a replica that is ordered now can be ready."""
    due_s, work = [], []
    for interval in report.intervals:
        need = jsonable(interval.reasons.get("needs", {})).get(role, {})
        expected = (need.get("option") or {}).get("expected")
        if expected is not None:
            due_s.append(interval.end_s + need.get("lead_s", 0.0))
            work.append(expected)
    if work:
        style: Style = {"colour": VERMILLION, "width": 1.5, "line": "dot"}
        board.line(row, "work forecast", np.array(due_s), np.array(work), style)


def _draw_decisions(board: Board, row: int, role: str, decisions: list[DecisionText]) -> None:
    here = [decision for decision in decisions if role in decision.targets]
    if not here:
        return
    changed = [role in decision.changed for decision in here]
    large, small = (10, 6) if len(here) <= MANY_DECISIONS else (7, 3)
    style: Style = {
        "colour": ROLE_COLOURS.get(role, GREEN),
        "line": "none",
        "symbol": ["diamond" if moved else "circle-open" for moved in changed],
        "size": [large if moved else small for moved in changed],
        "hover": [_told(board, role, decision) for decision in here],
    }
    times = np.array([decision.at_s for decision in here])
    targets = np.array([decision.targets[role] for decision in here], np.float64)
    board.line(row, "decision", times, targets, style)


def _told(board: Board, role: str, decision: DecisionText) -> str:
    at = decision.at_s / board.unit.seconds
    return "\n".join((f"{at:.4g} {board.unit.name}: {role} {decision.targets[role]}", *decision.lines))


def _draw_latency(
    board: Board, row: int, lines: Mapping[str, Floats], middle_s: Floats, target_s: float
) -> None:
    for name, style in LINE_STYLES.items():
        board.line(row, name, middle_s, lines[name] * 1e3, style)
    board.target(row, f"target {target_s * 1e3:g} ms", target_s * 1e3)
    board.latency_axis(row, float(np.nanmax(lines["p99"], initial=0.0)), target_s)


def _draw_spikes(board: Board, row: int, found: list[Spike]) -> None:
    if not found:
        return
    named = sorted(found, key=lambda spike: -spike.p99_s)[:MOST_WORDS]
    style: Style = {
        "colour": VERMILLION,
        "line": "none",
        "symbol": "triangle",
        "size": 9,
        "labels": [", ".join(spike.kinds) if spike in named else "" for spike in found],
        "hover": [
            "\n".join((f"p99 {milliseconds(spike.p99_s)} ms, beside it:", *spike.lines)) for spike in found
        ],
    }
    values = np.array([spike.p99_s * 1e3 for spike in found])
    board.line(row, "spike", np.array([spike.at_s for spike in found]), values, style)


def _draw_outcome(board: Board, report: SimulationReport, columns: IntervalColumns) -> None:
    row = board.rows
    times, shares = steps(columns, columns.attainment)
    board.share(row, "attainment", times, shares, {"colour": GREEN, "step": True})
    board.attainment_target(row, report.slo.attainment, columns.attainment)
    board.line(
        row, "GPU-hours so far", *gpu_hours(report), {"colour": BLUE, "line": "dashdot", "right": True}
    )
    board.right(row, title="GPU-hours")
