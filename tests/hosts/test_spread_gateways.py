"""Gateways on several hosts, one Router that places what all of them have, and one of them that is killed."""

import json
import os
import signal
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.hosts.conftest import READY_WITHIN_S
from tests.hosts.ray_hosts import DEADLINE_S, RayHosts, serve_file

KEY, PORT = "spread-gateways", 8000
TITLE = "ray::ServeReplica:headway:Gateway"
WITHIN_S = 180.0
"""For what must happen, on a loaded machine."""


def spread(application: dict[str, Any]) -> None:
    """Two gateways, each on a host of its own and for all to reach; requests are routed by SLO."""
    args = application["args"]
    args["gateway"] |= {"host": "0.0.0.0", "replicas": 2, "max_per_node": 1, "api_keys": [KEY]}
    args["routing"] = {"profile": "slo"}
    for deployment in application["deployments"]:
        if deployment["name"] == "Gateway":
            deployment |= {"num_replicas": 2, "ray_actor_options": {"num_cpus": 0}}


@pytest.fixture
def gateways(deployed: RayHosts, tmp_path: Path) -> Iterator[list[str]]:
    """The hosts with a gateway that places by the Router; afterwards all is as the others found it."""
    deployed.deploy(serve_file(tmp_path, spread))
    deployed.wait_until("gateways on two hosts", lambda: len(routing(deployed)) == 2, READY_WITHIN_S)
    yield routing(deployed)
    deployed.deploy(serve_file(tmp_path))
    deployed.wait_until("one gateway", lambda: deployed.where(TITLE) == ["head"], READY_WITHIN_S)


def routing(cluster: RayHosts) -> list[str]:
    """The hosts whose gateway had a request placed by the Router just now."""
    return [
        name
        for name in cluster.where(TITLE)
        if asked(cluster, name).get("x-headway-route-reason") not in (None, "fallback")
    ]


def asked(cluster: RayHosts, name: str) -> Mapping[str, str]:
    """The headers of a completion that this host's gateway answered; {} where it did not."""
    body = json.dumps({"model": "llama-3.1-8b", "prompt": "Which host?", "max_tokens": 4}).encode()
    headers = {
        "Content-Type": "application/json",
        "Authorization": f"Bearer {KEY}",
        "x-headway-explain": "true",
    }
    url = f"http://{cluster.hosts[name].address}:{PORT}/v1/completions"

    def ask() -> Mapping[str, str]:
        request = urllib.request.Request(url, body, headers)
        try:
            with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
                return {key.lower(): value for key, value in answer.headers.items()}
        except OSError:
            return {}

    return cluster.head.call(ask)


def test_gateways_of_two_hosts_share_a_router_and_one_serves_while_the_other_is_killed(
    deployed: RayHosts, gateways: list[str]
) -> None:
    assert deployed.where("ray::Router") == ["head"]
    away = next(name for name in gateways if name != "head")
    assert asked(deployed, away)["x-headway-route-reason"] == "slo"
    (pid,) = deployed.hosts[away].processes(TITLE)
    os.kill(pid, signal.SIGKILL)
    other = next(name for name in gateways if name != away)
    assert asked(deployed, other)["x-headway-route-reason"] == "slo"
    deployed.wait_until(
        "two gateways that place by the Router", lambda: len(routing(deployed)) == 2, WITHIN_S
    )
