"""Engines slower than their profile: what replicas report reaches the planner, and outlives actors."""

from collections.abc import Iterator
from typing import Any

import pytest
import ray

from actors import names
from headway.config import HeadwayConfig, load_config
from headway.engine import engine_profile
from headway.engine.refinement import MOST_RATIO
from headway.planning import Role
from interp import Profile
from serve_apps.deployments import EngineFactory
from serve_apps.engines import make_engine
from serve_apps.engines.protocol import Engine
from tests.ray.clusters import wait_until
from tests.ray.live_system import LiveSystem, kill_nine, live_system

SLOWER = 1.6
ISL, OSL = 800, 60
SETTINGS = {
    "engine.time_scale": 0.4,
    "engine.refinement.enabled": True,
    "engine.refinement.report_interval_s": 0.25,
    "planner.adjustment_interval_s": 2.0,
    "pools.prefill.max_replicas": 1,
    "pools.decode.max_replicas": 1,
}
LOAD = f"steady:rate_rps=4,duration_s=120,input_tokens={ISL},output_tokens={OSL},input_cv=0"
BOUND_S = 60.0


def slower_engine() -> EngineFactory:
    """What the settings name, and slower than that; made here, so that replicas need not import this file."""

    def make(config: HeadwayConfig, role: Role, engine_id: str) -> Engine:
        engine = config.engine.model_copy(update={"time_scale": config.engine.time_scale / SLOWER})
        return make_engine(config.model_copy(update={"engine": engine}), role, engine_id)

    return make


@pytest.fixture(scope="module")
def system(ray_cluster: str) -> Iterator[LiveSystem]:
    with live_system(SETTINGS, slower_engine()) as running:
        yield running


def interpolator(method: str, *arguments: object) -> Any:
    actor = ray.get_actor(names.INTERPOLATOR, namespace=names.NAMESPACE)
    return ray.get(getattr(actor, method).remote(*arguments), timeout=30)


def measured() -> Profile:
    """What the control plane was given."""
    return engine_profile(load_config(None, {"engine.time_scale": SETTINGS["engine.time_scale"]}))


def phases(profile: Profile) -> tuple[bool, bool]:
    """Whether each phase's samples are other than measured."""
    before = measured()
    return (
        list(profile.prefill.samples.ttft_s) != list(before.prefill.samples.ttft_s),
        list(profile.decode.samples.itl_s) != list(before.decode.samples.itl_s),
    )


def test_the_planner_goes_by_a_profile_that_is_as_slow_as_the_engines(system: LiveSystem) -> None:
    assert system.status()["refined"] is None
    with system.under_load(LOAD, cut=True):
        wait_until(lambda: phases(interpolator("model").profile) == (True, True), BOUND_S)
    profile = interpolator("model").profile
    # Slower by as much as the engines are, and by whatever the machine was busy with, within the bound.
    assert 1.2 < profile.prefill.ttft_s(ISL) / measured().prefill.ttft_s(ISL) <= MOST_RATIO + 1e-9
    # The last reports may still change what is served.
    wait_until(lambda: system.status()["refined"] == interpolator("model").profile.meta["refined"], BOUND_S)
    profile = interpolator("model").profile
    assert system.status()["refined"]["factors"]["decode"] > 1.2
    assert system.status()["refined"]["cells"] >= 2
    assert system.get("/v1/control/profile")["meta"] == profile.meta
    last = system.decisions()[-1]["id"]
    wait_until(lambda: system.decisions()[-1]["id"] >= last + 2, BOUND_S)


def test_what_was_learnt_outlives_the_interpolator(system: LiveSystem) -> None:
    before = interpolator("status")["refinement"]
    assert before["cells"] >= 2
    kill_nine(names.INTERPOLATOR)

    def is_back() -> bool:
        try:
            after = interpolator("status")["refinement"]
            # All but what came after the last write.
            return after["cells"] > 0 and after["factors"] == pytest.approx(before["factors"], rel=0.1)
        except (ray.exceptions.RayActorError, ray.exceptions.GetTimeoutError):
            return False

    wait_until(is_back, BOUND_S)
