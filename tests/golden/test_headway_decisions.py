"""Made traces and seeds → the exact decisions of the default policy, reviewed as a diff.

A change of behaviour shows here first. If it is meant, this module run as a script writes the file anew:
`python -m tests.golden.test_headway_decisions`.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import nan
from pathlib import Path
from typing import Any

import pytest

from headway.config import load_config
from headway.planning import Decision, Policy
from headway.planning.types import Observation
from headway.simulation.build import make_plan, make_scenario, run
from headway.workload import open_trace
from tests.golden.conversations import six

GOLDEN = Path(__file__).with_name("headway_decisions.json")
SETTINGS: dict[str, Any] = {
    "engine.profile": "llama-3.1-8b_h100_tp1",
    "planner.adjustment_interval_s": 30.0,
    "simulation.start_up_delay_s": 60.0,
    "simulation.seed": 11,
    "slo.ttft_ms": 300.0,
    "slo.itl_ms": 12.0,
}
LENGTHS = "input_tokens=900,output_tokens=180,input_cv=0.8,output_cv=0.6"
WAVES = f"diurnal:rate_rps=20,amplitude=0.8,period_s=1200,duration_s=1500,{LENGTHS},seed=3"
STEP = f"step:rate_rps=6,peak_rps=36,at_s=400,back_at_s=1000,duration_s=1500,{LENGTHS},seed=5"
CLASSES = {
    "chat": {"ttft_ms": 250.0, "tpot_ms": 12.0, "critical": True},
    "batch": {"ttft_ms": 4000.0, "tpot_ms": 60.0, "attainment": 0.9, "share": 2.0},
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "split": (WAVES, {}),
    "split step": (STEP, {}),
    "mixed": (WAVES, {"pools.mixed.max_replicas": 16}),
    "classes": (WAVES, {"pools.mixed.max_replicas": 16, "slo.classes": CLASSES}),
    "budget": (STEP, {"planner.max_gpu_budget": 4}),
    "missing": (STEP, {"engine.refinement.enabled": False}),
}
"""A load and settings. In the case `missing` every fifth interval is not measured."""


@dataclass(frozen=True)
class Forgetful:
    """A policy to which nothing is told of every fifth interval, and half of what is of the next."""

    policy: Policy

    @property
    def name(self) -> str:
        return self.policy.name

    @property
    def interval_s(self) -> float:
        return self.policy.interval_s

    def initial_state(self) -> Any:
        return self.policy.initial_state()

    def plan(self, observation: Observation, state: Any) -> Decision:
        turn = round(observation.now_s / observation.interval_s) % 5
        if turn in {3, 4}:
            observation = replace(observation, traffic=None)
        if turn == 4:
            pools = {
                role: replace(pool, running=nan, waiting=nan) for role, pool in observation.pools.items()
            }
            unknown = dict.fromkeys(("requests", "isl_tokens", "osl_tokens", "ttft_s", "itl_s"), nan)
            observation = replace(observation, **unknown, pools=pools)
        return self.policy.plan(observation, state)


def decision_log(case: str) -> dict[str, Any]:
    """The result, and a line for each decision: when, targets, and each pool's need in numbers."""
    trace_name, changes = CASES[case]
    plan = make_plan(load_config(None, SETTINGS | changes))
    if case == "missing":
        plan = replace(plan, policy=Forgetful(plan.policy))
    with open_trace(trace_name) as trace:
        result = run(plan, make_scenario(plan, trace), trace)
    return {
        "attainment": six(result.attainment),
        "gpu_hours": six(result.gpu_hours),
        "decisions": [
            " | ".join([f"{each.end_s:.6g} s: {dict(each.targets)}", *needs(each.reasons["needs"])])
            for each in result.intervals
            if each.targets
        ],
    }


def needs(of_pools: Mapping[str, Any]) -> list[str]:
    """What each pool needs, and the option that says so."""
    return [
        f"{role} {need['replicas']} ({need['enough']}, +{need['extra']}) {option_of(need['option'])}"
        for role, need in of_pools.items()
    ]


def option_of(option: Mapping[str, Any] | None) -> str:
    """Forecast and factor, with what they would have cost and lost."""
    if option is None:
        return "nothing known"
    figures = [f"{option[name]:.6g}" for name in ("expected", "growth", "factor", "cost", "lost")]
    return f"{option['forecast']}: {', '.join(figures)}"


@pytest.mark.parametrize("case", CASES)
def test_decisions_are_those_of_the_golden_log(case: str) -> None:
    log, wanted = decision_log(case), json.loads(GOLDEN.read_text(encoding="utf-8"))[case]
    assert log["decisions"] == wanted["decisions"]
    assert log == wanted


if __name__ == "__main__":
    made = {case: decision_log(case) for case in CASES}
    GOLDEN.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
