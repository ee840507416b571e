"""The MetricCollector as a named actor: `kill -9`, and the interval is measured all the same."""

import os
import signal
import time

import pytest
import ray
from ray._private.state import actors

from actors.collector.interval import HealthStatus
from actors.metric_collector import MetricCollector
from actors.names import METRIC_COLLECTOR, NAMESPACE, detached
from headway.config import HeadwayConfig
from tests.exporter import MODEL, Exporter

DEADLINE_S = 90.0


@pytest.fixture
def exporter():
    exporter = Exporter()
    yield exporter
    exporter.stop()


def test_kill_9_between_two_intervals(ray_cluster, exporter):
    config = HeadwayConfig.model_validate({"model": MODEL, "metrics": {"url": exporter.url}})
    options = {**detached(METRIC_COLLECTOR), "max_task_retries": 100}
    actor = ray.remote(MetricCollector).options(**options).remote(config.model_dump_json())
    try:
        assert ray.get(actor.ready.remote(), timeout=DEADLINE_S) == (True, "")
        began_s = time.time()
        ray.get(actor.collect.remote(10.0), timeout=DEADLINE_S)
        exporter.serve([0.1] * 4)
        until_read(actor, ray.get(actor.status.remote(), timeout=DEADLINE_S)["reads"] + 2)
        pid = pid_of(METRIC_COLLECTOR)
        os.kill(pid, signal.SIGKILL)
        exporter.serve([0.2] * 3)
        again = ray.get_actor(METRIC_COLLECTOR, namespace=NAMESPACE)
        ray.get(again.status.remote(), timeout=DEADLINE_S)
        found = ray.get(again.collect.remote(time.time() - began_s), timeout=DEADLINE_S)
        assert pid_of(METRIC_COLLECTOR) != pid
        assert found.health.status is HealthStatus.OK, found.health
        assert (found.requests, found.completed) == (7.0, 7.0)
        assert found.ttft_s.mean == pytest.approx(1.0 / 7)
    finally:
        ray.kill(actor)


def pid_of(name: str) -> int:
    """The process of a live actor."""
    (pid,) = [item["Pid"] for item in actors().values() if item["Name"] == name and item["State"] == "ALIVE"]
    return int(pid)


def until_read(actor, reads: int) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while ray.get(actor.status.remote(), timeout=DEADLINE_S)["reads"] < reads:
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
