"""Groups of GPUs on a Ray of two nodes that have four each: what finds room on neither waits, and says so,
and more models than groups have room for serve in turns.
"""

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import ray
from ray import serve
from ray.cluster_utils import Cluster
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from actors.connectors.external_scaling import replica_counts
from headway_cli.cluster import TOO_SLOW, prepare_environment
from headway_cli.deployment import delete, deploy
from headway_cli.live_fleet import fleet_form, fleet_settings
from tests.installed_package import installed_package
from tests.patience import PATIENCE_S
from tests.ports import free_port
from tests.ray.clusters import replicas, running_replicas, wait_until
from tests.ray.conftest import LocalRay
from tests.ray.fleet_system import FLEET, Fleet
from tests.ray.live_system import LiveSystem

GROUP = 4
KIND = """
from headway.engine.kinds import EngineKind, EngineResources
from serve_apps.engines import SIMULATED


def resources(config, role):
    gpus = config.pools[role.value].gpus_per_replica or 1
    return EngineResources(gpus=0 if gpus > 1 else 1, bundles=[{"GPU": 1.0}] * gpus if gpus > 1 else [])


ON_GPUS = EngineKind(make=SIMULATED.make, simulated=True, resources=resources, sleeps=SIMULATED.sleeps)
"""
COMMON = {
    "fleet": {"gpus": 2 * GROUP},
    "engine": {"kind": "on_gpus", "profile": "llama-3.1-8b_h100_tp1", "start_up_s": 0.2},
    "pools": {"mixed": {"max_replicas": 8}},
    "planner": {"adjustment_interval_s": 3.0, "tick_deadline_s": 60.0, "headway": {"hold_s": 0.0}},
    "gateway": {"request_timeout_s": 2 * PATIENCE_S, "start_wait_s": PATIENCE_S},
}
RARE = {"model": "rare", "pools": {"mixed": {"min_replicas": 0, "gpus_per_replica": GROUP}}}
ENTRY_POINTS = "[headway.engines]\non_gpus = on_gpus:ON_GPUS\n"


def add(cluster: Cluster, **node: Any) -> None:
    """A busy machine may need longer than the 30 s that Ray gives a node: it has a second try."""
    try:
        cluster.add_node(**node)
    except Exception as error:
        if TOO_SLOW not in str(error):
            raise
        cluster.add_node(**node)


@pytest.fixture(scope="module")
def nodes(local_ray: LocalRay, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    local_ray.end()
    folder = tmp_path_factory.mktemp("kind")
    with pytest.MonkeyPatch.context() as patch, installed_package(folder, "on_gpus", KIND, ENTRY_POINTS):
        prepare_environment()
        # What Ray's processes are started with.
        patch.setenv("PYTHONPATH", f"{folder}:{Path(__file__).parents[2]}")
        patch.setenv("RAY_SERVE_USE_PACK_SCHEDULING_STRATEGY", "1")
        cluster = Cluster()
        add(cluster, num_cpus=8, include_dashboard=False, gcs_server_port=free_port())
        for _ in range(2):
            add(cluster, num_gpus=GROUP)
        ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
        try:
            serve.start(proxy_location="Disabled")
            yield
        finally:
            serve.shutdown()
            ray.shutdown()
            cluster.shutdown()


@pytest.fixture
def fleet(nodes: None, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Fleet]:
    made = Fleet(tmp_path / "fleet.yaml", COMMON)
    made.write(**request.param)
    settings = fleet_settings(str(made.path), FLEET)
    deploy(settings.common, print, fleet_form(settings), FLEET)
    yield made
    delete(FLEET)


@ray.remote(num_cpus=0, num_gpus=1)
class Stranger:
    """It has a GPU, and is none of the fleet's."""


@pytest.mark.parametrize("fleet", [{"rare": RARE, "chat": {"model": "chat"}}], indirect=True)
def test_a_group_that_has_room_on_no_node_waits_and_says_so(fleet: Fleet) -> None:
    wait_until(lambda: running_replicas("rare", "Mixed") == 0)
    strangers = [
        Stranger.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote()
        for node in (each["NodeID"] for each in ray.nodes() if "GPU" in each["Resources"])
    ]
    ray.get([each.__ray_ready__.remote() for each in strangers])
    rare = fleet.deployment("rare")
    wanted = "; 1 of 1 replicas wanted fits no node: 4 GPUs on one node needed, "

    async def asked() -> tuple[int, Sequence[str]]:
        first = asyncio.create_task(fleet.asked("rare"))
        await asyncio.to_thread(wait_until, lambda: any(wanted in said for said in summaries(rare)[-1:]))
        said = summaries(rare)
        for each in strangers:
            ray.kill(each)
        return await first, said

    tokens, said = asyncio.run(asked())
    assert tokens == 3
    assert said[-1].endswith(f"holds 0 of 4 GPUs wanted{wanted}most free is 3; 5 are free in all."), said
    assert "room on a node" in said[-1]
    assert running_replicas("rare", "Mixed") == 1
    assert fleet.has_all_decisions("rare")


@pytest.mark.parametrize(
    "fleet", [{f"m{at}": {**RARE, "model": f"model-{at}"} for at in range(3)}], indirect=True
)
def test_more_models_than_there_is_room_for_begin_empty_and_serve_in_turns(fleet: Fleet) -> None:
    assert {fleet.state(model) for model in fleet.models()} == {"asleep"}
    assert not any(replicas(name, "Mixed") for name in ("m0", "m1", "m2"))
    for model in fleet.models():
        assert asyncio.run(fleet.asked(model)) == 3
    assert all(fleet.has_all_decisions(name) for name in ("m0", "m1", "m2"))

    fleet.change(m1={**RARE, "model": "model-1"}, later={**RARE, "model": "later"})
    assert sorted(fleet.models()) == ["later", "model-1"], "as soon as the command has returned"
    fleet.change(m1={**RARE, "model": "model-1"})
    assert "later" not in serve.status().applications
    fleet.change(m1={**RARE, "model": "model-1"}, later={**RARE, "model": "later"})
    # Nor does one start where engines that are not there change.
    slower = {"model": "later", "engine": {"start_up_s": 0.3}}
    fleet.change(m1={**RARE, "model": "model-1"}, later={**RARE, **slower})
    assert replica_counts("later") == {"Mixed": 0}
    assert asyncio.run(fleet.asked("later")) == 3


NAPS = {
    "pools": {"mixed": {"min_replicas": 0, "sleepers": 1, "gpus_per_replica": 1}},
    "engine": {"sleep": {"wake_up_s": 0.2, "per_gpu": 2}},
    # By itself none falls asleep within the test.
    "planner": {"adjustment_interval_s": 60.0},
}


@pytest.mark.parametrize(
    "fleet", [{name: {"model": name, **NAPS} for name in ("one", "other")}], indirect=True
)
def test_an_engine_gets_its_gpu_from_an_idle_one_though_others_are_free(fleet: Fleet) -> None:
    for model in ("one", "other", "one"):
        assert asyncio.run(fleet.asked(model)) == 3
    lent = "holds 0 of 1 GPUs wanted; 1 lent to engines that wait for the same GPU."
    assert any(said.endswith(lent) for name in ("one", "other") for said in summaries(fleet.deployment(name)))
    assert all(fleet.has_all_decisions(name) for name in ("one", "other"))


def summaries(system: LiveSystem) -> Sequence[str]:
    """Of its decisions, the newest last."""
    return [record["summary"] for record in sorted(system.decisions(), key=lambda each: each["id"])]
