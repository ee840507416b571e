"""Training: what is learned, how the quantile is calibrated, and what is refused."""

import dataclasses

import numpy as np
import pytest
from latency_cases import PRIORS, error, load, measured, prior_ttft_s, true_tpot_s, true_ttft_s

from predictors import OptionError
from predictors.latency import (
    LatencyFeatures,
    LatencyModel,
    LatencySamples,
    LatencySettings,
    Priors,
    Target,
    TrainingWindow,
    cold_model,
    curve,
    fit,
    train,
)
from predictors.latency.fit import conformal_factor

FRESH = measured(400, seed=99)


def window_of(*batches: LatencySamples) -> TrainingWindow:
    window = TrainingWindow()
    for batch in batches:
        window.add(batch)
    return window


def errors(model: LatencyModel, judged: LatencySamples = FRESH) -> tuple[float, float]:
    prediction = model.predict(judged.features)
    return error(prediction.ttft_s, judged.ttft_s), error(prediction.tpot_s, judged.tpot_s)


def test_learns_what_the_prior_lacks():
    before, after = errors(cold_model(PRIORS)), errors(train(window_of(measured(800, seed=1)), PRIORS).model)
    assert min(before) > 0.2
    assert max(after) < 0.05  # noise alone is 0.04


def test_learns_without_a_prior():
    assert max(errors(train(window_of(measured(800, seed=1)), Priors()).model)) < 0.05


def test_few_rows_leave_the_prior_alone_and_a_few_more_improve_on_it():
    few = train(window_of(measured(19, seed=1)), PRIORS)
    assert not few.accepted
    assert few.reports[Target.TTFT].reason == "kept: too few rows, 19 of 20"
    np.testing.assert_array_equal(few.model.predict(FRESH.features).ttft_s, prior_ttft_s(FRESH.features))
    assert errors(train(window_of(measured(40, seed=1)), PRIORS).model) < errors(few.model)


def test_an_empty_window_leaves_the_prior_alone():
    trained = train(TrainingWindow(), PRIORS)
    assert trained.reports[Target.TPOT].rows == 0
    assert errors(trained.model) == errors(cold_model(PRIORS))


def test_a_perfect_prior_is_not_made_worse():
    perfect = Priors(ttft=true_ttft_s, tpot=true_tpot_s)
    trained = train(window_of(measured(400, seed=1)), perfect)
    assert max(errors(trained.model)) < 1.1 * max(errors(cold_model(perfect)))


def test_one_target_is_trained_without_the_other():
    samples = measured(300, seed=1)
    trained = train(window_of(dataclasses.replace(samples, tpot_s=np.full(300, np.nan))), PRIORS)
    assert trained.reports[Target.TTFT].accepted
    assert trained.reports[Target.TPOT].rows == 0
    assert trained.model.tpot.learned is None


def test_rows_where_the_prior_has_no_answer_are_left_out():
    def partial(features: LatencyFeatures) -> np.ndarray:
        return np.where(features.running > 50, np.nan, prior_ttft_s(features))

    samples = measured(400, seed=1)
    report = train(window_of(samples), Priors(ttft=partial)).reports[Target.TTFT]
    assert report.accepted
    assert report.rows == (samples.features.running <= 50).sum()


def test_the_same_rows_give_the_same_model():
    first, second = (train(window_of(measured(300, seed=5)), PRIORS).model for _ in range(2))
    np.testing.assert_array_equal(first.predict(FRESH.features).ttft_s, second.predict(FRESH.features).ttft_s)
    np.testing.assert_array_equal(
        first.predict(FRESH.features).tpot_quantile_s, second.predict(FRESH.features).tpot_quantile_s
    )


@pytest.mark.parametrize("level", [0.5, 0.9])
def test_quantiles_cover_their_share_also_where_noise_grows_with_load(level):
    shares = []
    judged = measured(2_000, seed=77, growing=True)
    for seed in range(4):
        window = window_of(measured(1_000, seed=seed, growing=True))
        prediction = train(window, PRIORS, settings=LatencySettings(level=level)).model.predict(
            judged.features
        )
        shares.append((judged.tpot_s <= prediction.tpot_quantile_s).mean())
    # One calibration of 100 rows varies by √(level (1 - level) / 100); the mean of four by half of that.
    assert np.mean(shares) == pytest.approx(level, abs=4 * np.sqrt(level * (1 - level) / 400))


def test_quantiles_are_wider_where_noise_is():
    features = load(500, np.random.default_rng(4))
    prediction = train(window_of(measured(2_000, seed=3, growing=True)), PRIORS).model.predict(features)
    ratio = prediction.tpot_quantile_s / prediction.tpot_s
    assert ratio[features.kv_usage > 0.8].mean() > 1.05 * ratio[features.kv_usage < 0.2].mean()


@pytest.mark.parametrize("slower", [10.0, 0.1])
def test_a_bad_batch_replaces_nothing(slower):
    window = window_of(measured(800, seed=1))
    good = train(window, PRIORS).model
    window.add(measured(100, seed=2, slower=slower))
    trained = train(window, PRIORS, good)
    assert not trained.accepted
    assert "times off" in trained.reports[Target.TTFT].reason
    assert errors(trained.model) == errors(good)


def test_a_bad_batch_does_not_spoil_the_model_once_good_rows_follow():
    window = window_of(measured(800, seed=1))
    good = train(window, PRIORS).model
    window.add(measured(100, seed=2, slower=10.0))
    kept = train(window, PRIORS, good).model
    window.add(measured(100, seed=3))
    after = train(window, PRIORS, kept).model
    assert max(errors(after)) < 1.2 * max(errors(good))


