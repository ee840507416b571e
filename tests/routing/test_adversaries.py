"""Loads and engines that try to talk the router into failing."""

import numpy as np
import pytest

from headway.config import HeadwayConfig, Role
from headway.config.routing import PredictionSettings
from headway.engine import EngineRules, engine_profile
from headway.planning.types import Slo
from headway.routing import ReplicaUpdate, RequestSlo, make_router
from headway.simulation.scenario import ScenarioRouter
from interp import scaled
from predictors.latency import LatencyModel, TargetModel
from predictors.latency.curve import Basis, Curve, Learned
from tests.routing.engines import Engines, stream
from tests.routing.routers import request, router, surfaces
from tests.simulation.worlds import ArrayTrace, run, scenario

TIGHT = RequestSlo(ttft_s=0.5, tpot_s=0.015)


def times(factor: float) -> LatencyModel:
    """A learned model that says `factor` times the prior."""
    nothing = np.empty(0)
    basis = Basis(source=np.empty(0, np.intp), start=nothing, width=nothing, has_prior=True)
    curve = Curve(basis=basis, weights=np.array([0.0, factor]))
    target = TargetModel(learned=Learned(centre=curve, quantile=curve))
    return LatencyModel(ttft=target, tpot=target)


class TestLatchUp:
    """What a model refuses, it has no samples of: where it is wrong it must find that out all the same."""

    @pytest.mark.parametrize("count", [4, 12])
    def test_engines_that_were_slow_for_two_minutes_serve_within_one(self, count: int) -> None:
        engines = Engines(router(count=count), lambda now_s, _: 4.0 if 60.0 <= now_s < 180.0 else 1.0)
        engines.run(stream(20.0, 300.0, TIGHT))
        before = engines.kept_rps(0.0, 60.0)
        assert before > 19.0
        assert engines.kept_rps(90.0, 180.0) < 0.1, "four times slower, no replica keeps the SLO"
        assert engines.kept_rps(220.0, 280.0) > 0.95 * before

    def test_while_all_miss_little_is_tried(self) -> None:
        engines = Engines(router(count=12), lambda now_s, _: 4.0 if now_s >= 60.0 else 1.0)
        engines.run(stream(20.0, 240.0, TIGHT))
        late = [name for name, at_s in engines.arrived.items() if at_s >= 150.0]
        assert 1 <= sum(name in engines.placed for name in late) < 0.03 * len(late)

    @pytest.mark.parametrize("given_s", [0.0, 60.0])
    def test_a_model_that_talks_nonsense_stops_nothing(self, given_s: float) -> None:
        made = router(count=4)
        first, second = Engines(made, lambda *_: 1.0, learn=False), Engines(made, lambda *_: 1.0, learn=False)
        requests = stream(20.0, given_s + 90.0, TIGHT)
        first.run(each for each in requests if each.arrival_s < given_s)
        made.use_model(times(50.0))
        second.run(each for each in requests if each.arrival_s >= given_s + 5.0)
        assert second.kept_rps(given_s + 30.0, given_s + 80.0) > 18.0

    def test_what_no_engine_could_keep_is_not_tried(self) -> None:
        engines = Engines(router(count=4), lambda *_: 1.0)
        engines.run(stream(20.0, 60.0, RequestSlo(ttft_s=0.5, tpot_s=1e-4)))
        assert not engines.placed

    def test_a_probe_keeps_the_slo_of_those_that_are_there(self) -> None:
        made = router(count=1)
        alone_s = made.submit(0.0, request("there", slo=RequestSlo(ttft_s=9.0, tpot_s=9.0)))
        tight = RequestSlo(ttft_s=9.0, tpot_s=1.05 * alone_s.placements[0].predicted_tpot_s)
        made.failed(0.0, "there", retry=False)
        made.submit(0.0, request("there", slo=tight))
        assert made.running == 1
        made.use_model(times(50.0))
        for each in stream(20.0, 30.0, TIGHT):
            assert not made.submit(each.arrival_s, each).placements

    def test_a_model_of_before_a_restart_is_no_fresh_one(self) -> None:
        slo = RequestSlo(ttft_s=30.0, tpot_s=1.0)
        prior, fresh, old = router(), router(), router()
        fresh.use_model(times(4.0), age_s=2.0)
        old.use_model(times(4.0), age_s=3600.0)
        said = [
            made.submit(0.0, request(slo=slo)).placements[0].predicted_tpot_s for made in (prior, fresh, old)
        ]
        assert said[1] == pytest.approx(4.0 * said[0])
        assert said[2] == pytest.approx(said[0], rel=0.02)


def bursty_code(seconds: float) -> ArrayTrace:
    """Long prompts, short outputs, in bursts."""
    draw, count = np.random.default_rng(1), int(12.0 * seconds)
    prompts = np.minimum(draw.lognormal(np.log(1200), 1.0, count), 12_000)
    outputs = 1 + draw.exponential(30.0, count)
    return ArrayTrace(np.cumsum(draw.gamma(0.25, 1.0 / 3.0, count)), prompts.astype(int), outputs.astype(int))


def simulated_rps(*, learn: bool) -> float:
    """Requests per second that keep their SLO where the profile is 1.5 × too fast, in overload."""
    rules = EngineRules(max_batch_size=64, chunk_tokens=2048)
    config = HeadwayConfig.model_validate(
        {
            "engine": {"profile": "llama-3.1-70b_h100_tp4"},
            "routing": {"profile": "slo"},
            "pools": {"mixed": {}},
        }
    )
    profile = engine_profile(config)
    setting = scenario(
        scaled(profile, 1.0 / 1.5, 1.0 / 1.5),
        {Role.MIXED: 4},
        slo=Slo(ttft_s=1.0, itl_s=0.03),
        engine=rules,
        routing=ScenarioRouter(
            name="slo",
            make=lambda generator: make_router(config, {"": profile}, rules, generator),
            learn=PredictionSettings() if learn else None,
        ),
    )
    result, _ = run(setting, bursty_code(200.0))
    return result.report().document()["goodput_rps"]


def test_a_profile_that_is_too_fast_is_learnt_without_loss() -> None:
    assert simulated_rps(learn=True) > 0.9 * simulated_rps(learn=False) > 4.5


def test_one_bad_gpu_type_costs_the_good_ones_nothing() -> None:
    made = router(count=0, profiles=dict.fromkeys(("", "good", "bad"), surfaces()))
    for name in ("bad-0", "good-1", "good-2", "good-3"):
        made.replica_changed(0.0, ReplicaUpdate(replica=name, role=Role.MIXED, gpu_type=name[:-2]))
    engines = Engines(made, lambda _, name: 3.0 if name == "bad-0" else 1.0, learn=False)
    engines.run(stream(60.0, 60.0, RequestSlo(ttft_s=1.0, tpot_s=0.05)))
    factors = made.corrections
    assert factors["tpot/bad"] > 1.5
    assert max(factors["ttft/good"], factors["tpot/good"]) < 1.2


def test_one_bad_replica_costs_its_like_nothing() -> None:
    made = router(count=4)
    engines = Engines(made, lambda _, name: 3.0 if name == "mixed-0" else 1.0, learn=False)
    engines.run(stream(60.0, 60.0, RequestSlo(ttft_s=1.0, tpot_s=0.05)))
    safety = {replica.name: replica.safety[1].factor for replica in made._fleet}
    assert safety.pop("mixed-0") > 1.5
    assert max(safety.values()) < 1.2
