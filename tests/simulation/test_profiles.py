"""The router of `headway.routing` in the simulator, by its built-in profiles."""

import json
import tracemalloc
from collections import deque
from dataclasses import replace

import numpy as np
import pytest

from headway.config import load_config
from headway.config.routing import PredictionSettings
from headway.engine.kernel.layout import Routing
from headway.simulation.build import make_plan, make_scenario
from headway.simulation.router_driver import PULL_S, RENEWED, SimulatedTrainer
from headway.simulation.scenario import ScenarioRouter
from headway.simulation.simulate import simulate
from headway.workload import open_trace
from tests.simulation.worlds import Schedule, poisson_trace, run

SPLIT = {"planner.static.prefill": 2, "planner.static.decode": 3}
MIXED = {"planner.static.mixed": 4, "pools": {"mixed": {}}}
CLASSES = {
    "chat": {"ttft_ms": 150, "tpot_ms": 15, "critical": True},
    "batch": {"ttft_ms": 3000, "tpot_ms": 60, "share": 2},
}
BUILT_IN = [
    "random",
    "round_robin",
    "least_load",
    "bin_pack",
    "prefix",
    "default",
    "slo",
    "pull",
    "pull_bin_pack",
]


def setting(profile: str, fleet=SPLIT, **changes):
    """The scenario of a fixed fleet, always with the router itself, and the routers that were made of it."""
    settings = {"planner.policy": "static", "routing.profile": profile, **fleet, **changes}
    if profile in ("random", "round_robin", "least_load"):
        own = {"name": profile, "plugins": [{"plugin_ref": PLUGINS[profile]}]}
        settings["routing.scheduling_profiles"] = [own]
    plan = make_plan(load_config(None, settings))
    with open_trace("steady:rate_rps=1,duration_s=10") as trace:
        found = make_scenario(plan, trace)
    made = []

    def make(generator):
        made.append(found.routing.make(generator))
        return made[-1]

    return replace(found, routing=replace(found.routing, make=make)), made


PLUGINS = {"random": "random", "round_robin": "round-robin", "least_load": "least-load"}


