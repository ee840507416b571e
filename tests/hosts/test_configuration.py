"""A changed configuration reaches running parts, and no request is refused meanwhile."""

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


def capped(application: dict[str, Any]) -> None:
    application["args"]["gateway"]["default_max_tokens"] = 3


def test_while_engines_are_started_anew_on_a_full_cluster_requests_wait(cluster: RayHosts) -> None:
    """The shipped file stops an engine before it starts the next, and each pool has but one."""
    before = processes(cluster)
    with Load(cluster, 4.0) as load:
        cluster.deploy(serve_file(cluster.folder, capped))
        cluster.wait_until("only new replicas", lambda: renewed(before, processes(cluster)), WITHIN_S)
    assert set(load.statuses()) == {200}
    assert processes(cluster)["Planner"] == before["Planner"], "no actor goes by the gateway's settings"


def renewed(before: dict[str, set[int]], now: dict[str, set[int]]) -> bool:
    return all(now[name] and not now[name] & before[name] for name in REPLICAS)
