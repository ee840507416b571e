"""The actors of routing: there when the profile needs them, with what was learnt after kill -9, gone with the
others.
"""

import asyncio
import os
import signal
from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any

import pytest
import ray

from actors import control_plane, names
from actors.routing.messages import Batch, BatchAnswer, Completed, FirstToken, Submit
from headway.config import HeadwayConfig, load_config
from headway.engine.observed_latency import LatencyReport
from headway.profiling import Phase
from headway.routing import RequestSlo
from serve_apps.routed.client import ActorAddress, RouterConnection
from tests.actors.router_cases import asked, batch, hello, ready
from tests.ray.clusters import start, wait_until
from tests.ray.live_system import pids

MODEL = "m"
ROUTER = names.router(MODEL)
APP = "nobody"


def settings(**more: Any) -> HeadwayConfig:
    return load_config(None, {"model": MODEL, "pools": {"mixed": {}}, **more})


@pytest.fixture(scope="module")
def plane(ray_cluster: str) -> Iterator[None]:
    start(settings(**{"routing.profile": "slo"}), APP)
    yield
    control_plane.stop(purge=True)


def ask(name: str, method: str, *arguments: Any) -> Any:
    actor = ray.get_actor(name, namespace=names.NAMESPACE)
    return ray.get(getattr(actor, method).remote(*arguments), timeout=30)


def tell(*said: Batch) -> list[BatchAnswer]:
    """What a gateway of the name `g` is answered to each of these, all on one connection."""

    async def told() -> list[BatchAnswer]:
        link = RouterConnection(ActorAddress(settings()))
        answers = [await link.exchange("g", each) for each in said]
        link.close()
        return answers

    return asyncio.run(told())


def status(name: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = ask(name, "status")
    return found


def test_samples_reach_the_trainer(plane: None) -> None:
    assert {ROUTER, names.LATENCY_TRAINER} <= set(control_plane.running())
    serve_some()
    wait_until(lambda: status(names.LATENCY_TRAINER)["rows"]["ttft"] > 0)


def test_a_change_of_the_performance_model_reaches_router_and_status_and_outlives_the_actors(
    plane: None,
) -> None:
    model = ask(names.INTERPOLATOR, "model")
    wait_until(lambda: followed()["version"] == ask(names.INTERPOLATOR, "model").version)
    assert followed()["profiles_version"] == model.profiles_version, "as measured until traffic shows more"
    slower_s = 1.5 * float(model.profile.prefill.ttft_s(1000))
    for _ in range(40):
        ask(names.INTERPOLATOR, "learn", [LatencyReport(Phase.PREFILL, 1000.0, slower_s)])
    refined = ask(names.INTERPOLATOR, "model")
    assert refined.profiles_version != model.profiles_version
    wait_until(lambda: followed()["profiles_version"] == refined.profiles_version)
    wait_until(lambda: status(names.PLANNER)["refined"] == refined.profile.meta["refined"])

    # The router of the same name after this one begins with what the Interpolator keeps of it.
    ask(names.INTERPOLATOR, "correct", {"ttft": 1.7})
    # A planner that has no answer in time says that there are none.
    wait_until(lambda: status(names.PLANNER)["corrections"] == {"ttft": 1.7})
    killed = (names.INTERPOLATOR, ROUTER, names.LATENCY_TRAINER)
    for name in killed:
        os.kill(pids(name)[name], signal.SIGKILL)
    wait_until(lambda: all(map(answers, killed)) and followed()["version"] > 0)
    wait_until(lambda: followed()["profiles_version"] == ask(names.INTERPOLATOR, "model").profiles_version)
    assert followed()["profiles_version"] != model.profiles_version
    assert followed()["corrections"]["ttft"] == pytest.approx(1.7)
    assert status(ROUTER)["gateways"] == 0
    assert status(names.LATENCY_TRAINER)["rows"]["ttft"] == 0
    serve_some()
    wait_until(lambda: status(names.LATENCY_TRAINER)["rows"]["ttft"] > 0)


def test_they_run_where_the_profile_needs_them_and_end_with_the_others(plane: None) -> None:
    start(settings(**{"routing.profile": "least_load"}), APP)
    assert not {ROUTER, names.LATENCY_TRAINER} & set(control_plane.running())
    assert names.PLANNER in control_plane.running()
    # `slo` does not turn away who names no SLO; `pull` does.
    start(settings(**{"routing.profile": "pull", "routing.prediction.learn": False}), APP)
    assert ROUTER in control_plane.running()
    assert names.LATENCY_TRAINER not in control_plane.running()
    a_new_slo_reaches_the_router_and_the_one_after_it()
    control_plane.stop()
    assert control_plane.running() == ()


def a_new_slo_reaches_the_router_and_the_one_after_it() -> None:
    numbers = count()

    def sheds(session: int) -> bool:
        plain = asked(f"r{next(numbers)}", slo=RequestSlo())
        _, answer = tell(hello(ready("a"), session=session), batch(Submit(0.0, plain), session=session))
        return bool(answer.messages.sheds)

    assert not sheds(1)
    ask(names.PLANNER, "update_settings", {"slo.ttft_ms": 0.001})
    wait_until(lambda: sheds(1))
    os.kill(pids(ROUTER)[ROUTER], signal.SIGKILL)
    wait_until(lambda: answers(ROUTER))
    wait_until(lambda: sheds(2))


def test_without_a_control_plane_they_end_after_the_gateways_that_started_them(ray_cluster: str) -> None:
    tell(hello(session=1))
    assert set(control_plane.running()) == {ROUTER, names.LATENCY_TRAINER}
    wait_until(lambda: not control_plane.running())


def followed() -> Mapping[str, Any]:
    """The performance model that the router goes by."""
    model: Mapping[str, Any] = status(ROUTER)["performance_model"]
    return model


def answers(name: str) -> bool:
    try:
        ask(name, "ready")
    except ray.exceptions.RayError:
        return False
    return True


def serve_some() -> None:
    """Requests from their arrival to their end, told by a gateway whose clock begins with 0."""
    requests = [asked(f"r{number}") for number in range(5)]
    events = [
        event
        for one in requests
        for event in (FirstToken(0.5, one.request_id), Completed(1.0, one.request_id, 10))
    ]
    begun = hello(ready("a"), *[Submit(0.0, one) for one in requests])
    answer, ended = tell(begun, batch(*events, sent_s=1.0))
    assert len(answer.messages.placements) == 5
    assert ended.known
