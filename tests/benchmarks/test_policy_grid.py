"""Cells, recordings, the benchmark's own policies, the runs on disk, and the report."""

from dataclasses import replace
from math import isclose
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.policies.cells import Base, Cell, cells
from benchmarks.policies.contenders import Contender
from benchmarks.policies.loaded_base import GOAL, Figures
from benchmarks.policies.recording import Recording
from benchmarks.policies.report import markdown
from benchmarks.policies.results import Everywhere, Results, one_for_all, ratio, searched
from benchmarks.policies.run_files import BaseFacts, RunFile
from benchmarks.policies.scaled_reference import ScaledReference
from headway.planning import Decision, Observation, PolicySettings, PoolLimits, PoolState, Role, Slo

HOUR = Base(trace="azure1", profile="8b", slo="tight")
DAY = Base(trace="r1", profile="8b", slo="tight")


def figures(attainment: float, gpu_hours: float, reversals: float = 1.0) -> Figures:
    spread = ((attainment, gpu_hours), (attainment, gpu_hours))
    return Figures(
        attainment=attainment,
        gpu_hours=gpu_hours,
        reversals=reversals,
        fluid_gpu_hours=gpu_hours / 4,
        spread=spread,
    )


def recording() -> Recording:
    whole = np.arange(1, 5)
    return Recording(np.array([0.0, 10.0, 50.0, 90.0]), whole, 10 * whole, 100.0)


def test_the_grid_is_complete_and_named_apart() -> None:
    every = cells()
    assert len(every) == len({cell.name for cell in every}) == 6 * 2 * 2 * 3 * 2


class TestRecording:
    def test_a_turn_keeps_requests_and_gaps(self) -> None:
        turned = recording().turned(0.25)
        assert turned.arrival_s.tolist() == [15.0, 25.0, 35.0, 75.0]
        assert turned.input_tokens.tolist() == [4, 1, 2, 3]
        assert turned.output_tokens.tolist() == [40, 10, 20, 30]

    def test_the_head_ends_before_its_duration(self) -> None:
        head = recording().head(50.0)
        assert head.arrival_s.tolist() == [0.0, 10.0]
        assert head.duration_s == 50.0
        assert recording().head(1e6).duration_s == 100.0

    def test_bursts_come_on_top_in_order_of_time(self) -> None:
        long = Recording(np.array([0.0, 359.0]), np.array([1, 1]), np.array([1, 1]), 360.0)
        burst = Recording(np.array([0.0, 1.0]), np.array([7, 8]), np.array([7, 8]), 1.0)
        both = long.with_bursts(burst)
        assert len(both.arrival_s) == 2 + 3 * 2
        assert (np.diff(both.arrival_s) >= 0.0).all()
        assert both.input_tokens.sum() == 2 + 3 * 15
        assert both.arrival_s.max() < 360.0


SETTINGS = PolicySettings(
    slo=Slo(ttft_s=1.0, itl_s=0.1),
    limits={Role.PREFILL: PoolLimits(max_replicas=50), Role.DECODE: PoolLimits(max_replicas=50)},
)


def observation() -> Observation:
    pool = PoolState(desired=10, starting=0, ready=10, draining=0)
    return Observation(
        now_s=60.0,
        interval_s=60.0,
        requests=100.0,
        isl_tokens=100.0,
        osl_tokens=100.0,
        ttft_s=1.0,
        itl_s=0.1,
        pools={Role.PREFILL: pool, Role.DECODE: pool},
    )


class Fixed:
    """A policy that always decides the same."""

    name, interval_s = "reference", 60.0

    def __init__(self, requirement: dict[str, Any]) -> None:
        self.requirement = requirement

    def initial_state(self) -> None:
        return None

    def plan(self, observation: Observation, state: None) -> Decision:
        return Decision(
            targets={Role.PREFILL: 3, Role.DECODE: 4},
            next_state=state,
            reasons={"requirement": self.requirement},
        )


@pytest.mark.parametrize(
    ("prefill", "decode", "targets"),
    [
        (2.2, 3.9, {Role.PREFILL: 5, Role.DECODE: 2}),  # factors apply before rounding
        (40.0, 0.1, {Role.PREFILL: 50, Role.DECODE: 1}),  # limits hold
    ],
)
def test_reference_is_scaled(prefill: float, decode: float, targets: dict[Role, int]) -> None:
    fixed = Fixed({"prefill": {"replicas": prefill}, "decode": {"replicas": decode}})
    policy = ScaledReference(fixed, SETTINGS, {Role.PREFILL: 2.0, Role.DECODE: 0.5})
    assert policy.plan(observation(), None).targets == targets


class TestRunFile:
    def test_a_run_is_made_once(self, tmp_path: Path) -> None:
        path, made = tmp_path / "policy" / "cell.json", []

        def measure(knobs: tuple[int, ...]) -> Figures:
            made.append(knobs)
            return figures(0.99, 10.0 + knobs[0])

        first = RunFile(path).figures((3, 5), measure)
        assert RunFile(path).figures((3, 5), measure) == first
        RunFile(path).figures((1, 5), measure)
        assert made == [(3, 5), (1, 5)]
        assert RunFile(path).cheapest() == ((1, 5), figures(0.99, 11.0))
        RunFile(path).figures((0, 5), lambda knobs: figures(0.98, 1.0))  # does not hold
        assert RunFile(path).cheapest() == ((1, 5), figures(0.99, 11.0))

    @pytest.mark.parametrize("static", [(4, 2), None])
    def test_facts_come_back_as_they_went(self, tmp_path: Path, static: tuple[int, int] | None) -> None:
        saved = facts(static, 8.0)
        saved.save(tmp_path / "base.json")
        assert BaseFacts.load(tmp_path / "base.json") == saved


