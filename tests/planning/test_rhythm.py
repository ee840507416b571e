"""A pool that may be empty has a replica before its daily hour, where a predictor knows the rhythm."""

import json
from pathlib import Path

import numpy as np
import pytest

from headway.config import load_config
from headway_cli.job import Job, execute

DAYS, DAY_S, EACH = 4, 86_400.0, 40
SETTINGS = {
    "slo.ttft_ms": 5000,
    "slo.itl_ms": 100,
    "pools": {"mixed": {"min_replicas": 0, "max_replicas": 2}},
    "simulation.start_up_delay_s": 400,
    "planner.adjustment_interval_s": 1200,
}


def attained(trace: Path, *predictors: str) -> tuple[float, float]:
    """The share within the SLO, and GPU-hours."""
    config = load_config(None, {**SETTINGS, "planner.headway": {"predictors": list(predictors)}})
    report = execute(Job(trace=str(trace), config=config))
    assert report.attainment is not None
    return report.attainment, report.gpu_hours


@pytest.fixture
def nightly(tmp_path: Path) -> Path:
    """Some requests within ten minutes of each day."""
    within = np.random.default_rng(5).uniform(0.0, 600.0, (DAYS, EACH))
    times = np.sort((within + DAY_S * np.arange(DAYS)[:, None]).ravel())
    lines = (
        json.dumps({"timestamp": int(1000.0 * at_s), "input_length": 800, "output_length": 100})
        for at_s in times
    )
    path = tmp_path / "nightly.jsonl"
    path.write_text("\n".join(lines))
    return path


def test_it_is_awake_when_the_hour_comes(nightly: Path):
    cold, little = attained(nightly)
    assert cold < 0.6
    warm, more = attained(nightly, "daily")
    # The first night nobody could know.
    assert warm > 0.85
    assert more - little < DAYS * 1800.0 / 3600.0
