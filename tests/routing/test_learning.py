"""Samples, live errors, the learned correction and the safety factors."""

from math import isnan, nan

import numpy as np
import pytest

from headway.config.routing import PredictionSettings
from headway.routing import RequestSlo
from headway.routing.predict.corrections import LEVEL, MOST_SAFETY, SafetyFactor
from headway.routing.predict.evidence import REMEMBERED, ROOM, RatioBounds
from headway.routing.predict.learning import RecordedPrior, Training, training_samples
from tests.routing.routers import MIXED, SPLIT, placed, request, router

SLO = RequestSlo(ttft_s=30.0, tpot_s=1.0)


def serve(made, count, slowness, generator, *, by_profile=False):
    """Requests whose TTFT and TPOT are `slowness` times what is predicted, or what the profile says."""
    now_s = 0.0
    for number in range(count):
        now_s += 10.0
        name, tokens = f"r{number}-{slowness}", int(generator.integers(100, 8000))
        placement = placed(
            made.submit(now_s, request(name, arrival_s=now_s, input_tokens=tokens, slo=SLO, critical=True))
        )
        ttft_s, tpot_s = placement.predicted_ttft_s, placement.predicted_tpot_s
        if by_profile:
            tracked = made.choices[name].tracked
            ttft_s, tpot_s = tracked[0].prior_ttft_s, tracked[-1].prior_tpot_s
        first_s = now_s + slowness * ttft_s
        made.prefilled(first_s, name)
        made.first_token(first_s, name)
        made.complete(first_s + 99 * slowness * tpot_s, name, 100)


@pytest.mark.parametrize("pools", [MIXED, SPLIT])
def test_a_trained_model_corrects_predictions(pools) -> None:
    made, generator = router("slo", pools), np.random.default_rng(0)
    before = placed(made.submit(0.0, request("a", slo=SLO)))
    made.failed(0.0, "a", retry=False)
    serve(made, 300, 2.0, generator, by_profile=True)
    samples = made.take_samples()
    assert made.take_samples() == ()
    assert len(samples) == 300 * (2 if pools is SPLIT else 1)
    training = Training(PredictionSettings())
    training.add(samples)
    assert training.train()
    assert training.model is not None
    assert training.model.ttft.prior is None
    made.use_model(training.model)
    after = placed(made.submit(1e5, request("b", arrival_s=1e5, slo=SLO)))
    assert after.predicted_ttft_s == pytest.approx(2.0 * before.predicted_ttft_s, rel=0.15)
    assert after.predicted_tpot_s == pytest.approx(2.0 * before.predicted_tpot_s, rel=0.15)


def test_live_errors_are_those_of_the_predictions_acted_upon() -> None:
    made = router("slo")
    serve(made, 100, 2.0, np.random.default_rng(1))
    errors = made.metrics()["prediction"]
    assert errors["ttft", "pairs"] == errors["tpot", "pairs"] == 100
    assert errors["ttft", "error"] == pytest.approx(0.5, abs=1e-6)
    assert errors["tpot", "bias"] == pytest.approx(-0.5, abs=1e-6)


def test_profiles_without_a_tracker_yield_no_samples() -> None:
    made = router("least_load")
    made.submit(0.0, request())
    made.first_token(0.1, "r")
    made.complete(1.0, "r", 10)
    assert made.take_samples() == ()


def test_recorded_priors_forget_the_oldest() -> None:
    prior = RecordedPrior(most=2)
    for number in range(3):
        prior.record((float(number),) * 8, float(number))
    features = training_samples([]).features.from_table(np.array([[number] * 8 for number in range(3)]))
    answers = prior(features)
    assert isnan(answers[0])
    assert answers[1:].tolist() == [1.0, 2.0]


def test_the_safety_factor_holds_for_its_share() -> None:
    generator, calibration = np.random.default_rng(0), SafetyFactor()
    measured = np.exp(generator.normal(0.1, 0.3, 20_000))
    for value in measured:
        calibration.observe(1.0, value)
    assert np.mean(measured <= calibration.factor) == pytest.approx(LEVEL, abs=0.05)


def test_the_safety_factor_has_bounds_and_ignores_nothing_said() -> None:
    calibration = SafetyFactor()
    first = calibration.factor
    calibration.observe(nan, 1.0)
    calibration.observe(1.0, nan)
    assert calibration.factor == first
    for _ in range(1000):
        calibration.observe(1.0, 100.0)
    assert calibration.factor == pytest.approx(MOST_SAFETY)
    for _ in range(10_000):
        calibration.observe(1.0, 0.01)
    assert calibration.factor == 1.0


def test_bounds_are_those_of_the_ratios_that_are_remembered() -> None:
    bounds, draw = RatioBounds(), np.random.default_rng(3)
    ratios = draw.lognormal(0.0, 0.3, REMEMBERED + 300)
    for ratio in ratios:
        bounds.observe(1.0, float(ratio))
    least, most = np.quantile(ratios[-REMEMBERED:], (0.01, 0.99))
    assert bounds.bounds() == (least / ROOM, most * ROOM)


def test_a_request_that_is_broken_off_teaches_its_ttft_and_nothing_else() -> None:
    made, broken = router("slo"), router("slo")
    for each in (made, broken):
        serve(each, 50, 1.0, np.random.default_rng(1))
        each.take_samples()
    stays, lengths = broken.state.latency.stay_s, broken.metrics()["prediction"]["tpot", "pairs"]
    placement = placed(broken.submit(1e4, request("x", arrival_s=1e4, slo=SLO)))
    assert placement.predicted_ttft_s is not None
    first_s = 1e4 + 1.5 * placement.predicted_ttft_s
    broken.first_token(first_s, "x")
    broken.failed(first_s + 0.01, "x", retry=False)
    (sample,) = broken.take_samples()
    assert sample.ttft_s == pytest.approx(first_s - 1e4)
    assert isnan(sample.tpot_s)
    assert broken.corrections["ttft"] > made.corrections["ttft"]
    assert broken.corrections["tpot"] == made.corrections["tpot"]
    assert broken.state.latency.stay_s == stays
    assert broken.metrics()["prediction"]["tpot", "pairs"] == lengths
    placed(broken.submit(1e4 + 9.0, request("y", arrival_s=1e4 + 9.0, slo=SLO)))
    broken.failed(1e4 + 9.1, "y", retry=False)
    assert broken.take_samples() == (), "one without a first token says nothing"
