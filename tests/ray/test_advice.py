"""A dry run on a live fleet: the plan's own fleet, what it would have saved, over a kill of the planner.

Then the planner acts, and what it has saved is told beside the fleet that stood there before.
"""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from actors import names
from tests.patience import PATIENCE_S
from tests.ray.clusters import wait_until
from tests.ray.live_system import LiveSystem, headway, kill_nine, live_system

SETTINGS = {
    "planner.policy": "headway",
    "planner.dry_run": True,
    "planner.adjustment_interval_s": 1.0,
    "planner.tick_deadline_s": 10.0,
    "planner.advice.price_per_gpu_hour": 2.5,
    "planner.advice.currency": "$",
    # Far from what engines take, so that what a busy machine makes late doesn't forbid less.
    "slo.ttft_ms": 12000.0,
    "slo.itl_ms": 600.0,
    "slo.attainment": 0.8,
    "pools.prefill.min_replicas": 2,
    "pools.decode.min_replicas": 3,
}
LOAD = "steady:rate_rps=1,duration_s=900,input_tokens=100,output_tokens=20,input_cv=0,seed=1"
LAST_10_S = "/v1/control/advice?since=10s"


def change(system: LiveSystem, *pairs: str) -> None:
    subprocess.run(
        [*headway("set"), *pairs, "--url", system.url], capture_output=True, check=True, timeout=60
    )


def told(system: LiveSystem) -> dict[str, Any]:
    """The advice in the status document; nothing while the planner is away."""
    try:
        advice: dict[str, Any] = system.status().get("advice") or {}
    except OSError:
        return {}
    return advice


def advised(system: LiveSystem) -> dict[str, Any]:
    """What the status says of the advice since it began."""
    found: dict[str, Any] = system.status()["advice"]["start"]
    return found


def covered_s(system: LiveSystem) -> float:
    return float((told(system).get("start") or {}).get("covered_s", 0.0))


def since_acting(system: LiveSystem) -> tuple[float, float]:
    """The share of GPU-hours saved, and the attainment; 0 before they are told."""
    window = (told(system).get("acted") or {}).get("start") or {}
    attained = (window.get("planned") or {}).get("attainment") or {}
    saved = window.get("saved_share") or {}
    return float(saved.get("value") or 0.0), float(attained.get("value") or 0.0)


@pytest.fixture(scope="module")
def system(ray_cluster: str) -> Iterator[LiveSystem]:
    with live_system(SETTINGS) as running:
        yield running


def test_a_dry_run_tells_what_its_plan_would_have_saved(system: LiveSystem, tmp_path: Path) -> None:
    wait_until(lambda: (system.running("prefill"), system.running("decode")) == (2, 3))
    change(system, "pools.prefill.min_replicas=1", "pools.decode.min_replicas=1")
    with system.under_load(LOAD):

        def planned() -> dict[str, int]:
            return {role: pool["desired"] for role, pool in told(system).get("pools", {}).items()}

        wait_until(lambda: planned() == {"prefill": 1, "decode": 1})

        def planned_gpus() -> float:
            return float((system.decisions()[-1].get("advice") or {}).get("planned_gpus") or 0.0)

        # What the plan has released finishes its requests first.
        wait_until(lambda: planned_gpus() == pytest.approx(2.0))
        # Nothing was set: the real fleet is what it was.
        assert (system.running("prefill"), system.running("decode")) == (2, 3)
        # Of the requests that it replays on the plan's fleet some have to end first.
        wait_until(lambda: (advised(system)["planned"]["attainment"]["value"] or 0.0) > 0.8)
        record = system.decisions()[-1]
        assert record["advice"]["stood_gpus"] == pytest.approx(5.0)
        assert record["reasons"]["inputs"]["stood"]["decode"]["ready"] == 3
        before = advised(system)
        assert before["measured"]
        assert before["planned"]["gpu_hours"] < before["stood"]["gpu_hours"]
        assert before["stood"]["attainment"]["value"] == pytest.approx(1.0, abs=0.1)

        kill_nine(names.PLANNER)
        # The planner may be asked once more before it goes, and then be away for a moment.
        wait_until(
            lambda: covered_s(system) > before["covered_s"] and planned() == {"prefill": 1, "decode": 1},
        )

        # While it was away nothing was planned, and the window says so; then it is whole again, and so late
        # that nothing of the larger plan of before is in it.
        def last() -> dict[str, Any]:
            window: dict[str, Any] = system.get(LAST_10_S)["window"]
            return window

        saved = pytest.approx(0.6, abs=0.02)
        wait_until(lambda: last()["covered_s"] >= 4.0 and last()["saved_share"]["value"] == saved)
        found = last()
        assert found["covered_s"] <= 12.5
        assert found["saved_cost"]["value"] > 0.0
        page = tmp_path / "advice.html"
        command = [*headway("advise"), "--url", system.url, "--since", "1h", "--page", str(page)]
        said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE_S)
        assert said.stdout.startswith("Headway would have saved")
        assert "Requests within SLO" in page.read_text(encoding="utf-8")

        # Once it acts, the fleet that stood there before goes on beside the real one.
        change(system, "planner.dry_run=false")
        wait_until(lambda: since_acting(system)[0] > 0.3)
        # Requests end some intervals later.
        wait_until(lambda: since_acting(system)[1] > 0.8)
        advice = told(system)
        acted = advice["acted"]
        assert advice["acting"]
        assert acted["against"] == {"prefill": 2, "decode": 3}
        hours = acted["start"]["covered_s"] / 3600.0
        assert acted["start"]["stood"]["gpu_hours"] == pytest.approx(5.0 * hours)
        assert 2.0 * hours <= acted["start"]["planned"]["gpu_hours"] < 5.0 * hours
        assert advice["start"]["end_at"] <= acted["start"]["start_at"]
        assert (system.running("prefill"), system.running("decode")) == (1, 1)
