"""A host is cut off, a host dies, the GCS is away: named, survived, and counted right again afterwards."""

import time
from collections.abc import Mapping
from typing import Any

import pytest

from tests.hosts.ray_hosts import DEADLINE_S, REDIS, Load, RayHosts

WITHIN_S = 180.0
"""For what must happen, on a loaded machine."""

CUT_S, LONG_CUT_S, GCS_AWAY_S = 20.0, 70.0, 12.0
MOST_AWAY_S = 45.0
"""Ray's processes wait 60 s for a GCS, then they end."""

SLOWEST_STATUS_S = 30.0


def fault(cluster: RayHosts, name: str) -> Mapping[str, Any]:
    """The newest fault of a host; {} while there is none."""
    address = cluster.hosts[name].address
    found = [each for each in cluster.status().get("hosts", []) if each["address"] == address]
    return found[-1] if found else {}


def whole(cluster: RayHosts) -> bool:
    """True if the planner counts what really runs, and a request is served.

    It may have ordered more than there is room for, to work off what an outage has piled up.
    """
    pools = cluster.status().get("pools", {})
    ready = {role: pool["ready"] for role, pool in pools.items()}
    running = {
        role: sum(
            len(host.processes(f"ray::ServeReplica:headway:{role.title()}"))
            for host in cluster.hosts.values()
        )
        for role in ready
    }
    return all(ready.values()) and bool(ready) and ready == running and cluster.complete(5.0) == 200


def named(cluster: RayHosts, name: str, at_s: float, ran: str) -> None:
    """The fault has a name: which host, since when, what ran on it."""
    cluster.wait_until(
        f"{name} named", lambda: fault(cluster, name).get("state") in ("unreachable", "lost"), WITHIN_S
    )
    found = fault(cluster, name)
    assert at_s - 1.0 < found["since_s"] < time.time()
    assert any(each.startswith(ran) for each in found["ran"]), found


def answered(load: Load) -> None:
    """Every request had an answer or an error by its deadline."""
    assert max(each.took_s for each in load.asked) < DEADLINE_S + 20.0
    assert set(load.statuses()) <= {200, 429, 500, 502, 503, 504}, "0: refused, or hung"


def back(cluster: RayHosts, name: str) -> None:
    """The host is there again, with Ray, which is started again where it has ended; all is as before."""

    def mended() -> bool:
        cluster.mend()
        return fault(cluster, name).get("state") == "back" and whole(cluster)

    cluster.wait_until("counts that are right", mended, WITHIN_S)


def cut(cluster: RayHosts, seconds: float) -> None:
    """Cut the decode host off for so long; when it is back, all is as before."""
    with Load(cluster, 3.0) as load:
        at_s = time.time()
        cluster.hosts["decode"].cut()
        named(cluster, "decode", at_s, "Decode#")
        time.sleep(max(0.0, seconds - (time.time() - at_s)))
        back(cluster, "decode")
    answered(load)


def test_a_host_that_is_cut_off_is_named_and_serves_on_when_it_is_back(cluster: RayHosts) -> None:
    cut(cluster, CUT_S)


@pytest.mark.long
def test_a_host_that_ray_has_given_up_comes_back(cluster: RayHosts) -> None:
    cut(cluster, LONG_CUT_S)


def test_a_host_that_dies_is_named_and_its_replicas_run_again(cluster: RayHosts) -> None:
    prefill, title = cluster.hosts["prefill"], "ray::ServeReplica:headway:Prefill"
    elsewhere = set(prefill.processes(title))
    with Load(cluster, 3.0) as load:
        at_s = time.time()
        cluster.hosts["decode"].die()
        named(cluster, "decode", at_s, "Decode#")
        back(cluster, "decode")
    answered(load)
    assert elsewhere.intersection(prefill.processes(title)), "replicas on other hosts were not to be touched"


@pytest.mark.skipif(REDIS is None, reason="redis-server is not installed")
def test_ids_go_on_and_nothing_blocks_while_the_gcs_is_away(cluster: RayHosts) -> None:
    cluster.wait_until("a decision", lambda: cluster.newest() >= 0, WITHIN_S)
    last, slowest_s, away = cluster.newest(), 0.0, False
    with Load(cluster, 3.0) as load:
        began_s = time.time()
        start_again = cluster.end_gcs()
        try:
            while time.time() - began_s < GCS_AWAY_S or not away:
                asked_s = time.time()
                away = bool(cluster.status().get("gcs_away_since_s")) or away
                slowest_s = max(slowest_s, time.time() - asked_s)
                assert time.time() - began_s < MOST_AWAY_S, "status does not say that the GCS is away"
                time.sleep(0.5)
        finally:
            start_again()
        cluster.wait_until("a GCS that is back", lambda: gcs_is_back(cluster), WITHIN_S)
        cluster.wait_until("two further decisions", lambda: cluster.newest() >= last + 2, WITHIN_S)
    assert slowest_s < SLOWEST_STATUS_S
    assert set(load.statuses()) == {200}
    ids = [each["id"] for each in cluster.get("/v1/control/decisions?limit=1000")["decisions"]]
    assert ids == list(range(ids[0], ids[0] + len(ids))), "no gap, no repeat"


def gcs_is_back(cluster: RayHosts) -> bool:
    status = cluster.status()
    return bool(status) and status["gcs_away_since_s"] is None and status["planner"]["state"] == "running"