def conversations(count: int, rate_rps: float):
    """A trace with prefix blocks: forty conversations, prompts that grow."""
    trace, draw = poisson_trace(9, count, rate_rps, isl_mean=900, osl_mean=80), np.random.default_rng(9)
    trace.prompts = [
        [0, *(1000 * int(who) + np.arange(1, 1 + int(tokens) // 512))]
        for who, tokens in zip(draw.integers(1, 41, count), trace.input_tokens, strict=True)
    ]
    return trace


@pytest.mark.parametrize("fleet", [SPLIT, MIXED], ids=["split", "mixed"])
@pytest.mark.parametrize("profile", BUILT_IN)
def test_each_profile_serves_every_request_once(profile, fleet):
    offload = {"routing.offload.mode": "cost", "routing.offload.heavy_tokens": 1500}
    more = {
        "slo.classes": CLASSES,
        "engine.prefix_cache_tokens": 100_000,
        **(offload if fleet is MIXED else {}),
    }
    found, made = setting(profile, fleet, **more)
    result, records = run(found, conversations(300, 60.0))
    assert np.array_equal(records["number"], np.arange(300))
    summary = result.report().document()
    assert summary["completed"] + summary["shed"] == summary["requests"] == 300
    assert summary["shed"] == sum(summary["routing_metrics"]["sheds"].values())
    placed = sum(summary["routing_metrics"]["placements"].values())
    assert placed >= summary["completed"]
    assert summary["routing_metrics"]["unknown_events"] == {}
    (router,) = made
    assert (router.queued, router.running) == (0, 0)
    assert sum(row["requests"] for row in summary["classes"].values()) == 300


def test_prompts_move_between_mixed_replicas():
    more = {"routing.offload.mode": "always", "routing.offload.heavy_tokens": 1500}
    found, _ = setting("prefix", MIXED, **more, **{"engine.prefix_cache_tokens": 100_000})
    result, records = run(found, conversations(800, 40.0))
    split = records["prefill_replica"] != records["decode_replica"]
    assert split.any()
    assert (records["external_tokens"][split] > 0).all()
    assert (records["external_tokens"][~split] == 0).all()
    hits = result.report().document()["prefix_hits"]
    assert 0.0 < hits["external"] < hits["combined"] <= 1.0


def test_a_compiled_form_is_used_where_nothing_asks_for_the_router():
    def of(profile, **more):
        plan = make_plan(load_config(None, {"planner.policy": "static", "routing.profile": profile, **more}))
        with open_trace("steady:rate_rps=1,duration_s=10") as trace:
            return make_scenario(plan, trace).routing

    assert of("least_load") is Routing.LEAST_LOAD
    assert of("random", **{"routing.offload.mode": "cost"}) is Routing.RANDOM
    assert isinstance(
        of("random", **{"routing.offload.mode": "cost", "pools": {"mixed": {}}}), ScenarioRouter
    )
    assert isinstance(of("slo"), ScenarioRouter)
    assert of("slo").learn == PredictionSettings()
    assert of("slo", **{"routing.prediction.learn": False}).learn is None
    assert of("slo", **{"engine.max_model_tokens": 8000}).most_tokens == 8000


@pytest.mark.slow
def test_memory_is_that_of_the_requests_under_way():
    def peak_bytes(count):
        found, _ = setting("least_load", SPLIT)
        trace = poisson_trace(4, count, 40.0, isl_mean=200, osl_mean=40)
        trace.rows = 500
        latest_only = Schedule([found.initial], interval_s=10.0, seen=deque(maxlen=1))
        tracemalloc.start()
        result = simulate(found, trace, latest_only)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert result.tally.completed == count
        return peak

    peak_bytes(300)
    few, many = 2_700, 8_100
    # A request that is kept takes more: its record has a dozen figures of 8 bytes, in an object of its own.
    assert peak_bytes(many) - peak_bytes(few) < 96 * (many - few)


class Taught:
    """A router that has samples to give and takes models."""

    def __init__(self, router, samples) -> None:
        self.router, self.samples, self.models = router, samples, []

    def take_samples(self):
        return self.samples.pop(0)

    def use_model(self, model):
        self.models.append(model)


def samples_of(count: int):
    """What a router measures in a real run."""
    found, made = setting("slo", MIXED, **{"routing.prediction.learn": False})
    run(found, conversations(count, 60.0))
    return made[0].take_samples()


def test_a_model_is_trained_at_intervals_from_enough_that_is_new():
    samples = samples_of(600)
    assert len(samples) == 600
    batches = [samples[:400], [], samples[400:450], samples[450:]]
    router = Taught(None, batches)
    trainer = SimulatedTrainer(PredictionSettings(retrain_interval_s=10.0))
    taught = []
    for turn in range(4):
        trainings = trainer.trainings
        trainer.train_model(10.0 * (turn + 1), router)
        assert trainer.next_due_s == pytest.approx(10.0 * (turn + 1) + PULL_S)
        taught.append(trainer.trainings - trainings)
    assert RENEWED * 400 == 200
    assert taught[:3] == [1, 0, 0]
    assert router.models[0].ttft.prior is None


def test_what_is_learned_is_used_and_the_same_seed_gives_the_same_bytes():
    more = {"routing.prediction.retrain_interval_s": 4.0, "slo.classes": CLASSES}

    def once(seed):
        found, _ = setting("slo", MIXED, **more, **{"simulation.seed": seed})
        models = []
        learning = found.routing.make

        def make(generator):
            router = learning(generator)
            use = router.use_model
            router.use_model = lambda model: (models.append(model), use(model))
            return router

        result, records = run(
            replace(found, routing=replace(found.routing, make=make)), conversations(600, 60.0)
        )
        return len(models), json.dumps(result.report().document()), records.tobytes()

    first = once(1)
    assert first[0] > 0
    assert first == once(1)
    assert first != once(2)
