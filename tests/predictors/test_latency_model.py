"""Prediction: cold start, missing parts, missing data, pickling, and what holds for any input."""

import pickle
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from latency_cases import PRIORS, load, measured, prior_tpot_s, prior_ttft_s

from predictors import ArgumentError
from predictors.latency import (
    FIELDS,
    LatencyFeatures,
    LatencyModel,
    LatencyPrediction,
    LatencySamples,
    Priors,
    Target,
    TrainingWindow,
    cold_model,
    train,
)

COLUMNS = ("ttft_s", "tpot_s", "ttft_quantile_s", "tpot_quantile_s")


def trained_model(priors: Priors = PRIORS):
    window = TrainingWindow()
    window.add(measured(600, seed=1))
    return train(window, priors).model


MODELS = {
    "prior and data": trained_model(),
    "data alone": trained_model(Priors()),
    "cold": cold_model(PRIORS),
}


def one_row(**changes) -> LatencyFeatures:
    return LatencyFeatures.of(**{"kv_usage": 0.5, "input_tokens": 100, "waiting": 0, "running": 8, **changes})


def over(model: LatencyModel, priors: Priors) -> LatencyModel:
    """The same curves over other priors, where the model has one."""
    parts = {target.value: replace(model.of(target), prior=priors.of(target)) for target in Target}
    return replace(model, **parts)


def columns(prediction: LatencyPrediction) -> np.ndarray:
    return np.stack([getattr(prediction, name) for name in COLUMNS])


def test_a_cold_model_answers_with_its_priors():
    features = load(50, np.random.default_rng(0))
    prediction = cold_model(PRIORS).predict(features)
    np.testing.assert_array_equal(prediction.ttft_s, prior_ttft_s(features))
    np.testing.assert_array_equal(prediction.tpot_s, prior_tpot_s(features))
    np.testing.assert_array_equal(prediction.ttft_quantile_s, prediction.ttft_s)
    assert prediction.usable.all()


def test_without_prior_and_data_nothing_is_usable():
    prediction = cold_model(Priors()).predict(one_row())
    assert np.isnan(columns(prediction)).all()
    assert not prediction.usable.any()


def test_a_target_without_prior_makes_the_row_unusable_and_leaves_the_other_target():
    prediction = cold_model(Priors(ttft=prior_ttft_s)).predict(one_row())
    assert np.isfinite(prediction.ttft_s).all()
    assert np.isnan(prediction.tpot_s).all()
    assert not prediction.usable.any()


@pytest.mark.parametrize("broken", [np.nan, 0.0, -1.0, np.inf])
def test_a_prior_without_a_sound_answer_makes_its_rows_unusable(broken):
    priors = Priors(ttft=lambda features: np.array([0.1, broken]), tpot=prior_tpot_s)
    prediction = cold_model(priors).predict(one_row(running=[1, 2]))
    assert prediction.usable.tolist() == [True, False]
    assert np.isnan(prediction.ttft_s[1])


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("unknown", [np.nan, np.inf, -np.inf])
def test_a_row_with_an_unknown_feature_is_unusable_and_the_others_are_not(name, field, unknown):
    prediction = MODELS[name].predict(one_row(**{field: [0.5, unknown]}))
    assert prediction.usable.tolist() == [True, False]
    assert np.isnan(columns(prediction)[:, 1]).all()


@pytest.mark.parametrize("name", MODELS)
@given(
    table=st.lists(
        st.tuples(*[st.floats(allow_nan=False, allow_infinity=False)] * len(FIELDS)), min_size=1, max_size=4
    )
)
def test_finite_features_give_positive_finite_ordered_answers(name, table):
    features = LatencyFeatures.from_table(table)
    bounded = Priors(
        ttft=lambda features: np.full(len(features), 0.1), tpot=lambda features: np.full(len(features), 0.02)
    )
    prediction = over(MODELS[name], bounded).predict(features)
    answers = columns(prediction)
    assert np.isfinite(answers).all()
    assert (answers > 0).all()
    assert (prediction.ttft_quantile_s >= prediction.ttft_s).all()
    assert (prediction.tpot_quantile_s >= prediction.tpot_s).all()
    assert prediction.usable.all()


