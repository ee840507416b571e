"""Trees over the curve: what they add, when they are left out, and their limits."""

import numpy as np
import pytest
from latency_cases import load

from predictors.latency import LatencyFeatures, LatencySamples, Priors, TrainingWindow, train
from predictors.latency.forest import DEPTH, LARGEST_LOG, LEAF_ROWS, fit_forest


def crossed_s(features: LatencyFeatures) -> np.ndarray:
    """Long prompts cost only where the cache is full: no sum of functions of one input each."""
    return 0.02 + 0.02 * (features.kv_usage > 0.5) * (features.input_tokens > 2_000)


def samples(rows: int, seed: int, noise: float = 0.05) -> LatencySamples:
    rng = np.random.default_rng(seed)
    features = load(rows, rng)
    tpot_s = crossed_s(features) * np.exp(noise * rng.standard_normal(rows))
    return LatencySamples(features=features, ttft_s=np.full(rows, np.nan), tpot_s=tpot_s)


def test_they_learn_what_two_inputs_do_together():
    window, judged = TrainingWindow(), samples(500, seed=2)
    window.add(samples(1_500, seed=1))
    model = train(window, Priors()).model
    assert model.tpot.learned is not None
    assert model.tpot.learned.forest is not None
    error = np.abs(model.predict(judged.features).tpot_s / judged.tpot_s - 1).mean()
    curve = model.tpot.learned.centre.at(judged.features.inputs(), None)
    assert error < 0.06
    assert error < 0.6 * np.abs(curve / judged.tpot_s - 1).mean()


def test_they_are_left_out_where_held_out_rows_gain_nothing():
    rng = np.random.default_rng(3)
    features = load(800, rng)
    plain = (0.01 + 0.0004 * features.running) * np.exp(0.1 * rng.standard_normal(800))
    window = TrainingWindow()
    window.add(LatencySamples(features=features, ttft_s=np.full(800, np.nan), tpot_s=plain))
    learned = train(window, Priors()).model.tpot.learned
    assert learned is not None
    assert learned.forest is None


def test_the_same_rows_give_the_same_trees():
    inputs = load(300, np.random.default_rng(1)).inputs()
    residual = np.random.default_rng(2).standard_normal(300)
    first, second = (fit_forest(inputs, residual, np.ones(300)) for _ in range(2))
    np.testing.assert_array_equal(first.at(inputs), second.at(inputs))


def test_a_correction_stays_within_what_residuals_said():
    inputs = load(300, np.random.default_rng(1)).inputs()
    forest = fit_forest(inputs, np.full(300, 50.0), np.ones(300))
    assert forest.at(inputs).max() <= LARGEST_LOG
    assert forest.at(1e9 * np.ones((8, 3))).max() <= LARGEST_LOG
    assert forest.at(np.zeros((8, 3))).min() >= 0.0


@pytest.mark.parametrize("rows", [1, 2, LEAF_ROWS, 7])
def test_few_or_equal_rows_are_not_split(rows):
    inputs, residual = np.ones((8, rows)), np.linspace(-0.5, 0.5, rows)
    forest = fit_forest(inputs, residual, np.ones(rows))
    assert np.ptp(forest.at(np.random.default_rng(0).random((8, 20)) * 2.0)) == 0.0


def test_a_leaf_is_found_as_by_hand():
    rng = np.random.default_rng(5)
    inputs = load(400, rng).inputs()
    forest = fit_forest(inputs, rng.standard_normal(400), np.ones(400))
    for row in range(0, 400, 40):
        total = 0.0
        for tree in range(len(forest.leaf)):
            node = 0
            for _ in range(DEPTH):
                above = inputs[forest.source[tree, node], row] > forest.threshold[tree, node]
                node = 2 * node + 1 + int(above)
            total += forest.leaf[tree, node - forest.source.shape[1]]
        assert forest.at(inputs[:, row : row + 1])[0] == pytest.approx(total)
