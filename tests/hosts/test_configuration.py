"""A changed configuration reaches running parts, and no request is refused meanwhile."""

from collections.abc import Callable
from typing import Any

from tests.hosts.ray_hosts import Load, RayHosts, serve_file

REPLICAS = ("Gateway", "Prefill", "Decode", "ControlPlane")
WITHIN_S = 120.0


def processes(cluster: RayHosts) -> dict[str, set[int]]:
    """Process ids of all replicas, and of the planner."""
    titles = {name: f"ray::ServeReplica:headway:{name}" for name in REPLICAS} | {"Planner": "ray::Planner"}
    return {
        name: {pid for host in cluster.hosts.values() for pid in host.processes(title)}
        for name, title in titles.items()
    }


def promised(ttft_ms: float) -> Callable[[dict[str, Any]], None]:
    def change(application: dict[str, Any]) -> None:
        (plane,) = [each for each in application["deployments"] if each["name"] == "ControlPlane"]
        plane["user_config"]["slo"]["ttft_ms"] = ttft_ms

    return change


def capped(application: dict[str, Any]) -> None:
    application["args"]["gateway"]["default_max_tokens"] = 3


def test_a_changed_slo_is_in_force_without_a_restart(cluster: RayHosts) -> None:
    before, last = processes(cluster), cluster.newest()
    with Load(cluster, 4.0) as load:
        cluster.deploy(serve_file(cluster.folder, promised(450)))
        cluster.wait_until("the new SLO", lambda: promise(cluster) == 450, WITHIN_S)
    assert processes(cluster) == before
    cluster.wait_until("the planner's next decision", lambda: cluster.newest() > last, WITHIN_S)
    assert set(load.statuses()) == {200}


def test_while_engines_are_started_anew_on_a_full_cluster_requests_wait(cluster: RayHosts) -> None:
    """The shipped file stops an engine before it starts the next, and each pool has but one."""
    before = processes(cluster)
    with Load(cluster, 4.0) as load:
        cluster.deploy(serve_file(cluster.folder, capped))
        cluster.wait_until("only new replicas", lambda: renewed(before, processes(cluster)), WITHIN_S)
    assert set(load.statuses()) == {200}
    assert processes(cluster)["Planner"] == before["Planner"], "no actor goes by the gateway's settings"
    cluster.wait_until("the shipped SLO", lambda: promise(cluster) == 300, WITHIN_S)


def promise(cluster: RayHosts) -> float:
    """The TTFT that is promised, in milliseconds; 0 while there is no status."""
    return float(cluster.status().get("slo", {}).get("ttft_ms", 0.0))


def renewed(before: dict[str, set[int]], now: dict[str, set[int]]) -> bool:
    return all(now[name] and not now[name] & before[name] for name in REPLICAS)
