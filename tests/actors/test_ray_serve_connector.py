"""The Ray Serve connector over a scripted Serve."""

import asyncio
from dataclasses import dataclass, field, replace

import pytest
import ray
from ray.exceptions import RayTaskError
from ray.serve._private.exceptions import DeploymentIsBeingDeletedError

from actors.connectors import connector_problems, make_connector
from actors.connectors.protocol import Action, PoolCounts, Ready, Refused, Unreachable
from actors.connectors.ray_serve import ControllerActor, RayServeConnector, ScalingDisabled
from actors.connectors.served import ServedDeployment, ServedReplica, served
from headway.config import load_config
from headway.planning import Role
from tests.engines.virtual_loop import run
from tests.patience import PATIENCE_S

CONFIG = load_config(None, {"connector.timeout_s": PATIENCE_S})


def deployment(target: int, *states: str, model: str | None = "llama-3.1-8b") -> ServedDeployment:
    return ServedDeployment(
        target=target,
        replicas=tuple(
            ServedReplica(replica=f"r{number}", state=state, started_s=5.0)
            for number, state in enumerate(states)
        ),
        model=model,
    )


@dataclass
class Serve:
    """A Serve that knows some deployments."""

    deployments: dict[str, ServedDeployment] = field(
        default_factory=lambda: {"Prefill": deployment(1, "RUNNING"), "Decode": deployment(1, "RUNNING")}
    )
    faults: list[Exception] = field(default_factory=list)
    scaled: list[tuple[str, int]] = field(default_factory=list)
    delay_s: float = 0.0

    async def read(self, name: str) -> ServedDeployment:
        await asyncio.sleep(self.delay_s)
        if name not in self.deployments:
            raise Refused(f"headway: has no deployment {name}")
        return self.deployments[name]

    async def scale(self, name: str, replicas: int) -> None:
        if self.faults:
            raise self.faults.pop(0)
        self.scaled.append((name, replicas))


def connector(serve: Serve, **more) -> RayServeConnector:
    return RayServeConnector(CONFIG, "headway", serve, **more)


def targets(prefill: int, decode: int) -> dict[Role, int]:
    return {Role.PREFILL: prefill, Role.DECODE: decode}


def test_states_are_counted_as_documented() -> None:
    states = ["STARTING", "RUNNING", "RECOVERING", "UPDATING", "PENDING_MIGRATION", "STOPPING", "STOPPED"]
    serve = Serve({"Prefill": deployment(9, *states), "Decode": deployment(0)})
    pools = asyncio.run(connector(serve).state())
    assert pools[Role.PREFILL] == PoolCounts(desired=9, starting=1, ready=4, draining=2)
    assert pools[Role.DECODE] == PoolCounts(desired=0, starting=0, ready=0, draining=0)


def test_targets_are_sent_whether_they_changed_or_not() -> None:
    serve = Serve()
    sent = asyncio.run(connector(serve).set_targets(targets(1, 3), {}))
    again = asyncio.run(connector(serve).set_targets(targets(1, 1), {}))
    assert sent == Action(status="sent", detail={"before": {"prefill": 1, "decode": 1}})
    assert again.status == "unchanged"
    assert serve.scaled == [("Prefill", 1), ("Decode", 3), ("Prefill", 1), ("Decode", 1)]


def test_a_pool_that_the_settings_do_not_have_is_refused() -> None:
    with pytest.raises(Refused, match="no pool mixed"):
        asyncio.run(connector(Serve()).set_targets({Role.MIXED: 1}, {}))


def test_scaling_that_is_not_allowed_is_allowed_once_and_asked_again() -> None:
    serve, allowed = Serve(faults=[ScalingDisabled("off")]), []

    async def allow(application: str) -> None:
        allowed.append(application)

    asyncio.run(connector(serve, allow=allow).set_targets(targets(2, 2), {}))
    assert allowed == ["headway"]
    assert serve.scaled == [("Prefill", 2), ("Decode", 2)]
    serve.faults = [ScalingDisabled("off")] * 2
    with pytest.raises(Refused, match="off"):
        asyncio.run(connector(serve, allow=allow).set_targets(targets(2, 2), {}))


def test_a_serve_that_hangs_is_unreachable() -> None:
    with pytest.raises(Unreachable, match=f"within {PATIENCE_S:g} s"):
        run(connector(Serve(delay_s=3600.0)).state())


@pytest.mark.parametrize(
    ("prefill", "decode", "says"),
    [
        (deployment(1, "RUNNING"), deployment(1, "RUNNING"), ""),
        (deployment(1, "RUNNING"), None, "headway: has no deployment Decode"),
        (deployment(1, "STARTING"), deployment(1), "Prefill has no running replica (1 starting)"),
        (deployment(1, "RUNNING"), deployment(1, "RUNNING", model="other"), "Decode serves other"),
        (deployment(1, "RUNNING"), deployment(1, "RUNNING", model=None), "Decode serves an unnamed model"),
    ],
)
def test_ready_says_what_is_missing(prefill, decode, says: str) -> None:
    async def nothing_said(application: str, name: str) -> None:
        return None

    found = {name: item for name, item in (("Prefill", prefill), ("Decode", decode)) if item is not None}
    ready = asyncio.run(connector(Serve(found), ask_model=nothing_said).ready())
    assert ready.ok is (says == "")
    assert ready.reason.startswith(says)


