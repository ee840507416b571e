"""The live planner between systems that are not ours: Prometheus goes away, an orchestrator dies."""

import json
import math
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.observability.dashboards import EXAMPLES, queries
from tests.ports import free_port
from tests.prometheus_process import PrometheusProcess
from tests.ray import serve_orchestrator
from tests.ray.clusters import wait_until
from tests.ray.live_system import APPLICATION, LiveSystem, live_system

LIGHT = "steady:rate_rps=1,duration_s=120,input_tokens=300,output_tokens=20,seed=6"
CLASSES = {
    "patient": {"ttft_ms": 60_000, "tpot_ms": 10_000, "critical": True},
    # Nothing can keep it: the router turns such requests away.
    "hopeless": {"ttft_ms": 1, "tpot_ms": 1},
}
OF_OTHER_POLICIES = "headway_expected_load_replicas"
"""Of the policy headway; this system plans by another, which has the forecasts that headway has not."""

HEAVY = "steady:rate_rps=5,duration_s=120,input_tokens=700,output_tokens=30,seed=7"


def test_the_planner_holds_without_prometheus_and_goes_on_with_it_and_dashboards_show_it(
    ray_cluster: object, tmp_path: Path
) -> None:
    port = free_port()
    prometheus = PrometheusProcess(tmp_path, f"127.0.0.1:{port}", rules=EXAMPLES / "rules.yaml")
    overrides = {
        "gateway.port": port,
        "metrics.source": "prometheus",
        "metrics.url": prometheus.url,
        "metrics.timeout_s": 2.0,
        "metrics.stale_after_s": 5.0,
        "planner.adjustment_interval_s": 4.0,
        "routing.profile": "slo",
        "slo.classes": CLASSES,
        # The load names no class, and is not to be turned away.
        "slo.ttft_ms": 60_000.0,
        "slo.itl_ms": 1_000.0,
    }
    try:
        with live_system(overrides) as system, system.under_load(LIGHT, cut=True) as result:
            wait_until(lambda: planner(system)["state"] == "running" and decided(system) > 0)
            before = system.status()["last_decision"]["targets"]
            prometheus.stop()
            wait_until(lambda: planner(system)["state"] == "holding")
            held = system.status()["last_decision"]
            assert held["targets"] == before
            assert "prometheus" in planner(system)["reason"].lower()
            prometheus.start()
            wait_until(lambda: planner(system)["state"] == "running" and decided(system) > held["id"])
            every_panel_shows_data(system, prometheus)
        assert result["failed"] == 0
    finally:
        prometheus.stop()


def every_panel_shows_data(system: LiveSystem, prometheus: PrometheusProcess) -> None:
    model = system.status()["model"]
    assert complete(system, model, "patient") == 200
    # While the router does not answer in time a request is placed without it, and turned away by nobody.
    wait_until(lambda: complete(system, model, "hopeless") == 429)
    asked = [query for query in queries(model) if OF_OTHER_POLICIES not in query.expression]
    left = list(asked)

    def all_answered() -> bool:
        left[:] = [query for query in left if not shows(prometheus, query.expression)]
        return not left and shows(prometheus, 'headway:slo_missed:ratio5m{class="hopeless"}')

    try:
        wait_until(all_answered)
    except AssertionError:
        raise AssertionError(f"no data of {left}") from None
    missed = prometheus.query("headway:slo_missed:ratio5m")
    assert {each["metric"]["class"]: each["value"][1] for each in missed}["hopeless"] == "1"
    firing = prometheus.query(
        'ALERTS{alertname=~"HeadwayControlPlaneDown|HeadwayPartDown",alertstate="firing"}'
    )
    assert not firing


def complete(system: LiveSystem, model: str, slo_class: str) -> int:
    """The status of a request of that class."""
    body = json.dumps({"model": model, "prompt": "word " * 50, "max_tokens": 5}).encode()
    headers = {"content-type": "application/json", "x-headway-slo-class": slo_class}
    request = urllib.request.Request(f"{system.url}/v1/completions", data=body, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def shows(prometheus: PrometheusProcess, expression: str) -> bool:
    return any(not math.isnan(float(sample["value"][1])) for sample in prometheus.query(expression))


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
            wait_until(lambda: began(journal, more_than=1))
            process.kill()
            process.wait()
            unfinished = begun(journal)[-1]
            with orchestrator(ray_cluster, journal):
                wait_until(lambda: f"done {unfinished}" in journal.read_text())
                wait_until(lambda: system.running("decode") >= 2)
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
