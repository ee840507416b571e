"""One performance model: a change of it reaches policy and router, and survives a restart."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actors.connectors.protocol import PoolCounts
from actors.interpolator import Interpolator
from actors.names import ActorGone
from actors.performance_model import ModelFollower, checksum, load_profiles, own_profile
from actors.planning.context import CurrentPolicy, Deadline
from actors.planning.settings import RuntimeSettings
from headway.config import HeadwayConfig, load_config
from headway.engine import engine_rules
from headway.engine.observed_latency import LatencyReport
from headway.planning import Role
from headway.profiling import Phase
from headway.routing import ReplicaUpdate, Router, make_router
from interp import scaled
from tests.actors.router_cases import asked
from tests.patience import PATIENCE_S
from tests.stores import MemoryStore

pytestmark = pytest.mark.anyio

TOKENS = 1000
SLOWER = 1.6


def settings(**changes: Any) -> HeadwayConfig:
    fixed = {"pools": {"mixed": {}}, "routing.profile": "slo", "engine.refinement.enabled": True}
    return load_config(None, {**fixed, **{key.replace("__", "."): value for key, value in changes.items()}})


def routing(config: HeadwayConfig) -> Router:
    profiles = load_profiles(config)
    rules = engine_rules(config, own_profile(profiles))
    made = make_router(config, profiles, rules, np.random.default_rng(1))
    made.replica_changed(0.0, ReplicaUpdate(replica="a", role=Role.MIXED))
    return made


class Source:
    """The Interpolator as planner and routers reach it; None: it is gone. `asked` has the methods called."""

    def __init__(self, interpolator: Interpolator | None) -> None:
        self.interpolator = interpolator
        self.asked: list[str] = []

    async def call(self, method: str, *args: object, timeout_s: float) -> Any:
        self.asked.append(method)
        if self.interpolator is None:
            raise ActorGone("Interpolator is not there")
        return getattr(self.interpolator, method)(*args)

    async def model(self, known: int) -> Any:
        return await self.call("model", known, timeout_s=1.0)


def follower(router: Router, source: Source, config: HeadwayConfig) -> ModelFollower:
    return ModelFollower(router, load_profiles(config), source)  # type: ignore[arg-type] # its calls


def taught(interpolator: Interpolator, slower: float = SLOWER) -> Interpolator:
    """By replicas whose prefills take longer than the profile says."""
    model = interpolator.model()
    assert model is not None
    expected_s = model.profile.prefill.ttft_s(TOKENS)
    for _ in range(40):
        interpolator.learn([LatencyReport(Phase.PREFILL, TOKENS, slower * float(expected_s))])
    return interpolator


def predicted_s(router: Router, request_id: str) -> float:
    (placement,) = router.submit(0.0, asked(request_id, input_tokens=TOKENS)).placements
    router.complete(0.0, request_id, 1)
    assert placement.predicted_ttft_s is not None
    return placement.predicted_ttft_s


def test_a_refined_profile_reaches_router_and_policy() -> None:
    config = settings()
    interpolator, router = Interpolator(config.model_dump_json(), MemoryStore()), routing(config)
    source = Source(interpolator)
    following, policy = (
        follower(router, source, config),
        CurrentPolicy(RuntimeSettings(config, MemoryStore())),
    )
    before_s = predicted_s(router, "r1")

    async def look() -> tuple[int, int]:
        await following.step()
        in_force = await policy.refresh(source, Deadline(10.0))  # type: ignore[arg-type] # only its model
        return in_force.version

    before = asyncio.run(look())
    assert predicted_s(router, "r2") == pytest.approx(before_s), "as measured until traffic shows otherwise"
    taught(interpolator)
    after = asyncio.run(look())
    assert before != after
    assert predicted_s(router, "r3") == pytest.approx(SLOWER * before_s, rel=0.05)
    assert policy.profile is interpolator.model().profile  # type: ignore[union-attr]
    assert following.profiles_version == after[1]


async def test_slow_replicas_reach_the_plan_as_far_as_replicas_are_ready() -> None:
    config = settings()
    interpolator, policy = (
        Interpolator(config.model_dump_json(), MemoryStore()),
        CurrentPolicy(RuntimeSettings(config, MemoryStore())),
    )
    model = interpolator.model()
    assert model is not None
    expected_s = float(model.profile.prefill.ttft_s(TOKENS))
    for _ in range(10):
        for name, slower in {"a": 1.0, "b": 2.0, "c": 2.0, "d": 1.0, "e": 1.0}.items():
            interpolator.learn([LatencyReport(Phase.PREFILL, TOKENS, slower * expected_s)], name)
    await policy.refresh(Source(interpolator), Deadline(10.0))  # type: ignore[arg-type] # only its model
    five = PoolCounts(desired=5, starting=0, ready=5, draining=0)
    assert policy.slow({Role.MIXED: five}) == {Role.MIXED: (pytest.approx(2.0, rel=0.1),) * 2}
    assert len(policy.slow({Role.MIXED: replace(five, ready=1)})[Role.MIXED]) == 1
    assert policy.slow({}) == {}
    # What places the requests of attached engines does not know which of them are slow.
    attached = CurrentPolicy(RuntimeSettings(settings(engine__kind="external"), MemoryStore()))
    await attached.refresh(Source(interpolator), Deadline(10.0))  # type: ignore[arg-type] # only its model
    assert attached.slow({Role.MIXED: five}) == {}


def test_surfaces_stay_as_measured_where_refinement_is_off() -> None:
    config = settings(engine__refinement__enabled=False)
    interpolator, router = Interpolator(config.model_dump_json(), MemoryStore()), routing(config)
    following = follower(router, Source(taught(interpolator)), config)
    began_with = following.profiles_version
    before_s = predicted_s(router, "r1")
    asyncio.run(following.step())
    assert following.version
    assert following.profiles_version == began_with
    assert predicted_s(router, "r2") == before_s


def test_corrections_outlive_the_router_that_learnt_them() -> None:
    config, store = settings(), MemoryStore()
    source, first = Source(Interpolator(config.model_dump_json(), store)), routing(config)
    following = follower(first, source, config)
    asyncio.run(following.step())
    assert "correct" not in source.asked, "nothing has been learnt"
    first.use_corrections({"ttft": 1.5})
    asyncio.run(following.step())
    source.interpolator = Interpolator(config.model_dump_json(), store)
    second = routing(config)
    asyncio.run(follower(second, source, config).step())
    assert second.corrections == pytest.approx(first.corrections)
    assert source.interpolator.model().corrections["ttft"] == pytest.approx(1.5)


def test_what_was_learnt_on_other_surfaces_does_not_count_twice() -> None:
    config = settings()
    interpolator, router = Interpolator(config.model_dump_json(), MemoryStore()), routing(config)
    following = follower(router, Source(interpolator), config)
    asyncio.run(following.step())
    basis, unstretched = following.basis, router.corrections
    router.use_corrections({"ttft": SLOWER, "transfer": 3.0})
    taught(interpolator)
    asyncio.run(following.step())
    assert following.basis == following.profiles_version != basis
    assert router.corrections == {**unstretched, "transfer": pytest.approx(3.0)}
    assert interpolator.model().corrections == pytest.approx(router.corrections)


def test_small_changes_of_the_surfaces_leave_what_was_learnt() -> None:
    config = settings()
    interpolator, router = Interpolator(config.model_dump_json(), MemoryStore()), routing(config)
    following = follower(router, Source(interpolator), config)
    asyncio.run(following.step())
    basis = following.basis
    router.use_corrections({"ttft": 1.5})
    taught(interpolator, 1.05)
    asyncio.run(following.step())
    assert following.profiles_version != following.basis == basis
    assert router.corrections["ttft"] == pytest.approx(1.5)


def test_a_router_keeps_what_it_learns_after_it_has_begun() -> None:
    config = settings()
    source, router = Source(Interpolator(config.model_dump_json(), MemoryStore())), routing(config)
    following = follower(router, source, config)
    asyncio.run(following.step())
    source.interpolator.correct({"ttft": 1.9})  # type: ignore[union-attr] # another router did
    asyncio.run(following.step())
    assert router.corrections["ttft"] == pytest.approx(1.1)


def test_an_interpolator_that_is_gone_changes_nothing_and_is_followed_again() -> None:
    config = settings()
    source, router = Source(None), routing(config)
    following = follower(router, source, config)

    async def story() -> None:
        task = asyncio.create_task(following.run(period_s=0.001))
        while len(source.asked) < 3:
            await asyncio.sleep(0.001)
        assert following.version == 0
        assert predicted_s(router, "r1") > 0.0
        source.interpolator = Interpolator(config.model_dump_json(), MemoryStore())
        while not following.version:
            await asyncio.sleep(0.001)
        task.cancel()

    asyncio.run(asyncio.wait_for(story(), PATIENCE_S))


def test_versions_differ_with_any_profile_and_not_with_a_restart(tmp_path: Path) -> None:
    config = settings()
    own = own_profile(load_profiles(config))
    versions = {checksum({"": own}), checksum({"": scaled(own, 0.5)}), checksum({"": own, "L20": own})}
    assert len(versions) == 3
    assert checksum(load_profiles(config)) in versions
