"""Corrections by recent errors: what they follow, what they leave alone, and the coverage that they keep."""

import pickle

import numpy as np
import pytest
from latency_cases import PRIORS, measured

from predictors.latency import LatencySamples, OnlineLatency, RecentErrors, Target

LEVEL = 0.9


def played(residual: np.ndarray, batch: int = 1) -> tuple[np.ndarray, np.ndarray, RecentErrors]:
    """Log of the centre factor and whether the quantile covered, per row; predictions are 1 and 1.2 s."""
    recent, centre, covered = RecentErrors(level=LEVEL), [], []
    for rows in np.split(residual, range(batch, len(residual), batch)):
        factors, measured_s = recent.factors(), np.exp(rows)
        centre.append(np.full(len(rows), np.log(factors.centre)))
        covered.append(measured_s <= 1.2 * factors.centre * factors.quantile)
        ones = np.ones(len(rows))
        recent.observe(predicted_s=ones, quantile_s=1.2 * ones, measured_s=measured_s)
    return np.concatenate(centre), np.concatenate(covered), recent


@pytest.mark.parametrize("batch", [1, 10, 40])
def test_errors_that_hang_together_are_corrected(batch):
    rng = np.random.default_rng(1)
    drift = 0.5 * np.sin(np.arange(2_000) / 150)
    residual = drift + 0.05 * rng.standard_normal(2_000)
    centre, _, _ = played(residual, batch)
    assert np.abs(residual - centre).mean() < 0.5 * np.abs(residual).mean()


@pytest.mark.parametrize("batch", [1, 10, 200])
def test_independent_errors_are_left_alone(batch):
    residual = 0.15 * np.random.default_rng(2).standard_t(3, 2_000)
    centre, _, _ = played(residual, batch)
    assert np.abs(residual - centre).mean() < 1.04 * np.abs(residual).mean()


@pytest.mark.parametrize("batch", [1, 20])
@pytest.mark.parametrize("shift", [-0.6, 0.0, 0.6])
def test_coverage_stays_near_its_level_when_the_load_changes(batch, shift):
    rng = np.random.default_rng(3)
    spread = np.repeat([0.05, 0.2, 0.1], 700)
    residual = np.repeat([0.0, shift, 0.0], 700) + spread * rng.standard_normal(2_100)
    _, covered, _ = played(residual, batch)
    assert covered.mean() == pytest.approx(LEVEL, abs=0.04)


def test_what_is_broken_or_absurd_corrects_nothing():
    recent = RecentErrors()
    for broken in (np.nan, np.inf, 0.0, -1.0, 1000.0, 0.001):
        recent.observe(
            predicted_s=np.ones(9), quantile_s=np.full(9, 1.2), measured_s=np.full(9, float(broken))
        )
    assert recent.factors().centre == 1.0
    recent.observe(predicted_s=np.ones(0), quantile_s=np.ones(0), measured_s=np.ones(0))
    assert recent.factors().centre == 1.0


def test_a_correction_fades_without_new_outcomes():
    _, _, recent = played(np.full(50, 0.4))
    now, later, much_later = (np.log(recent.factors(age_s).centre) for age_s in (0.0, 30.0, 3600.0))
    assert now == pytest.approx(0.4, rel=0.1)
    assert later == pytest.approx(now / 2)
    assert much_later == pytest.approx(0.0, abs=1e-9)


def test_recent_errors_survive_pickling():
    _, _, recent = played(np.full(20, 0.3))
    assert pickle.loads(pickle.dumps(recent)).factors() == recent.factors()


def predicted(online: OnlineLatency, samples: LatencySamples) -> np.ndarray:
    model = online.model()
    assert model is not None
    return model.predict(samples.features).tpot_s


def test_a_model_follows_its_outcomes_between_two_trainings():
    online, judged = OnlineLatency(), measured(100, seed=9)
    online.learn(measured(600, seed=1), now_s=0.0)
    assert online.model() is None
    assert online.train(PRIORS).accepted
    before = predicted(online, judged)
    for seed in range(2, 5):
        online.learn(measured(10, seed=seed, slower=1.5), now_s=10.0)
    assert np.median(predicted(online, judged) / before) == pytest.approx(1.5, rel=0.1)
    model = online.model(10_000.0)
    assert model is not None
    np.testing.assert_allclose(model.predict(judged.features).tpot_s, before)


def test_a_model_says_how_old_its_evidence_is():
    online = OnlineLatency()
    online.learn(measured(300, seed=1), now_s=17.0)
    online.train(PRIORS)
    online.learn(measured(5, seed=2), now_s=90.0)
    model = online.model(90.0)
    assert model is not None
    learned = model.of(Target.TPOT).learned
    assert learned is not None
    assert (learned.rows, learned.newest_s) == (300, 17.0)
