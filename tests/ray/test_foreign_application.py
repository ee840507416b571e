"""A Ray Serve application that is not ours, in the shape of Ray Serve LLM's: it holds the route /."""

import asyncio
from collections.abc import Iterator

import pytest
from ray import serve

from actors.connectors.protocol import PoolCounts, Refused
from actors.connectors.ray_serve import RayServeConnector
from headway.config import HeadwayConfig, load_config
from headway.planning import Role
from headway_cli import deployment
from tests.ports import free_port
from tests.ray.clusters import application_details, replicas, wait_until

PREFILL, DECODE = "Prefill:some--model", "Decode:some--model"
APPLICATION = "llm"


@serve.deployment(ray_actor_options={"num_cpus": 0})
class Engine:
    """Serves nothing."""

    def __call__(self) -> str:
        return "ok"


@serve.deployment(
    ray_actor_options={"num_cpus": 0}, autoscaling_config={"min_replicas": 1, "max_replicas": 2}
)
class Ingress:
    """Scaled by Serve, as Ray Serve LLM's is by default."""

    def __init__(self, *engines: object) -> None:
        self.engines = engines


@pytest.fixture(scope="module")
def application(ray_cluster: object) -> Iterator[None]:
    prefill = Engine.options(name=PREFILL, num_replicas=2).bind()
    decode = Engine.options(name=DECODE, num_replicas=3).bind()
    serve.run(Ingress.bind(prefill, decode), name=APPLICATION, route_prefix="/")
    yield
    serve.delete(APPLICATION)


def connector(**deployments: str) -> RayServeConnector:
    named = {"prefill": PREFILL, "decode": DECODE} | deployments
    settings = {"application": APPLICATION, "deployments": named}
    tree = {"model": "some/model", "connector": {"kind": "ray_serve", "ray_serve": settings}}
    return RayServeConnector(HeadwayConfig.model_validate(tree), "headway")


@pytest.mark.usefixtures("application")
def test_a_deployment_that_serve_autoscales_is_refused_by_name() -> None:
    ours = connector(decode="Ingress")

    with pytest.raises(Refused, match=r"llm: Serve autoscales Ingress \(1 to 2 replicas\)"):
        asyncio.run(ours.set_targets({Role.PREFILL: 1, Role.DECODE: 2}, {}))

    assert "Serve autoscales Ingress" in asyncio.run(ours.ready()).reason
    assert len(replicas(APPLICATION, PREFILL)) == 2


@pytest.mark.usefixtures("application")
def test_deployments_of_another_application_are_scaled_by_name_without_a_restart() -> None:
    ours = connector()
    assert asyncio.run(ours.ready()).ok
    assert asyncio.run(ours.state()) == {
        Role.PREFILL: PoolCounts(desired=2, starting=0, ready=2, draining=0),
        Role.DECODE: PoolCounts(desired=3, starting=0, ready=3, draining=0),
    }
    before = {one["replica_id"] for one in replicas(APPLICATION, DECODE)}
    details = application_details(APPLICATION)
    assert details is not None
    assert not details["external_scaler_enabled"]

    assert asyncio.run(ours.set_targets({Role.PREFILL: 1, Role.DECODE: 4}, {})).status == "sent"

    wait_until(lambda: [len(replicas(APPLICATION, name)) for name in (PREFILL, DECODE)] == [1, 4])
    assert before < {one["replica_id"] for one in replicas(APPLICATION, DECODE)}
    assert len(replicas(APPLICATION, "Ingress")) == 1
    assert asyncio.run(ours.set_targets({Role.PREFILL: 1, Role.DECODE: 4}, {})).status == "unchanged"


@pytest.mark.usefixtures("application")
def test_ours_stands_beside_it() -> None:
    config = load_config(None, {"gateway.port": free_port(), "pools": {"mixed": {}}})
    deployed = deployment.deploy(config, print)
    try:
        assert deployed.url == f"http://127.0.0.1:{config.gateway.port}"
        assert {app.status.value for app in serve.status().applications.values()} == {"RUNNING"}
    finally:
        deployment.delete()
