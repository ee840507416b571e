"""`headway compare`: rows in order, equal to single simulations, and the search for a fixed fleet."""

import json
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from cli_cases import headway, in_this_process, trace
from rich.console import Console

from headway.config import load_config
from headway.planning import Role
from headway.simulation.build import make_plan
from headway.workload import open_trace
from headway_cli.compare_policies import Fleet, cheapest, grid, pareto, parse_policies, ranges
from headway_cli.job import Job, execute
from headway_cli.terminal import table

LOAD = "ramp:rate_rps=10,peak_rps=40,duration_s=180,input_tokens=900,output_tokens=80,seed=5"
FLAGS = ("--adjustment-interval", "60", "--ttft-ms", "400")


@pytest.fixture
def _one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway_cli.job.workers", in_this_process)


@pytest.mark.slow
def test_rows_equal_single_simulations(capsys: pytest.CaptureFixture[str]) -> None:
    policies = "reference,static:prefill=3:decode=2"
    ended = headway(capsys, "compare", LOAD, *FLAGS, "--policies", policies, "--jobs", "1", "--json", "-")
    assert ended.code == 0, ended.err
    compared = json.loads(ended.out)
    assert [row["label"] for row in compared["policies"]] == policies.split(",")
    assert "× bound" in ended.err
    single = json.loads(headway(capsys, "simulate", LOAD, *FLAGS, "--policy", "reference", "--json", "-").out)
    row: dict[str, Any] = compared["policies"][0]
    for key in ("attainment", "gpu_hours", "direction_reversals", "ttft_s", "itl_s"):
        assert row[key] == single[key]
    assert compared["trace"] == single["trace"]


def test_labels_and_settings_of_policies() -> None:
    found = parse_policies(
        "threshold, static:prefill=4:decode=8,reference:predictor=arima:no_correction=true"
    )
    assert [candidate.label for candidate in found][1] == "static:prefill=4:decode=8"
    assert found[0].overrides == {"planner.policy": "threshold"}
    assert found[1].overrides["planner.static.decode"] == 8
    assert found[2].overrides["planner.predictor"] == "arima"
    assert found[2].overrides["planner.no_correction"] is True


@pytest.mark.usefixtures("_one_process")
def test_the_configured_policy_is_compared_unless_policies_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "headway.yaml"
    file.write_text("planner: {policy: static, static: {prefill: 3, decode: 2}}\n")
    load = "steady:rate_rps=2,duration_s=30,seed=1"
    ended = headway(capsys, "compare", load, "--config", file, "--jobs", "1", "--json", "-")
    assert ended.code == 0, ended.err
    labels = [row["label"] for row in json.loads(ended.out)["policies"]]
    assert labels == ["static", "headway", "reference", "threshold"]


@pytest.mark.usefixtures("_one_process")
@pytest.mark.parametrize("flags", [("--aggregated",), ()])
def test_cheapest_fleet_of_any_pools(flags: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    load = "steady:rate_rps=2,duration_s=120,seed=1"
    command = ("compare", load, *flags, "--policies", "static:auto", "--jobs", "1", "--json", "-")
    ended = headway(capsys, *command)
    assert ended.code == 0, ended.err
    (row,) = json.loads(ended.out)["policies"]
    assert row["label"].startswith("static:auto (mixed=1" if flags else "static:auto (prefill=1 decode=1")


def test_search_on_a_single_request(tmp_path: Path) -> None:
    plan = make_plan(load_config(None, {"planner.policy": "threshold"}))
    with open_trace(trace(tmp_path, "7,500,20")) as single:
        assert cheapest(plan, single, lambda _: 1.0) == {Role.PREFILL: 1, Role.DECODE: 1}
        assert all(span.low == 1 for span in ranges(plan, single).values())


class World:
    """Attainment as a made-up function of the fleet: monotone, so that the best is known by trying all."""

    def __init__(self, prefill: int, decode: int) -> None:
        self.need = {Role.PREFILL: prefill, Role.DECODE: decode}
        self.tried: list[Fleet] = []

    def attain(self, fleet: Fleet) -> float:
        self.tried.append(fleet)
        return min(1.0, *(fleet[role] / need for role, need in self.need.items()))


@pytest.mark.parametrize("need", [(1, 1), (2, 5), (6, 2), (4, 4)])
def test_search_finds_the_cheapest_fleet(need: tuple[int, int]) -> None:
    plan = make_plan(load_config(None, {"planner.policy": "threshold"}))
    world = World(*need)
    with open_trace("ramp:rate_rps=40,peak_rps=150,duration_s=3600,seed=1") as trace:
        best = cheapest(plan, trace, world.attain)
        spans = ranges(plan, trace)
    floor = {role: max(world.need[role], span.low) for role, span in spans.items()}
    expected = {role: min(floor[role], spans[role].high) for role in spans}
    assert best == expected
    assert len(world.tried) <= 1 + sum(span.high - span.low + 2 for span in spans.values())


def test_grid_stays_inside_the_budget() -> None:
    plan = make_plan(load_config(None, {"planner.policy": "threshold", "planner.max_gpu_budget": 5}))
    with open_trace("steady:rate_rps=100,duration_s=3600,seed=1") as trace:
        fleets = grid(plan, trace)
    assert fleets
    assert all(sum(fleet.values()) <= 5 for fleet in fleets)


def test_pareto_keeps_what_nothing_beats() -> None:
    points = [(0.9, 4.0), (0.5, 3.0), (0.8, 5.0), (0.99, 6.0), (0.99, 7.0)]
    small = execute(Job(trace="steady:rate_rps=1,duration_s=10", config=load_config()))
    rows = {str(hours): replace(small, attainment=share, gpu_hours=hours) for share, hours in points}
    assert list(pareto(rows)) == ["3.0", "4.0", "6.0"]


@pytest.mark.parametrize("width", [24, 30, 100])
def test_no_figure_is_lost_in_a_narrow_window(width: int) -> None:
    head, rows = ("policy", "attained", "GPU-hours"), (("headway", "99.6 %", "12.87"), ("threshold", "", "9"))
    out = Console(width=width, file=StringIO())
    out.print(table(head, rows))
    text = out.file.getvalue()
    for word in (*head, "headway", "99.6 %", "12.87", "threshold"):
        assert word in text
    assert "…" not in text
