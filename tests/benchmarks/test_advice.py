"""A dry run's forecast beside what acting then makes, on a generated load."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from benchmarks import advice
from benchmarks.advice import LOADS, Job, Load, table

SHAPE = "diurnal:rate_rps=25,amplitude=0.8,period_s=1200,duration_s=3000"
SOURCE = f"{SHAPE},input_tokens=1500,output_tokens=200,seed=4"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pools", "speed", "standing"),
    [("split", 1.0, "fixed"), ("mixed", 0.8, "fixed"), ("mixed", 1.0, "threshold")],
)
def test_what_is_forecast_comes(
    pools: str, speed: float, standing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(LOADS, "small", Load(source=SOURCE, slo_ms=(600, 25)))
    monkeypatch.setattr(advice, "DELAY_S", 60.0)
    own: Mapping[str, Any] = {"engine.profile": "llama-3.1-8b_h100_tp1"}
    job = Job(
        data=tmp_path, output=tmp_path, load="small", pools=pools, speed=speed, standing=standing, extra=own
    )
    found = job.found()
    assert found["told_stood_gpu_hours"] == pytest.approx(found["stood_gpu_hours"], rel=1e-3)
    assert found["told_stood_attainment"] == pytest.approx(found["stood_attainment"], abs=0.01)
    stood = found["stood_gpu_hours"]
    assert found["planned_gpu_hours"] / stood == pytest.approx(found["acted_gpu_hours"] / stood, abs=0.05)
    forecast, low, high = found["forecast"]
    assert low <= forecast <= high
    assert low <= found["saved"] <= high
    assert found["forecast_attainment"][0] == pytest.approx(found["attainment"], abs=0.015)
    assert f"small, {pools}, {speed:g}" in "\n".join(table([(job, found)]))