def test_rows_that_taught_nonsense_do_not_replace_a_good_model():
    good = train(window_of(measured(800, seed=1)), PRIORS).model
    trained = train(window_of(measured(800, seed=2, slower=2.0), measured(100, seed=3)), PRIORS, good)
    assert not trained.accepted
    assert "the model in place has" in trained.reports[Target.TPOT].reason
    assert errors(trained.model) == errors(good)


def test_a_candidate_worse_than_the_prior_alone_is_refused():
    perfect = Priors(ttft=true_ttft_s, tpot=true_tpot_s)
    trained = train(window_of(measured(800, seed=2, slower=2.0), measured(100, seed=3)), perfect)
    assert not trained.accepted
    assert "error" in trained.reports[Target.TTFT].reason
    assert errors(trained.model) == errors(cold_model(perfect))


def test_being_better_than_a_bad_model_in_place_is_not_enough():
    perfect = Priors(ttft=true_ttft_s, tpot=true_tpot_s)
    bad = train(window_of(measured(400, seed=1, slower=2.9)), Priors()).model
    trained = train(window_of(measured(400, seed=2, slower=2.0), measured(100, seed=3)), perfect, bad)
    report = trained.reports[Target.TPOT]
    assert report.prior_error < report.candidate_error < report.previous_error
    assert "the prior alone has" in report.reason
    assert trained.model.tpot is bad.tpot


def test_held_out_rows_do_not_teach_what_spoils_the_older_ones(monkeypatch):
    monkeypatch.setattr(fit, "HOLDOUT_SHARE", 0.6)
    monkeypatch.setattr(fit, "MOST_HOLDOUT", 300)
    window = window_of(measured(200, seed=1), measured(300, seed=2, slower=2.5))
    trained = train(window, PRIORS)
    assert trained.reports[Target.TPOT].accepted
    assert errors(trained.model)[1] < 0.06


@pytest.mark.slow
def test_a_lasting_change_is_taken_up():
    window = window_of(measured(800, seed=1))
    model = train(window, PRIORS).model
    for batch in range(15):
        window.add(measured(100, seed=10 + batch, slower=4.0))
        model = train(window, PRIORS, model).model
    assert max(errors(model, measured(400, seed=98, slower=4.0))) < 0.06


def test_the_report_says_how_all_three_did():
    window = window_of(measured(800, seed=1))
    first = train(window, PRIORS)
    window.add(measured(100, seed=2))
    report = train(window, PRIORS, first.model).reports[Target.TTFT]
    assert report.accepted
    assert report.held_out == 100
    assert report.candidate_error < 0.06
    assert report.previous_error < 0.06
    assert report.prior_error > 0.2
    assert 0.75 < report.coverage <= 1
    assert 0.75 < report.previous_coverage <= 1
    assert 0.8 < report.factor < 1.25


@pytest.mark.parametrize(("level", "rank"), [(0.9, 90), (0.5, 50)])
def test_the_conformal_factor_is_the_ratio_at_its_rank(level, rank):
    ratios = np.linspace(0.5, 1.5, 99)
    shuffled = np.random.default_rng(0).permutation(ratios)
    assert conformal_factor(2.0 * shuffled, np.full(99, 2.0), level) == pytest.approx(ratios[rank - 1])


def test_the_conformal_factor_of_too_few_rows_is_the_largest_ratio_and_of_none_is_one():
    assert conformal_factor(np.array([1.0, 3.0]), np.array([1.0, 1.0]), 0.9) == 3.0
    assert conformal_factor(np.array([]), np.array([]), 0.9) == 1.0


@pytest.mark.parametrize("level", [0.0, 1.0, 0.9999])
def test_a_level_out_of_range_is_refused(level):
    with pytest.raises(OptionError, match="latency"):
        LatencySettings(level=level)


@pytest.mark.parametrize(("level", "rows"), [(0.5, 20), (0.9, 20), (0.95, 38), (0.99, 198), (0.999, 1998)])
def test_as_many_rows_as_the_quantile_takes(level, rows):
    settings = LatencySettings(level=level)
    assert settings.least_rows == rows
    assert settings.least_holdout <= settings.holdout_of(rows) <= rows / 2


def test_the_rate_beyond_what_was_seen_is_that_of_the_slope_as_a_whole(monkeypatch):
    monkeypatch.setattr(curve, "BEND_ROWS", 10.0)

    def steady(features: LatencyFeatures) -> np.ndarray:
        return 0.05 + features.prefill_tokens_in_flight / 8_000

    rng = np.random.default_rng(6)
    features = LatencyFeatures.of(
        kv_usage=0.5,
        input_tokens=100,
        waiting=0,
        running=8,
        prefill_tokens_in_flight=rng.uniform(0, 1e4, 400),
    )
    noisy = steady(features) * np.exp(0.1 * rng.standard_normal(400))
    samples = LatencySamples(features=features, ttft_s=noisy, tpot_s=np.full(400, 0.02))
    far = LatencyFeatures.of(
        kv_usage=0.5, input_tokens=100, waiting=0, running=8, prefill_tokens_in_flight=1e6
    )
    model = train(window_of(samples), Priors()).model
    assert model.predict(far).ttft_s == pytest.approx(steady(far), rel=0.05)
