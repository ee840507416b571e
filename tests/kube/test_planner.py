"""A planner on a real API server: it attaches to 8 + 8 replicas, plans from them, and scales them."""

import asyncio

from actors.connectors.drift import drift_aware
from headway.planning import Role
from tests.actors.planner_cases import INTERVAL_S, Deployment, clock, settings
from tests.kube.cluster import Kubelet, Objects, settled
from tests.kube.conftest import Connect
from tests.kube.resources import collection, deployment, path
from tests.kube.test_targets import replicas, scale
from tests.stores import MemoryStore


def test_a_planner_adopts_a_fleet_and_scales_it(admin: Objects, connect: Connect) -> None:
    fleet = deployment("prefill", 8), deployment("decode", 8)
    for manifest in fleet:
        admin.create(collection(manifest), manifest)
    config, store = (
        settings(pools__prefill__max_replicas=16, pools__decode__max_replicas=16),
        MemoryStore(),
    )
    connector = drift_aware(connect(scale(*fleet)), lambda: config, store, clock)
    planner = Deployment(config, store, pools=connector)

    async def story() -> dict[Role, int]:
        async with planner.running():
            while not planner.records() or planner.records()[0]["reached_at"] is None:
                await asyncio.sleep(0.2)
            return {role: pool.ready for role, pool in (await connector.state()).items()}

    with Kubelet(admin, [path(one) for one in fleet], settled).working():
        ready = asyncio.run(asyncio.wait_for(story(), 20 * INTERVAL_S))
    first = planner.records()[0]
    assert first["previous_targets"] == {"prefill": 8, "decode": 8}
    assert first["connector"]["status"] == "sent"
    assert ready == first["targets"] != first["previous_targets"]
    assert [replicas(admin, one) for one in fleet] == list(ready.values())