@given(
    field=st.sampled_from([name for name in FIELDS if name != "prefix_score"]),
    value=st.floats(0, 1e6),
    more=st.floats(0, 1e6),
)
def test_without_a_prior_more_load_never_means_less_time(field, value, more):
    answers = columns(MODELS["data alone"].predict(one_row(**{field: [value, value + more]})))
    assert (answers[:, 1] >= answers[:, 0] * (1 - 1e-12)).all()


def test_without_a_prior_the_queue_keeps_costing_time_beyond_what_was_seen():
    near, far = MODELS["data alone"].predict(one_row(prefill_tokens_in_flight=[38_000, 380_000])).ttft_s
    assert far > 5 * near


def test_over_a_prior_nothing_changes_beyond_what_was_seen_but_with_the_prior():
    far = one_row(prefill_tokens_in_flight=[1e6, 1e7], running=[500, 5_000], input_tokens=[1_000, 1_000])
    prediction = MODELS["prior and data"].predict(far)
    assert prediction.ttft_s[0] == pytest.approx(prediction.ttft_s[1])
    assert prediction.tpot_s[0] == pytest.approx(prediction.tpot_s[1])


def overloaded(slower: float) -> LatencyModel:
    """Taught by engines that are `slower` than the prior, all of them near full."""

    def prior(features: LatencyFeatures) -> np.ndarray:
        return 0.01 + 0.0004 * features.running

    rng = np.random.default_rng(4)
    features = LatencyFeatures.of(
        kv_usage=0.8, input_tokens=500, waiting=0, running=rng.integers(45, 64, 400)
    )
    outcome = slower * prior(features) * np.exp(0.1 * rng.standard_normal(400))
    window = TrainingWindow(stratum_rows=400)
    window.add(LatencySamples(features=features, ttft_s=np.full(400, np.nan), tpot_s=outcome))
    return train(window, Priors(tpot=prior)).model


@pytest.mark.parametrize("slower", [1.5, 4.0])
def test_an_idle_replica_is_judged_by_the_prior_and_the_correction_at_the_edge(slower):
    idle = LatencyFeatures.of(kv_usage=0.0, input_tokens=500, waiting=0, running=0)
    prediction = overloaded(slower).predict(idle)
    assert prediction.tpot_s[0] == pytest.approx(slower * 0.01, rel=0.15)
    assert prediction.tpot_quantile_s[0] < 1.5 * slower * 0.01


def test_a_prior_that_explains_nothing_is_not_followed_beyond_what_was_seen():
    rng = np.random.default_rng(5)
    features = load(800, rng)
    wild = Priors(tpot=lambda features: 0.001 * (1.0 + features.input_tokens % 97))
    window = TrainingWindow()
    outcome = np.exp(0.03 * rng.standard_normal(800)) * 0.02
    window.add(LatencySamples(features=features, ttft_s=np.full(800, np.nan), tpot_s=outcome))
    tenfold = Priors(tpot=lambda features: np.full(len(features), 1.0))
    model = over(train(window, wild).model, tenfold)
    assert model.predict(one_row()).tpot_s[0] < 0.03


@pytest.mark.parametrize("name", MODELS)
def test_models_survive_pickling(name):
    model, features = MODELS[name], load(20, np.random.default_rng(3))
    expected = columns(model.predict(features))
    np.testing.assert_array_equal(columns(pickle.loads(pickle.dumps(model)).predict(features)), expected)


def test_features_broadcast_and_are_read_only():
    features = one_row(running=[1, 2, 3])
    assert len(features) == 3
    assert features.kv_usage.tolist() == [0.5, 0.5, 0.5]
    with pytest.raises(ValueError, match="read-only"):
        features.running[0] = 9
    assert len(LatencyFeatures.from_table([])) == 0


@pytest.mark.parametrize("running", [[[1, 2]], [1, 2, 3], "many", None])
def test_features_of_another_shape_are_refused(running):
    with pytest.raises(ArgumentError, match="features"):
        one_row(running=running, waiting=[0, 1])


def test_no_rows_have_no_answers():
    prediction = MODELS["prior and data"].predict(LatencyFeatures.from_table([]))
    assert columns(prediction).shape == (4, 0)
