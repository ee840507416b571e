"""`headway check --cluster`: what does not fit is told in a line each, with what to do."""

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from headway.config import load_config
from headway.simulation.build import make_plan
from headway_cli.check import check_cluster
from headway_cli.cluster_check import findings
from headway_cli.cluster_facts import ClusterFacts, Group, Growth, Node, Said, answer, growing

SHIPPED = Path(__file__).parents[2] / "examples/serve/cluster.yaml"
GPUS = {
    "engine.kind": "vllm",
    "engine.vllm.device": "cuda",
    "engine.vllm.model": "a/model",
    "pools.prefill.gpus_per_replica": 1,
    "pools.decode.gpus_per_replica": 2,
    "pools.prefill.max_replicas": 2,
    "pools.decode.max_replicas": 3,
    "gateway.host": "10.0.0.1",
    "gateway.allow_anonymous": True,
}
WELL = Said(headway="0.1.0", python="3.11.2", memory_bytes=64 * 10**9, gpu_bytes=80 * 10**9)


def node(address: str, said: Said = WELL, head: bool = False, **resources: float) -> Node:
    return Node(address=address, resources={"CPU": 8.0, **resources}, head=head, said=said)


def cluster(*nodes: Node, **more: Any) -> ClusterFacts:
    return ClusterFacts(
        nodes=nodes,
        hosts=[one.address for one in nodes],
        **{"headway": "0.1.0", "python": "3.11.9", **more},
    )


def said(facts: ClusterFacts, settings: Mapping[str, Any] = GPUS) -> tuple[list[str], list[str]]:
    """The faults, and what is well."""
    config = load_config(None, settings)
    found = findings(config, facts, make_plan(config).settings.limits)
    return [one.text for one in found if not one.ok], [one.text for one in found if one.ok]


def eight(address: str = "10.0.0.2", **answers: Any) -> Node:
    """A node of eight GPUs that gave these answers beside the usual ones."""
    return node(address, replace(WELL, **answers), GPU=8.0)


HEAD, EIGHT = node("10.0.0.1", head=True), eight()


def test_what_fits_has_no_fault() -> None:
    faults, well = said(cluster(HEAD, EIGHT))
    assert faults == []
    assert well == [
        "2 nodes: 16 CPU, 8 GPU",
        "max_replicas of the pools: the plan may ask for 8 GPUs, the cluster has 8",
    ]


BROKEN: list[tuple[ClusterFacts, Mapping[str, Any], str]] = [
    (
        cluster(HEAD, node("10.0.0.2", GPU=4.0)),
        GPUS,
        "max_replicas of the pools: the plan may ask for 8 GPUs, the cluster has 4: "
        "set planner.max_gpu_budget to 4, or add nodes",
    ),
    (
        cluster(HEAD, *(node(f"10.0.0.{n}", GPU=1.0) for n in range(2, 10))),
        GPUS,
        "decode: a replica needs 2 GPUs on one node, but the largest node has 1: "
        "set pools.decode.gpus_per_replica, or add larger nodes",
    ),
    (
        cluster(HEAD, EIGHT),
        GPUS | {"pools.decode.resources": {"decode": 1}},
        "decode: a replica needs decode: 1, which no node has: declare it on the nodes "
        "(ray start --resources), or drop it from pools.decode.resources",
    ),
    (
        cluster(HEAD, eight(headway="", fault="ModuleNotFoundError: No module named 'headway'")),
        GPUS,
        "node 10.0.0.2: ModuleNotFoundError: No module named 'headway': install Headway on every node",
    ),
    (
        cluster(HEAD, eight(headway="0.0.9")),
        GPUS,
        "node 10.0.0.2 has Headway 0.0.9, this machine 0.1.0: install one version on all nodes",
    ),
    (
        cluster(HEAD, eight(python="3.12.1")),
        GPUS,
        "node 10.0.0.2 has Python 3.12.1, this machine 3.11.9: use one version",
    ),
    (
        cluster(HEAD, eight(engine="engine.vllm.model: /m: holds no weights")),
        GPUS,
        "node 10.0.0.2: engine.vllm.model: /m: holds no weights",
    ),
    (
        cluster(HEAD, eight(weights_bytes=141 * 10**9, gpu_bytes=48 * 10**9)),
        GPUS,
        "decode: the weights take 141.0 GB on 2 GPUs, and node 10.0.0.2 has 48 GB a GPU: "
        "use more GPUs a replica, or larger nodes",
    ),
    (
        cluster(HEAD, EIGHT),
        GPUS
        | {
            "pools.prefill.min_replicas": 2,
            "pools.decode.min_replicas": 3,
            "pools.prefill.gpus_per_replica": 2,
        },
        "prefill: no room for 1 of the 2 replicas of pools.prefill.min_replicas: lower it, or add nodes",
    ),
    (
        cluster(HEAD, EIGHT),
        GPUS | {"gateway.host": "127.0.0.1"},
        "gateway.host: 127.0.0.1 is another machine on each of the 2 hosts, and Ray puts the gateway on any: "
        "set gateway.host to 0.0.0.0, and keys",
    ),
    (
        cluster(eight("10.0.0.1", port_taken=True)),
        GPUS,
        "gateway.port: 8000 is taken on 10.0.0.1: free it, or choose another",
    ),
    (
        cluster(
            HEAD, EIGHT, exposed="this Ray asks for no token, and whoever reaches 10.0.0.1 may run code there"
        ),
        GPUS,
        "this Ray asks for no token, and whoever reaches 10.0.0.1 may run code there: "
        "set RAY_AUTH_MODE=token on every node, or keep it off the network",
    ),
]


