"""Cells, recordings, the benchmark's own policies, the runs on disk, and the report."""

from dataclasses import replace
from math import isclose, nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.policies.cells import Base, Cell, cells
from benchmarks.policies.contenders import Contender
from benchmarks.policies.loaded_base import GOAL, Figures
from benchmarks.policies.plot import LEVELS, curve
from benchmarks.policies.recording import Recording
from benchmarks.policies.report import markdown
from benchmarks.policies.results import Everywhere, Results, Total, common_cells, one_for_all, searched
from benchmarks.policies.run_files import BaseFacts, RunFile
from benchmarks.policies.scaled_reference import ScaledReference
from benchmarks.policies.slo_ratio import SloRatioPolicy
from benchmarks.policies.summary import against, bests, covered, reversals
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


class TestCells:
    def test_the_grid_is_complete_and_named_apart(self) -> None:
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


def observation(now_s: float, ttft_s: float, itl_s: float, replicas: int = 10) -> Observation:
    pool = PoolState(desired=replicas, starting=0, ready=replicas, draining=0)
    return Observation(
        now_s=now_s,
        interval_s=15.0,
        requests=100.0,
        isl_tokens=100.0,
        osl_tokens=100.0,
        ttft_s=ttft_s,
        itl_s=itl_s,
        pools={Role.PREFILL: pool, Role.DECODE: pool},
    )


class TestSloRatio:
    def decide(self, ttft_s: float, itl_s: float, safety: float = 1.0) -> dict[Role, int]:
        policy = SloRatioPolicy(SETTINGS, safety)
        return dict(policy.plan(observation(15.0, ttft_s, itl_s), policy.initial_state()).targets)

    @pytest.mark.parametrize(
        ("latencies_s", "safety", "prefill", "decode"),
        [
            ((1.5, 0.12), 1.0, 15, 12),
            ((1.09, 0.091), 1.0, 10, 10),  # within the tolerance
            ((1.0, 0.1), 1.5, 15, 15),
            ((9.0, 0.1), 1.0, 20, 10),  # twice as many at most
            ((nan, 0.1), 1.0, 10, 10),
        ],
    )
    def test_replicas_follow_the_ratio_of_each_pool(
        self, latencies_s: tuple[float, float], safety: float, prefill: int, decode: int
    ) -> None:
        assert self.decide(*latencies_s, safety) == {Role.PREFILL: prefill, Role.DECODE: decode}

    def test_less_is_applied_after_five_minutes_of_it(self) -> None:
        policy = SloRatioPolicy(SETTINGS, 1.0)
        state: Any = policy.initial_state()
        targets = []
        for tick in range(1, 25):
            decision = policy.plan(observation(15.0 * tick, 0.5, 0.1), state)
            targets.append(decision.targets[Role.PREFILL])
            state = decision.next_state
        assert targets[:20] == [10] * 20
        assert targets[20:] == [5] * 4


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


class TestScaledReference:
    def decide(self, requirement: dict[str, Any]) -> dict[Role, int]:
        policy = ScaledReference(Fixed(requirement), SETTINGS, {Role.PREFILL: 2.0, Role.DECODE: 0.5})
        return dict(policy.plan(observation(60.0, 1.0, 0.1), None).targets)

    def test_factors_apply_before_rounding(self) -> None:
        wanted = {"prefill": {"replicas": 2.2}, "decode": {"replicas": 3.9}}
        assert self.decide(wanted) == {Role.PREFILL: 5, Role.DECODE: 2}

    def test_limits_hold(self) -> None:
        wanted = {"prefill": {"replicas": 40.0}, "decode": {"replicas": 0.1}}
        assert self.decide(wanted) == {Role.PREFILL: 50, Role.DECODE: 1}


class TestBook:
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

    def test_what_fails_is_never_the_cheapest(self, tmp_path: Path) -> None:
        book = RunFile(tmp_path / "cell.json")
        book.figures((0,), lambda knobs: figures(0.98, 1.0))
        assert book.cheapest() is None

    @pytest.mark.parametrize("static", [(4, 2), None])
    def test_facts_come_back_as_they_went(self, tmp_path: Path, static: tuple[int, int] | None) -> None:
        saved = facts(static, 8.0)
        saved.save(tmp_path / "base.json")
        assert BaseFacts.load(tmp_path / "base.json") == saved