@pytest.mark.parametrize(("target", "says"), [(0, ""), (1, "Decode has no running replica (0 starting)")])
def test_a_pool_that_may_be_empty_is_ready_without_a_replica_where_none_is_wanted(
    target: int, says: str
) -> None:
    serve = Serve({"Prefill": deployment(1, "RUNNING"), "Decode": deployment(target)})
    config = load_config(None, {"pools": {"decode": {"min_replicas": 0}}})
    ready = asyncio.run(RayServeConnector(config, "headway", serve).ready())
    assert (ready.ok, ready.reason) == (says == "", says)


def test_what_keeps_replicas_from_running_is_said_in_serves_own_words() -> None:
    failed = (
        "The deployment failed to start 3 times in a row.\n  Traceback:\nModuleNotFoundError: No module\n"
    )
    details = {"target_num_replicas": 1, "replicas": [], "message": failed}
    serve = Serve({"Prefill": deployment(1, "RUNNING"), "Decode": served(details)})
    ready = asyncio.run(connector(serve).ready())
    assert ready.reason == "Decode has no running replica (0 starting): ModuleNotFoundError: No module"


def test_a_deployment_is_asked_for_its_model_where_serve_does_not_know() -> None:
    async def said(application: str, name: str) -> str:
        return {"Prefill": "llama-3.1-8b", "Decode": "llama-3.1-8b"}[name]

    found = {name: deployment(1, "RUNNING", model=None) for name in ("Prefill", "Decode")}
    assert asyncio.run(connector(Serve(found), ask_model=said).ready()) == Ready(ok=True)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("ray_serve", "RayServeConnector"),
        ("virtual", "VirtualConnector"),
        ("kubernetes", "KubernetesConnector"),
    ],
)
def test_each_kind_of_connector_is_made(kind: str, name: str) -> None:
    made = make_connector(load_config(None, {"connector.kind": kind}), "headway")
    assert type(made).__name__ == name


def test_deployments_of_another_application_by_name_and_not_those_that_serve_scales():
    named = {"prefill": "Prefill:m", "decode": "Decode:m"}
    settings = {"application": "llm", "deployments": named}
    config = load_config(None, {"connector.ray_serve": settings})
    serve = Serve({name: deployment(8, *["RUNNING"] * 8, model=None) for name in named.values()})
    connector = RayServeConnector(config, "headway", serve)
    assert asyncio.run(connector.ready()) == Ready(ok=True)
    assert asyncio.run(connector.state())[Role.DECODE].desired == 8
    asyncio.run(connector.set_targets({Role.DECODE: 6}, {}))
    assert serve.scaled == [("Decode:m", 6)]

    serve.deployments["Decode:m"] = replace(serve.deployments["Decode:m"], autoscaling="1 to 9 replicas")
    with pytest.raises(Refused, match=r"llm: Serve autoscales Decode:m \(1 to 9 replicas\)"):
        asyncio.run(connector.set_targets({Role.PREFILL: 6, Role.DECODE: 6}, {}))
    assert len(serve.scaled) == 1
    assert "Serve autoscales Decode:m" in asyncio.run(connector.ready()).reason


@pytest.mark.parametrize(
    ("settings", "lines"),
    [
        ({"application": "llm"}, ["deployments: needed for the application 'llm'"]),
        ({"deployments": {"decode": "D"}}, ["deployments.prefill: needed, the deployment of this pool"]),
        (
            {"deployments": {"mixed": "M", "prefill": "P", "decode": "D"}},
            ["deployments.mixed: there is no pool mixed"],
        ),
        ({"deployments": {"prefill": "D", "decode": "D"}}, ["deployments: 'D' is named for two pools"]),
    ],
)
def test_gaps_in_the_names_are_one_line_each(settings: dict[str, object], lines: list[str]):
    config = load_config(None, {"connector.ray_serve": settings})
    assert connector_problems(config) == [f"connector.ray_serve.{line}" for line in lines]


@pytest.mark.parametrize(
    ("cause", "said"),
    [
        (DeploymentIsBeingDeletedError("Deployment(name='Decode') …"), "chat: a deployment is just being"),
        (ValueError("Application 'chat' not found"), "chat: a deployment is just being"),
        (RuntimeError("disk full\nmore"), "chat: disk full$"),
    ],
)
def test_of_a_deployment_that_is_replaced_no_words_of_serve_are_repeated(
    cause: Exception, said: str, monkeypatch: pytest.MonkeyPatch
):
    class Method:
        @staticmethod
        async def remote(*_: object) -> None:
            raise RayTaskError("update_deployment_replicas", "Traceback …", cause)

    class Controller:
        update_deployment_replicas = Method

    monkeypatch.setattr(ray, "get_actor", lambda *_, **__: Controller)
    with pytest.raises(Refused, match=said):
        asyncio.run(ControllerActor("chat").scale("Decode", 2))


def test_a_handle_that_knows_no_arguments_is_looked_up_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    class Method:
        def remote(self, *_: object) -> None:
            raise TypeError("too many positional arguments")

    class Controller:
        get_deployment_details = Method()

    looked_up = list[Controller]()
    monkeypatch.setattr(ray, "get_actor", lambda *_, **__: looked_up.append(Controller()) or looked_up[-1])
    controller = ControllerActor("headway")
    for _ in range(2):
        with pytest.raises(Unreachable, match="too many positional arguments"):
            asyncio.run(controller.read("Prefill"))
    assert len(looked_up) == 2
