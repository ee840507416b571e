"""A made trace and a seed → the exact decision log of the reference planner, reviewed as a diff.

A change of behaviour shows here first. If it is meant, this module run as a script writes the file anew:
`python -m tests.golden.test_decisions`.
"""

import json
from pathlib import Path
from typing import Any

from headway.config import load_config
from headway.simulation.build import make_plan, make_scenario, run
from headway.workload import open_trace

GOLDEN = Path(__file__).with_name("decisions.json")
TRACE = "diurnal:rate_rps=30,amplitude=0.8,period_s=3600,duration_s=3600,input_cv=0.8,output_cv=0.6,seed=3"
SETTINGS = {
    "engine.profile": "llama-3.1-8b_h100_tp1",
    "planner.policy": "reference",
    "planner.predictor": "kalman",
    "simulation.start_up_delay_cv": 0.5,
    "simulation.seed": 11,
    "slo.ttft_ms": 300.0,
    "slo.itl_ms": 12.0,
}


def decision_log() -> dict[str, Any]:
    """Targets, factors and the fleet over time; floats to six digits, so that the machine does not matter."""
    plan = make_plan(load_config(None, SETTINGS))
    with open_trace(TRACE) as trace:
        result = run(plan, make_scenario(plan, trace), trace)
    return {
        "attainment": _six(result.attainment),
        "gpu_hours": _six(result.gpu_hours),
        "decisions": [
            {
                "at_s": interval.end_s,
                "requests": interval.requests,
                "forecast": _six(interval.forecast.requests),
                "corrections": {
                    role: _six(item["value"]) for role, item in interval.reasons["corrections"].items()
                },
                "targets": dict(interval.targets),
            }
            for interval in result.intervals
            if interval.targets
        ],
        "decode_ready": [
            [_six(at_s), count]
            for at_s, count in zip(
                result.replicas["decode"].time_s, result.replicas["decode"].ready, strict=True
            )
        ],
    }


def _six(value: float) -> float:
    return float(f"{value:.6g}")


def test_decisions_are_those_of_the_golden_log():
    assert decision_log() == json.loads(GOLDEN.read_text(encoding="utf-8"))


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(decision_log(), indent=1) + "\n", encoding="utf-8")