def facts(static: tuple[int, int] | None, gpu_hours: float) -> BaseFacts:
    return BaseFacts(
        requests=1000,
        attainable=990,
        idle_ttft_s=0.1,
        idle_itl_s=0.01,
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
    """Headway holds everywhere, reference at 180 s never, the clairvoyant plan everywhere."""
    every = [NEAR, FAR, LONG]
    known = {
        "headway": {NEAR: (0.995, 8.0), FAR: (0.991, 12.0), LONG: (0.99, 50.0)},
        "reference-60s": {NEAR: (0.99, 16.0), FAR: (0.95, 30.0), LONG: (0.99, 90.0)},
        "reference-180s": {NEAR: (0.99, 10.0), FAR: (0.97, 31.0), LONG: (0.99, 100.0)},
        "clairvoyant": {NEAR: (0.99, 8.0), FAR: (0.99, 8.0), LONG: (0.99, 40.0)},
    }
    books = {}
    for name, runs in known.items():
        for cell, run in runs.items():
            book = RunFile(tmp_path / name / f"{cell.name}.json")
            book.figures((0 if run[0] >= GOAL else 2,), lambda knobs, run=run: figures(*run))
            books[name, cell] = book
    return Results(
        cells=every,
        contenders=[contender(name, everywhere=name != "clairvoyant") for name in known],
        facts={HOUR: facts((4, 2), 10.0), DAY: facts((4, 2), 100.0)},
        books=books,
        everywhere={
            "headway": Everywhere(cells=2, holds=2, knobs=(1,), total=Total(gpu_hours=55.0, failed=0)),
            "reference-60s": Everywhere(cells=2, holds=1),
            "reference-180s": Everywhere(
                cells=2, holds=2, knobs=(2,), total=Total(gpu_hours=110.0, failed=0)
            ),
        },
    )


class TestSummary:
    def test_a_family_stands_at_its_cheapest_contender(self, results: Results) -> None:
        reference = bests(results)["reference"]
        assert {cell: best.contender for cell, best in reference.items()} == {
            NEAR: "reference-180s",
            LONG: "reference-60s",
        }

    def test_ratios_cover_the_cells_that_both_hold(self, results: Results) -> None:
        ratios = against(results, bests(results), "headway")
        reference = ratios["reference"]
        assert reference is not None
        assert reference.cells == 2
        assert isclose(reference.mean, (0.8 * 50 / 90) ** 0.5)
        assert (reference.worst, reference.where) == (0.8, NEAR.name)

    def test_no_common_cell_is_no_ratio(self, results: Results) -> None:
        found = {**bests(results), "reference": {}}
        assert against(results, found, "headway")["reference"] is None
        assert reversals({}) is None

    def test_a_family_covers_a_cell_once_all_its_searches_have_ended(
        self, results: Results, tmp_path: Path
    ) -> None:
        unfinished = RunFile(tmp_path / "begun.json")
        unfinished.figures((1,), lambda knobs: figures(0.99, 5.0))
        partly = replace(results, books={**results.books, ("reference-60s", NEAR): unfinished})
        assert covered(partly)["reference"] == [FAR, LONG]
        assert NEAR not in bests(partly)["reference"]
        assert "reference 2" in markdown(partly)


class TestResults:
    def test_a_search_has_ended_at_the_edge_or_with_the_widest(self, tmp_path: Path) -> None:
        known = contender("headway")

        def ended(**runs: float) -> bool:
            book = RunFile(tmp_path / f"{len(list(tmp_path.iterdir()))}.json")
            for place, attainment in runs.items():
                book.figures((int(place[1:]),), lambda knobs, share=attainment: figures(share, 1.0))
            return searched(book, known)

        assert not ended()
        assert not ended(p1=0.99)
        assert not ended(p0=0.98, p2=0.99)
        assert ended(p0=0.99)
        assert ended(p0=0.98, p1=0.99)
        assert ended(p2=0.98)

    def test_of_two_knobs_each_is_searched_with_the_other_widest(self, tmp_path: Path) -> None:
        known = replace(contender("reference-apart"), knobs=2)
        book = RunFile(tmp_path / "cell.json")
        for knobs in ((0, 2), (2, 1)):
            book.figures(knobs, lambda _: figures(0.99, 1.0))
        assert not searched(book, known)
        book.figures((2, 0), lambda _: figures(0.9, 1.0))
        assert searched(book, known)

    def test_common_cells_are_those_that_each_family_can_hold(self, results: Results) -> None:
        assert common_cells(results.cells, results.contenders, results.books) == [NEAR, LONG]

    def test_one_setting_is_the_cheapest_that_was_run_and_holds_in_every_cell(self, results: Results) -> None:
        known = contender("headway")
        cells = [NEAR, FAR]
        for cell in cells:
            book = results.books["headway", cell]
            book.figures((1,), lambda knobs: figures(0.995, 7.0))
        results.books["headway", NEAR].figures((2,), lambda knobs: figures(1.0, 1.0))
        assert one_for_all(known, cells, results.books) == Everywhere(
            cells=2, holds=2, knobs=(1,), total=Total(gpu_hours=14.0, failed=0)
        )


class TestReport:
    def test_tables_are_whole(self, results: Results) -> None:
        report = markdown(results)
        for line in report.splitlines():
            if line.startswith("|"):
                assert line.endswith("|")
        assert "| headway | headway | 2 | 2 | 55.0 | 0.50 |" in report
        assert "| headway | 3 of 3 |" in report
        row = next(line for line in report.splitlines() if line.startswith(f"| {FAR.name} |"))
        assert "97.0%" in row
        assert "Not finished" not in report

    def test_what_was_asked_stands_beside_what_was_measured(self, results: Results) -> None:
        report = markdown(results)
        assert f"mean 1.12, worst 1.25 at {LONG.name} | 2 |" in report
        assert "0.50 (55.0 over 110.0 of reference-180s)" in report
        static = next(line for line in report.splitlines() if "static fleet, traces of hours" in line)
        assert f"worst 1.20 at {FAR.name} | 2 | {FAR.name} 1.20 |" in static
        assert "| 180 s | – | 1.20 (worst 1.20, 1) | 1.50 (worst 1.50, 1) | 1.0 |" in report

    def test_a_curve_ends_where_a_cell_cannot_follow(self, results: Results) -> None:
        assert [level for level, _ in curve(results, "reference", "azure1")] == [
            level for level in LEVELS if level <= 0.97
        ]
        (first, *_) = curve(results, "headway", "azure1")
        assert isclose(first[1], (0.8 * 1.2) ** 0.5)
