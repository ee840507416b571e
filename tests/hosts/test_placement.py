"""The planner sees and scales wherever its actors run."""

import os
import signal
import time

from tests.hosts.ray_hosts import Load, RayHosts

CONTROL_ACTORS = ("MetricCollector", "Predictor", "Interpolator", "Planner")
WITHIN_S = 180.0
"""For what must happen, on a loaded machine."""


def seen(cluster: RayHosts, since_s: float) -> bool:
    """True if an interval that began since then was measured, with requests."""
    measured = cluster.status().get("measured") or {}
    if (measured.get("start_s") or 0.0) < since_s or "health" not in measured:
        return False
    return bool(measured["health"]["status"] == "ok" and (measured["requests"] or 0) > 0)


def test_the_planner_sees_from_the_head_and_after_each_actor_was_killed(cluster: RayHosts) -> None:
    assert cluster.where("ray::ServeReplica:headway:Gateway") == ["head"]
    with Load(cluster, 4.0) as load:
        cluster.wait_until("a measured interval", lambda: seen(cluster, 0.0), WITHIN_S)
        for actor in CONTROL_ACTORS:
            assert cluster.where(f"ray::{actor}") in (["head"], []), "beside Serve's controller and the GCS"
        last = cluster.newest()
        for pid in (pid for actor in CONTROL_ACTORS for pid in cluster.head.processes(f"ray::{actor}")):
            os.kill(pid, signal.SIGKILL)
        since_s = time.time()
        cluster.wait_until("an interval after that", lambda: seen(cluster, since_s), WITHIN_S)
        cluster.wait_until("a decision after that", lambda: cluster.newest() > last, WITHIN_S)
    assert set(load.statuses()) == {200}


def test_a_collector_on_any_host_reads_the_gateway_on_the_heads_loopback(cluster: RayHosts) -> None:
    with Load(cluster, 4.0):
        for name in ("decode", "prefill"):
            said = cluster.python("tests.hosts.collecting", cluster.hosts[name].address)
            assert said.split() == [cluster.hosts[name].address, "ok", "requests"], said


def test_up_joins_no_ray_without_a_token_that_others_reach_unless_told(cluster: RayHosts) -> None:
    refused = cluster.headway("up", "--address", cluster.gcs, "--detach")
    reached = ", ".join(sorted(host.address for host in cluster.hosts.values()))
    cure = "turn on Ray's token (RAY_AUTH_MODE=token), or --insecure"
    exposed = f"this Ray asks for no token, and whoever reaches {reached} may run code there"
    assert refused.returncode == 2
    assert refused.stderr == f"headway: --address {cluster.gcs}: {exposed}; {cure}\n"
    told = cluster.headway("up", "--address", cluster.gcs, "--detach", "--insecure")
    assert told.stderr.splitlines() == [
        f"--insecure: {exposed}",
        "headway: gateway.host: 127.0.0.1 is another machine on each of the 3 hosts, and Ray puts the "
        "gateway on any: set gateway.host to 0.0.0.0, and keys",
    ]
