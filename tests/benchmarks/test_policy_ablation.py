"""Ideas are off while a policy plans and on again after; what each is worth stands in the table."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import decisions
from benchmarks.policies.ablation import ABLATIONS, IDEAS, Without
from benchmarks.policies.ablation_report import HEAD, ablation_markdown
from benchmarks.policies.cells import Base, Cell
from benchmarks.policies.contenders import CONTENDERS, LOSS_BUDGETS, ONE_PERCENT
from benchmarks.policies.loaded_base import Figures
from benchmarks.policies.results import Results
from benchmarks.policies.run_files import BaseFacts, RunFile
from headway.config import load_config
from headway.planning import Decision, Observation, Role
from headway.planning.hindsight import state
from headway.planning.hindsight.backtest import SMOOTHINGS, forecasts
from headway.simulation.build import make_plan

CELL = Cell(base=Base(trace="azure1", profile="8b", slo="tight"), delay_s=60)
OBSERVATION: Any = None


class Confirming:
    """A policy whose reason is the `CONFIRM` that it saw."""

    name, interval_s = "headway", 30.0

    def initial_state(self) -> None:
        return None

    def plan(self, observation: Observation, before: None) -> Decision:
        return Decision(targets={}, next_state=before, reasons={"confirm": state.CONFIRM})


class TestIdeas:
    def test_a_stand_in_lasts_while_the_policy_plans(self) -> None:
        before = state.CONFIRM
        policy = Without(Confirming(), {"state.CONFIRM": before + 1})
        assert policy.plan(OBSERVATION, policy.initial_state()).reasons == {"confirm": before + 1}
        assert before == state.CONFIRM

    @pytest.mark.parametrize("idea", IDEAS, ids=lambda idea: idea.name)
    def test_the_policy_plans_without_each(self, idea: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(decisions, "RATE_RPS", 2.0)
        plan = make_plan(load_config(None, {"planner.policy": "headway", **idea.overrides}))
        policy = Without(plan.policy, idea.stand_ins)
        replicas = dict.fromkeys((Role.PREFILL, Role.DECODE), 3)
        deployment = decisions.Deployment(policy, np.random.default_rng(1), policy.initial_state(), replicas)
        for _ in range(8):
            deployment.decide()
        assert {len(memory.history) for memory in deployment.state.pools.values()} == {8}
        assert all(1 <= target <= 3 for target in deployment.replicas.values())

    def test_forecasts_without_an_idea_repeat_others(self) -> None:
        work = np.random.default_rng(1).uniform(1.0, 5.0, 60)
        said = {idea.name: idea.stand_ins.get("backtest.forecasts") for idea in IDEAS}
        level = forecasts(work)[SMOOTHINGS.index(0.2)]
        assert {row.tobytes() for row in said["one-level"](work)} == {level.tobytes()}
        assert {row.tobytes() for row in said["last-value"](work)} == {work.tobytes()}


class TestTable:
    def results(self, directory: Path, runs: dict[str, dict[int, tuple[float, float]]]) -> Results:
        whole = next(each for each in CONTENDERS if each.name == "headway")
        contenders = [replace(whole, everywhere=False), *ABLATIONS]
        books = {}
        for each in contenders:
            books[each.name, CELL] = book = RunFile(directory / each.name / "cell.json")
            for place, (share, hours) in runs.get(each.name, {}).items():
                book.figures((place,), lambda _, share=share, hours=hours: _figures(share, hours))
        facts = BaseFacts(
            requests=10,
            attainable=10,
            idle_ttft_s=0.1,
            idle_itl_s=0.01,
            gpus=(1, 1),
            initial=((1, 1),),
            static=None,
            static_figures=None,
        )
        return Results(
            cells=[CELL], contenders=contenders, facts={CELL.base: facts}, books=books, everywhere={}
        )

    def test_ratios_are_over_the_whole_policy(self, tmp_path: Path) -> None:
        at = ONE_PERCENT
        report = ablation_markdown(
            self.results(
                tmp_path,
                {
                    "headway": {at: (0.995, 10.0), at - 1: (0.991, 8.0), at - 2: (0.98, 7.0)},
                    "headway~one-level": {at: (0.985, 9.0), at + 1: (0.99, 12.0)},
                    "headway~means": {at: (0.9, 5.0)},
                },
            )
        )
        rows = {line.split(" | ")[0]: line for line in report.splitlines() if line.startswith("|")}
        assert rows["| one level, no choice"] == (
            "| one level, no choice | 1 | 0.900 | 98.50% | 98.50% | 1.0 | 1 of 1 "
            f"| 1.500 (1.50 at {CELL.name}) |"
        )
        assert rows["| no single requests: means only"].endswith("| 0 of 0 | – |")
        assert (
            rows["| first jumps are judged whole"]
            == f"| first jumps are judged whole | 0 | {'– | ' * (len(HEAD) - 2)}"[:-1]
        )

    def test_the_fixed_budget_is_about_one_percent(self) -> None:
        assert LOSS_BUDGETS[ONE_PERCENT] == pytest.approx(0.01, rel=0.2)


def _figures(attainment: float, gpu_hours: float) -> Figures:
    return Figures(
        attainment=attainment,
        gpu_hours=gpu_hours,
        reversals=1.0,
        fluid_gpu_hours=1.0,
        spread=((attainment, gpu_hours),),
    )
