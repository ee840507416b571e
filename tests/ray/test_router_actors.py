"""The actors of routing: there when the profile needs them, back after kill -9, gone with the others."""

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
from serve_apps.routed.line import ActorAddress, LineLink
from tests.actors.router_cases import asked, batch, hello, ready
from tests.ray.clusters import wait_until
from tests.ray.live_system import pids

MODEL = "m"
ROUTER = names.router(MODEL)
PATIENCE_S = 60.0
SECONDS = 10.0
"""A change of the performance model is to be seen within."""
APP = "nobody"


def settings(**more: Any) -> HeadwayConfig:
    return load_config(None, {"model": MODEL, "pools": {"mixed": {}}, **more})


@pytest.fixture
def plane(ray_cluster: str) -> Iterator[None]:
    control_plane.start(settings(**{"routing.profile": "slo"}), APP)
    yield
    control_plane.stop(purge=True)


def ask(name: str, method: str, *arguments: Any) -> Any:
    actor = ray.get_actor(name, namespace=names.NAMESPACE)
    return ray.get(getattr(actor, method).remote(*arguments), timeout=30)


def tell(*said: Batch) -> list[BatchAnswer]:
    """What a gateway of the name `g` is answered to each of these, all on one connection."""

    async def told() -> list[BatchAnswer]:
        link = LineLink(ActorAddress(settings()))
        answers = [await link.exchange("g", each) for each in said]
        link.close()
        return answers

    return asyncio.run(told())


def status(name: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = ask(name, "status")
    return found


def test_they_run_where_the_profile_needs_them_and_end_with_the_others(plane: None) -> None:
    assert {ROUTER, names.LATENCY_TRAINER} <= set(control_plane.running())
    control_plane.start(settings(**{"routing.profile": "least_load"}), APP)
    assert not {ROUTER, names.LATENCY_TRAINER} & set(control_plane.running())
    assert names.PLANNER in control_plane.running()
    control_plane.start(settings(**{"routing.profile": "slo", "routing.prediction.learn": False}), APP)
    assert ROUTER in control_plane.running()
    assert names.LATENCY_TRAINER not in control_plane.running()
    control_plane.stop()
    assert control_plane.running() == ()


def test_without_a_control_plane_they_end_after_the_gateways_that_started_them(ray_cluster: str) -> None:
    tell(hello(session=1))
    assert set(control_plane.running()) == {ROUTER, names.LATENCY_TRAINER}
    wait_until(lambda: not control_plane.running(), 2 * PATIENCE_S)


def test_samples_reach_the_trainer_and_both_come_back_after_kill_nine(plane: None) -> None:
    serve_some()
    wait_until(lambda: status(names.LATENCY_TRAINER)["rows"]["ttft"] > 0, PATIENCE_S)
    for name in (ROUTER, names.LATENCY_TRAINER):
        os.kill(pids(name)[name], signal.SIGKILL)
    wait_until(lambda: answers(ROUTER) and answers(names.LATENCY_TRAINER), PATIENCE_S)
    assert status(ROUTER)["gateways"] == 0
    assert status(names.LATENCY_TRAINER)["rows"]["ttft"] == 0
    serve_some()
    wait_until(lambda: status(names.LATENCY_TRAINER)["rows"]["ttft"] > 0, PATIENCE_S)


def test_a_new_slo_reaches_the_router_and_the_one_after_it(plane: None) -> None:
    numbers = count()

    def sheds(session: int) -> bool:
        plain = asked(f"r{next(numbers)}", slo=RequestSlo())
        _, answer = tell(hello(ready("a"), session=session), batch(Submit(0.0, plain), session=session))
        return bool(answer.messages.sheds)

    # `slo` does not turn away who names no SLO; `pull` does.
    control_plane.start(settings(**{"routing.profile": "pull"}), APP)
    assert not sheds(1)
    ask(names.PLANNER, "update_settings", {"slo.ttft_ms": 0.001})
    wait_until(lambda: sheds(1), PATIENCE_S)
    os.kill(pids(ROUTER)[ROUTER], signal.SIGKILL)
    wait_until(lambda: answers(ROUTER), PATIENCE_S)
    wait_until(lambda: sheds(2), PATIENCE_S)


def test_a_change_of_the_performance_model_reaches_router_and_status_and_outlives_the_actors(
    ray_cluster: str,
) -> None:
    refining = {"routing.profile": "slo", "engine.refinement.enabled": True}
    control_plane.start(settings(**refining), APP)
    try:
        model = ask(names.INTERPOLATOR, "model")
        wait_until(lambda: followed()["version"] == ask(names.INTERPOLATOR, "model").version, SECONDS)
        assert followed()["profiles_version"] == model.profiles_version, (
            "as measured until traffic shows more"
        )
        slower_s = 1.5 * float(model.profile.prefill.ttft_s(1000))
        for _ in range(40):
            ask(names.INTERPOLATOR, "learn", [LatencyReport(Phase.PREFILL, 1000.0, slower_s)])
        refined = ask(names.INTERPOLATOR, "model")
        assert refined.profiles_version != model.profiles_version
        wait_until(lambda: followed()["profiles_version"] == refined.profiles_version, SECONDS)
        wait_until(lambda: status(names.PLANNER)["refined"] == refined.profile.meta["refined"], SECONDS)

        # The router of the same name after this one begins with what the Interpolator keeps of it.
        ask(names.INTERPOLATOR, "correct", {"ttft": 1.7})
        # A planner that has no answer in time says that there are none.
        wait_until(lambda: status(names.PLANNER)["corrections"] == {"ttft": 1.7}, SECONDS)
        for name in (names.INTERPOLATOR, ROUTER):
            os.kill(pids(name)[name], signal.SIGKILL)
        wait_until(lambda: answers(ROUTER) and followed()["version"] > 0, PATIENCE_S)
        wait_until(
            lambda: followed()["profiles_version"] == ask(names.INTERPOLATOR, "model").profiles_version,
            SECONDS,
        )
        assert followed()["profiles_version"] != model.profiles_version
        assert followed()["corrections"]["ttft"] == pytest.approx(1.7)
        serve_some()
    finally:
        control_plane.stop(purge=True)


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
