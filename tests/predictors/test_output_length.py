"""Output lengths: prior, learning, the client's bound, forgetting, purity and state."""

import json
import pickle
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors import ArgumentError, OptionError
from predictors.output_length import MOST_TOKENS, OutputLengths

ANY = 10**6


def learned(*pairs: tuple[int, int], **options) -> OutputLengths:
    lengths = OutputLengths(**options)
    for input_tokens, output_tokens in pairs:
        lengths.observe(input_tokens, output_tokens)
    return lengths


def drawn(seed: int, count: int, mean: float) -> list[int]:
    return (1 + np.random.default_rng(seed).exponential(mean, count)).astype(int).tolist()


@pytest.mark.parametrize("prior", [20.0, 256.0, 3000.0])
def test_before_any_data_the_prior_answers(prior):
    prediction = OutputLengths(prior_tokens=prior).predict(700, ANY)
    assert prediction.mean == pytest.approx(prior, rel=0.03)
    assert prediction.quantile(0.5) == pytest.approx(np.log(2) * prior, rel=0.06)


def test_the_prior_fades_with_what_is_seen():
    means = [learned(*[(100, 40)] * count).predict(100, ANY).mean for count in (0, 4, 64, 1024)]
    assert means == sorted(means, reverse=True)
    assert means[-1] == pytest.approx(40, rel=0.05)


def test_lengths_of_a_distribution_are_learned():
    lengths = drawn(1, 2000, 300.0)
    predictor = learned(*[(500, length) for length in lengths], memory=1e6)
    prediction = predictor.predict(500, ANY)
    assert prediction.mean == pytest.approx(np.mean(lengths), rel=0.02)
    for level in (0.1, 0.5, 0.9, 0.99):
        assert prediction.quantile(level) == pytest.approx(np.quantile(lengths, level), rel=0.1)


@pytest.mark.parametrize("most", [1, 7, 50, 100, 1000])
def test_the_clients_bound_truncates_the_mean(most):
    lengths = drawn(2, 2000, 300.0)
    prediction = learned(*[(500, length) for length in lengths], memory=1e6).predict(500, most)
    assert prediction.mean == pytest.approx(np.minimum(lengths, most).mean(), rel=0.02)
    assert prediction.quantile(0.999) == most


def test_a_bound_below_one_counts_as_one():
    prediction = OutputLengths().predict(10, 0)
    assert (prediction.mean, prediction.quantile(0.5)) == (1.0, 1.0)


def test_input_lengths_differ_and_unseen_ones_follow_all():
    pairs = [(100, 20), (5000, 800)] * 500
    predictor = learned(*pairs)
    assert predictor.predict(100, ANY).mean == pytest.approx(20, rel=0.4)
    assert predictor.predict(5000, ANY).mean == pytest.approx(800, rel=0.05)
    assert predictor.predict(100_000, ANY).mean == pytest.approx(410, rel=0.1)
    assert predictor.predict(120, ANY) == predictor.predict(64, ANY)


def test_few_of_their_own_lean_on_all():
    predictor = learned(*[(100, 20)] * 500, (5000, 2000))
    assert 20 < predictor.predict(5000, ANY).mean < 500


def test_what_was_is_forgotten():
    pairs = [(100, 1000)] * 1000 + [(100, 50)] * 1000
    assert learned(*pairs, memory=100.0).predict(100, ANY).mean == pytest.approx(50, rel=0.4)
    assert learned(*pairs, memory=1e6).predict(100, ANY).mean > 400


def test_a_long_history_overflows_nothing():
    predictor = learned(*[(100, 30)] * 3000, memory=2.0)
    assert 30 <= predictor.predict(100, ANY).mean < 300
    assert np.isfinite(predictor.state()["all"]).all()


def test_a_prediction_stays_as_it_is_while_learning_goes_on():
    predictor = learned((100, 30))
    before = predictor.predict(100, ANY)
    kept = before.mean, before.quantile(0.5), before.quantile(0.9)
    for _ in range(200):
        predictor.observe(100, 4000)
    assert (before.mean, before.quantile(0.5), before.quantile(0.9)) == kept
    assert predictor.predict(100, ANY).mean > 2 * before.mean


def test_predicting_changes_nothing():
    asked, not_asked = learned((100, 30)), learned((100, 30))
    for tokens in (1, 100, 10**7):
        asked.predict(tokens, 50)
    assert asked.state() == not_asked.state()
    assert asked.predict(100, 50) == not_asked.predict(100, 50)


@pytest.mark.parametrize("output_tokens", [0, -3])
def test_a_request_without_output_teaches_nothing(output_tokens):
    assert learned((100, output_tokens)).state() == OutputLengths().state()


def test_extreme_lengths_are_taken():
    predictor = learned((0, 1), (-5, 1), (10**12, 10**12))
    assert predictor.predict(10**12, 10**12).mean <= MOST_TOKENS
    assert predictor.predict(0, ANY).mean >= 1.0