def facts(static: tuple[int, int] | None, gpu_hours: float) -> BaseFacts:
    return BaseFacts(
        requests=1000,
        attainable=990,
        gpus=(1, 4),
        initial=((2, 1), (3, 1)),
        static=static,
        static_figures=figures(0.991, gpu_hours) if static else None,
    )


def contender(name: str, *, each: bool = True, everywhere: bool = True) -> Contender:
    def make(*_: object) -> Any:
        raise AssertionError("nothing is simulated here")

    grid = (1.0, 2.0, 4.0)
    family = name.partition("-")[0]
    return Contender(
        name=name, family=family, knobs=1, grid=grid, make=make, each=each, everywhere=everywhere
    )


NEAR, FAR = Cell(base=HOUR, delay_s=0), Cell(base=HOUR, delay_s=180)
LONG = Cell(base=DAY, delay_s=60)


@pytest.fixture
def results(tmp_path: Path) -> Results:
    """Headway holds everywhere, and at one position in two cells; reference holds not far away."""
    known = {
        "headway": {NEAR: (0.995, 8.0), FAR: (0.991, 12.0), LONG: (0.99, 50.0)},
        "reference-60s": {NEAR: (0.99, 16.0), FAR: (0.95, 30.0), LONG: (0.99, 90.0)},
        "reference-180s": {NEAR: (0.99, 10.0), FAR: (0.97, 31.0), LONG: (0.99, 100.0)},
    }
    runs = {}
    for name, of_name in known.items():
        for cell, run in of_name.items():
            run_file = RunFile(tmp_path / name / f"{cell.name}.json")
            run_file.figures((0 if run[0] >= GOAL else 2,), lambda knobs, run=run: figures(*run))
            runs[name, cell] = run_file
    return Results(
        cells=[NEAR, FAR, LONG],
        contenders=[contender(name) for name in known],
        facts={HOUR: facts((4, 2), 10.0), DAY: facts((4, 2), 100.0)},
        runs=runs,
    )


class TestResults:
    def test_a_family_stands_at_its_cheapest_contender(self, results: Results) -> None:
        best = {cell: best.contender for cell, best in results.bests("reference").items()}
        assert best == {NEAR: "reference-180s", LONG: "reference-60s"}

    def test_ratios_cover_the_cells_that_both_hold(self, results: Results) -> None:
        found = ratio(results.costs("headway"), results.costs("reference"))
        assert found is not None
        assert found.cells == 2
        assert isclose(found.mean, (0.8 * 50 / 90) ** 0.5)
        assert (found.worst, found.where) == (0.8, NEAR.name)
        assert ratio(results.costs("headway"), {}) is None

    def test_a_family_covers_a_cell_once_all_its_searches_have_ended(
        self, results: Results, tmp_path: Path
    ) -> None:
        unfinished = RunFile(tmp_path / "begun.json")
        unfinished.figures((1,), lambda knobs: figures(0.99, 5.0))
        partly = replace(results, runs={**results.runs, ("reference-60s", NEAR): unfinished})
        assert partly.covered("reference") == [FAR, LONG]
        assert NEAR not in partly.bests("reference")
        assert "of 3 cells reference 2." in markdown(partly)

    def test_a_search_has_ended_at_the_edge_or_with_the_widest(self, tmp_path: Path) -> None:
        def ended(**runs: float) -> bool:
            run_file = RunFile(tmp_path / f"{len(list(tmp_path.iterdir()))}.json")
            for place, attainment in runs.items():
                run_file.figures((int(place[1:]),), lambda knobs, share=attainment: figures(share, 1.0))
            return searched(run_file, contender("headway"))

        assert not ended()
        assert not ended(p1=0.99)
        assert not ended(p0=0.98, p2=0.99)
        assert ended(p0=0.99)
        assert ended(p0=0.98, p1=0.99)
        assert ended(p2=0.98)

    def test_of_two_knobs_each_is_searched_with_the_other_widest(self, tmp_path: Path) -> None:
        known = replace(contender("reference-apart"), knobs=2)
        run_file = RunFile(tmp_path / "cell.json")
        for knobs in ((0, 2), (2, 1)):
            run_file.figures(knobs, lambda _: figures(0.99, 1.0))
        assert not searched(run_file, known)
        run_file.figures((2, 0), lambda _: figures(0.9, 1.0))
        assert searched(run_file, known)

    def test_one_setting_is_the_cheapest_that_was_run_and_holds_in_every_cell(self, results: Results) -> None:
        assert results.common() == [NEAR, LONG]
        own = [results.runs["headway", cell] for cell in (NEAR, FAR)]
        for run_file in own:
            run_file.figures((1,), lambda knobs: figures(0.995, 7.0))
        own[0].figures((2,), lambda knobs: figures(1.0, 1.0))
        assert one_for_all("headway", own) == Everywhere(
            contender="headway", cells=2, holds=2, knobs=(1,), gpu_hours=14.0
        )


def test_the_report_has_each_comparison(results: Results) -> None:
    report = markdown(results)
    for line in report.splitlines():
        if line.startswith("|"):
            assert line.endswith("|")
    assert "| headway | headway | 1 | 2 | 58.0 | 0.55 |" in report
    assert "| reference | reference-60s | 1 | 2 | 106.0 | 1.00 |" in report
    assert "| headway | all | 3 of 3 |" in report
    worst = f"1.20 (worst 1.20 at {FAR.name}, 1)"
    assert (
        f"| headway | 180 s | 1 of 1 | – | {worst} | – | 4.80 (worst 4.80 at {FAR.name}, 1) | 1.0, 1.0 |"
        in report
    )
    row = next(line for line in report.splitlines() if line.startswith(f"| {FAR.name} |"))
    assert "97.0%" in row
    assert "Not finished" not in report
