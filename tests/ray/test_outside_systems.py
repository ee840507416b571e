"""The live planner between systems that are not ours: Prometheus goes away, an orchestrator dies."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.prometheus_process import PrometheusProcess
from tests.ray import serve_orchestrator
from tests.ray.clusters import free_port, wait_until
from tests.ray.live_system import APPLICATION, LiveSystem, live_system

LIGHT = "steady:rate_rps=1,duration_s=120,input_tokens=300,output_tokens=20,seed=6"
HEAVY = "steady:rate_rps=5,duration_s=120,input_tokens=700,output_tokens=30,seed=7"


def test_the_planner_holds_without_prometheus_and_goes_on_with_it(
    ray_cluster: object, tmp_path: Path
) -> None:
    port = free_port()
    prometheus = PrometheusProcess(tmp_path, f"127.0.0.1:{port}")
    overrides = {
        "gateway.port": port,
        "metrics.source": "prometheus",
        "metrics.url": prometheus.url,
        "metrics.timeout_s": 2.0,
        "metrics.stale_after_s": 5.0,
        "planner.adjustment_interval_s": 4.0,
    }
    try:
        with live_system(overrides) as system, system.under_load(LIGHT, cut=True) as result:
            wait_until(lambda: planner(system)["state"] == "running" and decided(system) > 0, 40)
            before = system.status()["last_decision"]["targets"]
            prometheus.stop()
            wait_until(lambda: planner(system)["state"] == "holding", 30)
            held = system.status()["last_decision"]
            assert held["targets"] == before
            assert "prometheus" in planner(system)["reason"].lower()
            prometheus.start()
            wait_until(lambda: planner(system)["state"] == "running" and decided(system) > held["id"], 40)
        assert result["failed"] == 0
    finally:
        prometheus.stop()


def planner(system: LiveSystem) -> dict[str, Any]:
    return system.status()["planner"]


def decided(system: LiveSystem) -> int:
    """The newest decision that was made on measured requests; -1 before."""
    measured = [record for record in system.decisions() if record["measured"]["requests"] is not None]
    return max((record["id"] for record in measured), default=-1)


def test_an_outside_orchestrator_carries_decisions_out_dies_and_comes_back(
    ray_cluster: str, tmp_path: Path
) -> None:
    journal = tmp_path / "journal"
    with live_system({"connector.kind": "virtual", "planner.adjustment_interval_s": 5.0}) as system:
        with orchestrator(ray_cluster, journal) as process, system.under_load(HEAVY, cut=True) as result:
            wait_until(lambda: began(journal, more_than=1), 60)
            process.kill()
            process.wait()
            unfinished = begun(journal)[-1]
            with orchestrator(ray_cluster, journal):
                wait_until(lambda: f"done {unfinished}" in journal.read_text(), 60)
                wait_until(lambda: system.running("decode") >= 2, 60)
        assert result["failed"] == 0
    ids = begun(journal)
    assert sorted(set(ids)) == list(range(max(ids) + 1))
    assert ids == sorted(ids)
    assert ids.count(unfinished) >= 1


@contextmanager
def orchestrator(address: str, journal: Path) -> Iterator[subprocess.Popen[bytes]]:
    program = [sys.executable, "-m", serve_orchestrator.__name__, address, APPLICATION, str(journal)]
    process = subprocess.Popen(program)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def begun(journal: Path) -> list[int]:
    """The ids of the decisions that the orchestrator began to carry out."""
    lines = journal.read_text().splitlines() if journal.exists() else []
    return [int(line.split()[1]) for line in lines if line.startswith("begin")]


def began(journal: Path, more_than: int) -> bool:
    """Whether a decision for more decode replicas than that is under way, or has been."""
    lines = journal.read_text().splitlines() if journal.exists() else []
    return any(line.startswith("begin") and int(line.split()[3]) > more_than for line in lines)