@given(st.lists(st.tuples(st.integers(0, 10**5), st.integers(1, 10**5)), max_size=60), st.integers(1, 10**5))
def test_predictions_are_within_bounds_and_in_order(pairs, most):
    prediction = learned(*pairs).predict(1000, most)
    assert 1.0 <= prediction.mean <= most * (1 + 1e-9)
    levels = [prediction.quantile(level) for level in (0.01, 0.25, 0.5, 0.75, 0.99)]
    assert levels == sorted(levels)
    assert levels[0] >= 1.0
    assert levels[-1] <= most
    assert prediction.mean <= learned(*pairs).predict(1000, most + 50).mean * (1 + 1e-9)


def test_state_survives_json_and_pickle():
    pairs = [(int(tokens), int(tokens) // 3 + 1) for tokens in drawn(3, 400, 900.0)]
    predictor = learned(*pairs)
    restored = OutputLengths().restore(json.loads(json.dumps(predictor.state())))
    again = pickle.loads(pickle.dumps(predictor))
    assert again.predict(500, ANY) == predictor.predict(500, ANY)
    for tokens in (10, 500, 4000):
        assert restored.predict(tokens, ANY).mean == pytest.approx(
            predictor.predict(tokens, ANY).mean, rel=0.03
        )
    assert restored.state().keys() == predictor.state().keys()


def test_restored_ones_learn_on():
    restored = OutputLengths().restore(learned(*[(100, 500)] * 50).state())
    for _ in range(1000):
        restored.observe(100, 20)
    assert restored.predict(100, ANY).mean < 60


@pytest.mark.parametrize(
    "state",
    [
        {"all": [[1, 2.0]]},
        {"all": [[10**6, 1.0, 5.0]]},
        {"all": [[3, -1.0, 5.0]]},
        {"all": [[3, float("nan"), 5.0]]},
        {"all": [[3, 2.0, 1.0]]},
        {"all": 7},
        {"33": []},
        {"x": []},
    ],
)
def test_a_state_that_makes_no_sense_is_an_error_and_changes_nothing(state):
    predictor = learned((100, 30))
    before = predictor.state()
    with pytest.raises(ArgumentError, match="output length state"):
        predictor.restore(state)
    assert predictor.state() == before


@pytest.mark.parametrize("level", [0.0, 1.0, -0.1, 1.5, float("nan")])
def test_levels_lie_between_0_and_1(level):
    with pytest.raises(ArgumentError, match="level"):
        OutputLengths().predict(1, 1).quantile(level)


@pytest.mark.parametrize("options", [{"prior_tokens": 0.0}, {"prior_tokens": 1e9}, {"memory": 1.0}])
def test_options_out_of_range_are_an_error(options):
    with pytest.raises(OptionError, match=next(iter(options))):
        OutputLengths(**options)


@pytest.mark.parametrize("came", [1, 50, 300, 1200])
@pytest.mark.parametrize("most", [250, 2000, ANY])
def test_the_mean_of_those_that_exceed_what_has_come(came, most):
    lengths = np.array(drawn(3, 4000, 300.0))
    predictor = learned(*[(500, int(length)) for length in lengths], memory=1e6)
    expected = np.minimum(lengths[lengths >= came], most).mean() if most > came else came
    assert predictor.mean_from(500, most, came) == pytest.approx(expected, rel=0.06)


def test_far_beyond_all_that_was_seen_the_prior_goes_on():
    predictor = learned(*[(100, 20)] * 1000)
    for came in (300, 3000):
        assert came < predictor.mean_from(100, ANY, came) < came + 2 * 256 + 0.1 * came
    assert predictor.mean_from(100, ANY, 30_000) >= 30_000
    assert predictor.mean_from(100, ANY, MOST_TOKENS) == MOST_TOKENS
    assert predictor.mean_from(100, 3000, 3000) == 3000


def test_no_bound_is_too_high():
    predictor = learned(*[(100, 20)] * 1000, (100, 2 * MOST_TOKENS))
    at_most = predictor.mean_from(100, MOST_TOKENS, 1000)
    assert 1000 < at_most < MOST_TOKENS
    for most in (MOST_TOKENS + 1, 10 * MOST_TOKENS):
        assert predictor.mean_from(100, most, 1000) == at_most


@given(
    pairs=st.lists(st.tuples(st.integers(0, 5000), st.integers(1, 5000)), max_size=50),
    most=st.integers(1, ANY),
)
def test_the_longer_it_is_the_longer_it_is_expected_to_be(pairs, most):
    predictor = learned(*pairs)
    means = [predictor.mean_from(100, most, came) for came in range(1, 6000, 250)]
    assert all(mean >= came for mean, came in zip(means, range(1, 6000, 250), strict=True))
    assert all(later >= 0.999 * mean for mean, later in pairwise(means))
