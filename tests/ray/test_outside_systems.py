"""The live planner behind a Prometheus that goes away and comes back; what our dashboards then show."""

import json
import math
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from tests.observability.dashboards import EXAMPLES, queries
from tests.ports import free_port
from tests.prometheus_process import PrometheusProcess
from tests.ray.clusters import wait_until
from tests.ray.live_system import LiveSystem, live_system

LIGHT = "steady:rate_rps=1,duration_s=1800,input_tokens=300,output_tokens=20,seed=6"
CLASSES = {
    "patient": {"ttft_ms": 60_000, "tpot_ms": 10_000, "critical": True},
    # Nothing can keep it: the router turns such requests away.
    "hopeless": {"ttft_ms": 1, "tpot_ms": 1},
}
OF_OTHER_POLICIES = "headway_expected_load_replicas"
"""Of the policy headway; this system plans by another, which has the forecasts that headway has not."""


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
        "planner.adjustment_interval_s": 2.0,
        "planner.tick_deadline_s": 10.0,
        "routing.profile": "slo",
        "slo.classes": CLASSES,
        # The load names no class, and is not to be turned away.
        "slo.ttft_ms": 60_000.0,
        "slo.itl_ms": 1_000.0,
    }
    try:
        with live_system(overrides) as system, system.under_load(LIGHT) as result:
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
