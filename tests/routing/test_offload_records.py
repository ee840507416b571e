"""What is measured and recorded around offload: transfers, traces, hit rates, utilisation."""

from math import inf, nan

import numpy as np
import pytest

from headway.routing import RouteClass
from headway.routing.offload import OffloadReason, OffloadTrace
from headway.routing.predict.corrections import TransferFactor
from headway.simulation.utilisation import MOST_SAMPLES, UtilisationSamples


def test_transfers_follow_the_rule_until_measured_and_the_measurements_then() -> None:
    estimate = TransferFactor()
    assert estimate.seconds(0.4) == 0.4
    once = estimate.observe(0.4, 0.8)
    assert once.seconds(0.4) == pytest.approx(0.4 * 1.1)
    for _ in range(200):
        once = once.observe(0.2, 0.4)
    assert once.seconds(1.0) == pytest.approx(2.0)
    assert once.measured == 201


@pytest.mark.parametrize("outlier_s", [1e9, -1e9])
def test_one_outlier_moves_the_estimate_by_its_smoothing_and_the_rest_bring_it_back(outlier_s) -> None:
    estimate = TransferFactor(factor=2.0)
    struck = estimate.observe(0.3, outlier_s)
    assert abs(struck.factor - estimate.factor) == pytest.approx(0.1)
    for _ in range(100):
        struck = struck.observe(0.3, 0.6)
    assert struck.factor == pytest.approx(2.0, rel=1e-3)


def test_errors_as_often_long_as_short_leave_the_estimate_where_it_is() -> None:
    """That of an expected wait may be larger than the transfer, so that some measurements are below 0."""
    errors_s = np.random.default_rng(0).uniform(-0.3, 0.3, 4000)
    estimate, factors = TransferFactor(), []
    for error_s in errors_s:
        estimate = estimate.observe(0.1, 0.15 + error_s)
        factors.append(estimate.factor)
    assert np.mean(factors[500:]) == pytest.approx(1.5, rel=0.05)


def test_the_factor_has_bounds() -> None:
    high = low = TransferFactor()
    for _ in range(250):
        high, low = high.observe(0.1, 1e6), low.observe(0.1, -1e6)
    assert (low.factor, high.factor) == (0.05, 20.0)


@pytest.mark.parametrize(("nominal_s", "measured_s"), [(0.0, 1.0), (1.0, nan), (nan, 1.0), (1.0, inf)])
def test_measurements_that_say_nothing_change_nothing(nominal_s: float, measured_s: float) -> None:
    estimate = TransferFactor().observe(1.0, 3.0)
    assert estimate.observe(nominal_s, measured_s) == estimate


def test_a_trace_has_the_documents_stamps() -> None:
    trace = OffloadTrace(
        request_id="r",
        route_class=RouteClass.HEAVY_P2P,
        offload_decision_reason=OffloadReason.P_IDLE_D_BUSY,
        t_proxy_recv=1.0,
        t_prefill_sent=1.25,
        t_prefill_done=3.25,
        t_first_token=3.75,
        t_done=9.0,
    )
    assert trace.breakdown() == {
        "request_id": "r",
        "route_class": "HEAVY_P2P",
        "offload_decision_reason": "p_idle_d_busy",
        "t_proxy_recv": 1.0,
        "t_prefill_sent": 1.25,
        "t_prefill_done": 3.25,
        "t_first_token": 3.75,
        "t_done": 9.0,
    }


def test_what_has_not_happened_has_no_stamp() -> None:
    trace = OffloadTrace(
        request_id="r",
        route_class=RouteClass.WARM,
        offload_decision_reason=OffloadReason.BELOW_THRESHOLD,
        t_proxy_recv=1.0,
    )
    assert trace.breakdown(shift_s=2.0) == {
        "request_id": "r",
        "route_class": "WARM",
        "offload_decision_reason": "below_threshold",
        "t_proxy_recv": 3.0,
        "t_prefill_sent": None,
        "t_prefill_done": None,
        "t_first_token": None,
        "t_done": None,
    }


def test_utilisation_is_sampled_at_its_interval() -> None:
    of = UtilisationSamples(start_s=100.0, busy_s=50.0)
    for at_s, busy_s, kv_usage in (
        (104.9, 54.0, 0.9),
        (105.0, 54.0, 0.5),
        (115.0, 56.0, 0.3),
        (120.0, 61.0, 0.1),
    ):
        of.offer(at_s, busy_s, kv_usage)
    assert of.summary() == {
        "mean_busy": pytest.approx(11.0 / 20.0),
        "mean_kv_usage": pytest.approx(0.3),
        "max_kv_usage": 0.5,
        "samples": [[105.0, pytest.approx(0.8), 0.5], [115.0, pytest.approx(0.2), 0.3], [120.0, 1.0, 0.1]],
    }


def test_means_are_of_all_samples_those_that_are_not_kept_included() -> None:
    of = UtilisationSamples()
    for number in range(1, 2 * MOST_SAMPLES + 1):
        of.offer(5.0 * number, 5.0 * min(number, MOST_SAMPLES), float(number <= MOST_SAMPLES))
    summary = of.summary()
    assert [sample[1:] for sample in summary.pop("samples")] == [[0.0, 0.0]] * MOST_SAMPLES
    assert summary == {"mean_busy": 0.5, "mean_kv_usage": 0.5, "max_kv_usage": 1.0}