@pytest.mark.parametrize(("facts", "settings", "line"), BROKEN, ids=[line[:40] for _, _, line in BROKEN])
def test_a_broken_cluster_is_told_in_a_line(
    facts: ClusterFacts, settings: Mapping[str, Any], line: str
) -> None:
    faults, _ = said(facts, settings)
    assert line in faults


def test_a_gateway_on_loopback_is_well_where_the_file_says_on_which_host(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    places = node("10.0.0.1", head=True, gateway=1.0), node("10.0.0.2", prefill=2.0, decode=2.0)
    monkeypatch.setattr("headway_cli.cluster_facts.look", lambda *_: cluster(*places))
    check_cluster(str(SHIPPED), "10.0.0.1:6379")
    assert "FAULT" not in capsys.readouterr().out


def test_what_the_autoscaler_may_add_counts() -> None:
    grows = cluster(
        HEAD, node("10.0.0.2", GPU=2.0), groups=[Group(name="gpu", resources={"GPU": 2.0}, more=3)]
    )
    faults, well = said(grows)
    assert faults == []
    assert "prefill: 1 of the first replicas will wait for the autoscaler to add nodes" in well
    assert any("the cluster has 2, and 8 with what the autoscaler may add" in line for line in well)


def test_all_groups_together_have_a_limit() -> None:
    groups = [
        Group(name="small", resources={"GPU": 2.0}, more=3),
        Group(name="big", resources={"GPU": 4.0}, more=1),
    ]
    faults, _ = said(cluster(HEAD, node("10.0.0.2", GPU=2.0), groups=groups, more=1))
    (line,) = [fault for fault in faults if "the plan may ask for" in fault]
    assert "the cluster has 2, and 6 with what the autoscaler may add" in line


def test_what_the_autoscaler_may_add_is_in_the_file_that_it_was_started_with(tmp_path: Path) -> None:
    file = tmp_path / "bootstrap.yaml"
    kinds = {"head": {"resources": {"CPU": 4}}, "gpu": {"resources": {"CPU": 8, "GPU": 1}, "max_workers": 3}}
    tree = {"available_node_types": kinds, "head_node_type": "head", "max_workers": 2}
    file.write_text(yaml.safe_dump(tree))
    arguments = ["--gcs-address=10.0.0.1:17", f"--autoscaling-config={file}"]
    waits = [sys.executable, "-c", "import sys; sys.stdin.read()", *arguments]
    with subprocess.Popen(waits, stdin=subprocess.PIPE) as stands_for_it:
        found, other = (answer(load_config().model_dump_json(), gcs).growth for gcs in ("head:17", "head:18"))
        stands_for_it.communicate()
    assert found == Growth(types=[("gpu", {"CPU": 8, "GPU": 1}, 3)], workers=2)
    assert other is None


def test_a_node_whose_headway_is_another_is_told_so_even_if_it_does_not_know_a_setting() -> None:
    asked = answer('{"of_tomorrow": 1}', "")
    assert asked.fault == "its Headway does not know all of these settings"
    other = Node(address="10.0.0.3", resources={}, said=replace(asked, headway="0.0.9"))
    assert (
        "node 10.0.0.3 has Headway 0.0.9, this machine 0.1.0: install one version on all nodes"
        in said(cluster(HEAD, EIGHT, other))[0]
    )


def test_the_port_is_its_own_where_the_application_is_there() -> None:
    assert said(cluster(eight("10.0.0.1", port_taken=True), occupied=True))[0] == []


def test_nodes_that_are_there_are_taken_off_the_group_whose_resources_they_have() -> None:
    kinds = [("small", {"CPU": 8, "GPU": 1}, 2), ("large", {"CPU": 8, "GPU": 8}, 3), ("full", {"CPU": 1}, 1)]
    here = [{"CPU": 8.0, "GPU": 8.0, "memory": 1e9}, {"CPU": 1.0}, {"CPU": 2.0}]
    found = {group.name: group.more for group in growing(kinds, here)}
    assert found == {"small": 2, "large": 2}
