"""Samples in, models out: what is accepted reaches routers without a prior; nothing new trains nothing."""

import asyncio
import pickle
from typing import Any

import numpy as np
import pytest

from actors import latency_trainer
from actors.latency_trainer import LatencyTrainer
from actors.names import TooSlow
from headway.config import load_config
from headway.config.routing import PredictionSettings
from headway.routing import Sample
from headway.routing.predict.learning import Training
from predictors.latency import LatencyFeatures, Target
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.anyio

ROWS = 200
SLOWER = 2.0
"""Engines take so many times what the prior says."""


def samples(rows: int, seed: int = 1, slower: float = SLOWER) -> list[Sample]:
    generator = np.random.default_rng(seed)
    made = []
    for _ in range(rows):
        running, tokens = int(generator.integers(0, 30)), float(generator.integers(100, 4000))
        prior_s = tokens / 10_000
        features = (running / 40, tokens, 0.0, float(running), 0.0, 0.0, 0.0, 50.0 * running)
        noise = generator.lognormal(0.0, 0.05)
        made.append(
            Sample(
                features=features,
                prior_ttft_s=prior_s,
                prior_tpot_s=0.01,
                ttft_s=slower * prior_s * noise,
                tpot_s=slower * 0.01 * noise,
            )
        )
    return made


def test_before_the_first_samples_there_is_no_model():
    training = Training(PredictionSettings())
    assert not training.train()
    assert training.model is None
    assert training.status()["trainings"] == 0


def test_too_few_rows_leave_the_prior_in_place():
    training = Training(PredictionSettings())
    training.add(samples(5))
    assert not training.train()
    assert training.model is None
    assert "too few rows" in training.status()["reports"]["ttft"]["reason"]


def test_an_accepted_model_travels_without_a_prior_and_corrects_the_routers():
    training = Training(PredictionSettings())
    training.add(samples(ROWS))
    assert training.train()
    model = pickle.loads(pickle.dumps(training.model))
    assert model.of(Target.TTFT).prior is None
    assert model.of(Target.TTFT).learned is not None
    assert model.level == pytest.approx(0.9)
    features = LatencyFeatures.of(kv_usage=0.2, input_tokens=2000.0, waiting=0.0, running=8.0)
    centre, quantile = model.of(Target.TTFT).predict(features.inputs(), np.array([0.2]))
    assert centre[0] == pytest.approx(SLOWER * 0.2, rel=0.15)
    assert quantile[0] >= centre[0]


def test_without_anything_new_nothing_is_trained():
    training = Training(PredictionSettings())
    training.add(samples(ROWS))
    training.train()
    assert not training.train()
    assert training.status()["trainings"] == 1


def test_a_bad_batch_does_not_replace_a_good_model():
    training = Training(PredictionSettings())
    training.add(samples(ROWS))
    training.train()
    before = training.model
    training.add(samples(ROWS // 4, seed=2, slower=1000.0))
    assert not training.train()
    features = LatencyFeatures.of(kv_usage=0.2, input_tokens=2000.0, waiting=0.0, running=8.0)
    told = [
        model.of(Target.TTFT).predict(features.inputs(), np.array([0.2]))[0][0]
        for model in (before, training.model)
    ]
    assert told[0] == told[1]


def test_what_has_just_been_measured_corrects_the_model_before_the_next_training_and_is_forgotten():
    training = Training(PredictionSettings())
    training.add(samples(ROWS), now_s=0.0)
    training.train()
    features = LatencyFeatures.of(kv_usage=0.2, input_tokens=2000.0, waiting=0.0, running=8.0)
    told, versions = [], []
    late = samples(40, seed=2, slower=1.5 * SLOWER)
    training.add(late[:20], now_s=1.5)
    for given, now_s in ((), 1000.0), (late[20:], 2000.0), ((), 2001.0), ((), 3600.0):
        training.add(given, now_s=now_s)
        told.append(training.model.of(Target.TPOT).predict(features.inputs(), np.array([0.01]))[0][0])
        versions.append(training.version)
    assert told[1] == pytest.approx(1.5 * told[0], rel=0.1)
    assert told[2] == pytest.approx(told[1], rel=0.02)
    assert told[3] == pytest.approx(told[0])
    assert versions[0] == versions[3] != versions[1]


def test_the_window_is_bounded_by_the_settings():
    training = Training(PredictionSettings(window_samples=50))
    training.add(samples(ROWS))
    rows = training.status()["rows"]
    assert rows["ttft"] <= 50
    assert rows["tpot"] <= 50


class SlowRouter:
    """Takes the first model, and not the second at once."""

    def __init__(self) -> None:
        self.samples, self.asked, self.offered = [samples(ROWS, seed) for seed in (2, 1)], 0, 0

    async def call(self, method: str, *_: object, timeout_s: float) -> Any:
        if method == "take_samples":
            self.asked += 1
            return "life", 1, self.samples.pop() if self.samples else []
        self.offered += 1
        if self.offered == 2:
            raise TooSlow("use_model")
        return None


class MovingRouter:
    """Its surfaces become others after the first samples."""

    def __init__(self) -> None:
        self.asked, self.given = 0, [(1, samples(ROWS)), (2, samples(10))]
        self.taken: list[tuple[object, ...]] = []

    async def call(self, method: str, *given: object, timeout_s: float) -> Any:
        if method == "take_samples":
            self.asked += 1
            basis, found = self.given[min(self.asked, 2) - 1]
            return "life", basis, found if self.asked <= 2 else []
        self.taken.append(given)
        return None


async def trained_for(router: SlowRouter | MovingRouter, rounds: int) -> LatencyTrainer:
    """A trainer of that router, once the router has been asked for samples so often."""
    trainer = LatencyTrainer.__new__(LatencyTrainer)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(latency_trainer, "NamedActor", lambda _, application: router)
        settings = load_config(None, {"routing.prediction.retrain_interval_s": 1e-9})
        LatencyTrainer.__init__(trainer, settings.model_dump_json())
    async with asyncio.timeout(PATIENCE_S):
        while router.asked < rounds:
            await asyncio.sleep(0.0)
    return trainer


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(latency_trainer, "PULL_S", 0.0)


async def test_a_model_that_did_not_arrive_is_sent_again() -> None:
    router = SlowRouter()
    trainer = await trained_for(router, 6)
    assert (router.offered, (await trainer.status())["errors"]) == (3, 1)


async def test_samples_of_other_surfaces_are_forgotten() -> None:
    router = MovingRouter()
    trainer = await trained_for(router, 3)
    assert (await trainer.status())["rows"]["ttft"] == 10
    (taken,) = router.taken
    assert taken[1] == 1, "ten rows teach nothing"
