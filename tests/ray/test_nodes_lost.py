"""Three nodes, one of which is lost without a word: its replicas come back elsewhere, the rest goes on.

The loss is a SIGKILL of every process of the node. What runs is the real application with simulated engines.
The head keeps Serve's controller; the node that is lost has engines on it and not the gateway.
"""

import json
import tempfile
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest
import ray
from ray import serve
from ray.cluster_utils import Cluster

from headway.config import load_config
from serve_apps.builders import application
from tests.ray.clusters import replicas, wait_until
from tests.ray.conftest import LocalRay

APPLICATION = "headway"
POOLS = ("Prefill", "Decode")
REPLICAS = 2
CLIENTS = 16
INTERVAL_S = 3.0
WAIT_S = 90.0
ANSWERED_IN_S = 30.0
HEAD: Mapping[str, Any] = {
    "include_dashboard": False,
    # A node that is gone refuses connections at once; five refusals a second apart are enough here.
    "_system_config": {
        "health_check_initial_delay_ms": 1000,
        "health_check_period_ms": 1000,
        "health_check_failure_threshold": 5,
    },
}


@dataclass(frozen=True)
class Nodes:
    cluster: Any
    url: str


@pytest.fixture(scope="module")
def nodes(local_ray: LocalRay) -> Iterator[Nodes]:
    local_ray.end()
    with (
        tempfile.TemporaryDirectory(prefix="hw-nodes-", dir="/tmp", ignore_cleanup_errors=True) as folder,
        pytest.MonkeyPatch.context() as patch,
    ):
        # Ray notes the newest cluster in its default directory, where others' ray.init() would find it.
        patch.setenv("RAY_TMPDIR", folder)
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, **HEAD})
        try:
            for _ in range(2):
                cluster.add_node(num_cpus=2)
            ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
            yield started(cluster)
        finally:
            serve.shutdown()
            ray.shutdown()
            cluster.shutdown()


def started(cluster: Any) -> Nodes:
    pool = {"min_replicas": REPLICAS, "max_replicas": REPLICAS}
    config = load_config(
        None,
        {
            "gateway.port": 0,
            "gateway.request_timeout_s": ANSWERED_IN_S,
            "pools": {"prefill": pool, "decode": pool},
            "planner.policy": "reference",
            "planner.predictor": "constant",
            "planner.adjustment_interval_s": INTERVAL_S,
        },
    )
    serve.start(proxy_location="Disabled")
    handle = serve.run(application(config), name=APPLICATION, external_scaler_enabled=True)
    (address,) = handle.addresses.remote().result(timeout_s=WAIT_S)
    found = Nodes(cluster, address)
    wait_until(lambda: complete(found) == 200, WAIT_S)
    wait_until(lambda: ticks(found) > 0, WAIT_S)
    return found


def ticks(nodes: Nodes) -> int:
    """The planner's ticks; none while its control plane does not answer the gateway yet."""
    try:
        return int(status(nodes)["planner"]["ticks"])
    except urllib.error.HTTPError as refusal:
        if refusal.code != 503:
            raise
        return 0


def status(nodes: Nodes) -> dict[str, Any]:
    with urllib.request.urlopen(f"{nodes.url}/v1/control/status", timeout=ANSWERED_IN_S) as answer:
        document: dict[str, Any] = json.load(answer)
        return document


def complete(nodes: Nodes) -> int:
    """Ask for one completion; the status of the answer. Raises where there is none in time."""
    body = {"model": "llama-3.1-8b", "prompt": "Where does a lost node go?", "max_tokens": 4}
    request = urllib.request.Request(
        f"{nodes.url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=ANSWERED_IN_S + 10) as answer:
            return int(answer.status) if json.load(answer)["choices"][0]["text"] else 0
    except urllib.error.HTTPError as refusal:
        return refusal.code if json.load(refusal)["error"]["message"] else 0


MOST_MOVES = 30


def placed() -> dict[str, dict[str, str]]:
    """Node of each running replica, by deployment and replica."""
    return {
        name: {one["replica_id"]: one["node_id"] for one in replicas(APPLICATION, name)}
        for name in ("Gateway", "ControlPlane", *POOLS)
    }


def engines(where: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    return {replica: node for pool in POOLS for replica, node in where[pool].items()}


def worker_to_lose(nodes: Nodes, where: Mapping[str, Mapping[str, str]]) -> Any:
    """The worker with most engines on it that has not the gateway."""
    held = Counter(engines(where).values())
    fit = [node for node in nodes.cluster.worker_nodes if node.node_id not in where["Gateway"].values()]
    return max(fit, key=lambda node: held[node.node_id])


def placed_with_an_engine_to_lose(nodes: Nodes) -> dict[str, dict[str, str]]:
    """Ray places as it likes: decode replicas are replaced until an engine is on a worker to lose."""
    for _ in range(MOST_MOVES):
        where = placed()
        if worker_to_lose(nodes, where).node_id in engines(where).values():
            return where
        victim = replicas(APPLICATION, "Decode")[0]
        ray.kill(ray.get_actor(victim["actor_name"], namespace="serve"))
        wait_until(lambda: _replaced(victim["replica_id"], len(where["Decode"])))  # noqa: B023
    raise AssertionError(f"no engine came to a node that may be lost: {where}")


def _replaced(replica: str, count: int) -> bool:
    ids = placed()["Decode"]
    return replica not in ids and len(ids) == count


def test_replicas_of_a_lost_node_are_replaced_and_nothing_hangs(nodes: Nodes) -> None:
    before = placed_with_an_engine_to_lose(nodes)
    lost = worker_to_lose(nodes, before)
    gone = {replica for replica, node in engines(before).items() if node == lost.node_id}
    ticks = status(nodes)["planner"]["ticks"]

    with ThreadPoolExecutor(CLIENTS) as clients:
        under_way = [clients.submit(complete, nodes) for _ in range(CLIENTS)]
        nodes.cluster.remove_node(lost, allow_graceful=False)
        under_way += [clients.submit(complete, nodes) for _ in range(CLIENTS)]
        answers = {request.result(timeout=4 * ANSWERED_IN_S) for request in under_way}
    assert answers <= {200, 500, 502, 503, 504}

    def replaced() -> bool:
        now = placed()
        return all(len(now[pool]) == REPLICAS and lost.node_id not in now[pool].values() for pool in POOLS)

    wait_until(replaced, WAIT_S)
    after = engines(placed())
    assert set(after).isdisjoint(gone)
    assert set(engines(before)) - gone <= set(after), "replicas on the other nodes were not to be touched"
    assert [complete(nodes) for _ in range(10)] == [200] * 10
    # Control actors that were on the lost node come back elsewhere and go on from what is stored.
    wait_until(lambda: status(nodes)["planner"]["ticks"] > ticks, WAIT_S)
    # A tick that began before the replacement was ready may be the one that was counted.
    wait_until(lambda: status(nodes)["pools"]["decode"]["ready"] == REPLICAS, WAIT_S)
