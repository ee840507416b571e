"""Live error: figures from pairs of predictions and outcomes."""

import math
import pickle

import numpy as np
import pytest

from predictors import ArgumentError, OptionError
from predictors.latency import LiveError


def test_before_the_first_pair_nothing_is_known():
    figures = LiveError().figures()
    assert math.isnan(figures.error)
    assert math.isnan(figures.coverage)
    assert figures.pairs == figures.skipped == 0


def test_one_pair_gives_its_own_figures():
    live = LiveError()
    live.observe(predicted_s=1.5, quantile_s=1.9, measured_s=2.0)
    figures = live.figures()
    assert figures.error == pytest.approx(0.25)
    assert figures.bias == pytest.approx(-0.25)
    assert figures.coverage == 0.0


def test_figures_are_weighted_means_and_batches_do_not_matter():
    rng = np.random.default_rng(1)
    measured = rng.lognormal(size=60)
    predicted, quantile = measured * rng.lognormal(0, 0.3, 60), measured * rng.lognormal(0.2, 0.3, 60)
    whole, single = LiveError(half_life_pairs=10), LiveError(half_life_pairs=10)
    whole.observe(predicted_s=predicted, quantile_s=quantile, measured_s=measured)
    for pair in zip(predicted, quantile, measured, strict=True):
        single.observe(predicted_s=pair[0], quantile_s=pair[1], measured_s=pair[2])
    weights = 0.5 ** (np.arange(60)[::-1] / 10)
    relative = predicted / measured - 1
    for figures in (whole.figures(), single.figures()):
        assert figures.error == pytest.approx(np.average(np.abs(relative), weights=weights))
        assert figures.bias == pytest.approx(np.average(relative, weights=weights))
        assert figures.coverage == pytest.approx(np.average(measured <= quantile, weights=weights))
        assert figures.pairs == 60


def test_old_errors_are_forgotten():
    live = LiveError(half_life_pairs=5)
    live.observe(predicted_s=np.full(50, 10.0), quantile_s=1.0, measured_s=1.0)
    live.observe(predicted_s=np.full(100, 1.0), quantile_s=1.0, measured_s=1.0)
    assert live.figures().error < 1e-4
    assert live.figures().coverage == pytest.approx(1.0)


@pytest.mark.parametrize("broken", [math.nan, math.inf, 0.0, -1.0])
@pytest.mark.parametrize("column", ["predicted_s", "quantile_s", "measured_s"])
def test_pairs_without_three_sound_numbers_are_skipped(column, broken):
    live = LiveError()
    live.observe(**{"predicted_s": 1.0, "quantile_s": 1.0, "measured_s": 1.0, column: [1.0, broken]})
    assert (live.figures().pairs, live.figures().skipped) == (1, 1)
    assert live.figures().error == 0.0


def test_lengths_that_differ_are_refused():
    with pytest.raises(ArgumentError, match="live error"):
        LiveError().observe(predicted_s=[1.0, 2.0], quantile_s=[1.0, 2.0, 3.0], measured_s=1.0)


def test_survives_pickling():
    live = LiveError()
    live.observe(predicted_s=[1.0, 3.0], quantile_s=2.0, measured_s=2.0)
    assert pickle.loads(pickle.dumps(live)).figures() == live.figures()


def test_a_half_life_must_be_positive():
    with pytest.raises(OptionError, match="half_life_pairs"):
        LiveError(half_life_pairs=0)
