"""What is measured and recorded around offload: transfers, traces, hit rates, utilisation."""

from math import inf, nan

import numpy as np
import pytest

from headway.engine import EngineRules
from headway.routing import RouteClass
from headway.routing.fleet.fleet import RoutedFleet
from headway.routing.offload import OffloadReason, OffloadTrace
from headway.routing.predict.corrections import Handovers
from headway.simulation.utilisation import MOST_SAMPLES, UtilisationSamples


def transfers(factor: float = 1.0) -> Handovers:
    one = Handovers(RoutedFleet(), EngineRules(), lambda table, slot, tokens: nan)
    one.start_from(factor)
    return one


@pytest.mark.parametrize("outlier_s", [1e9, -1e9])
def test_one_outlier_moves_the_factor_by_its_smoothing_and_the_rest_bring_it_back(outlier_s) -> None:
    one = transfers(2.0)
    one.observe(0.3, outlier_s)
    assert abs(one.factor - 2.0) == pytest.approx(0.1)
    for _ in range(100):
        one.observe(0.3, 0.6)
    assert one.factor == pytest.approx(2.0, rel=1e-3)
    assert one.measured == 101


def test_errors_as_often_long_as_short_leave_the_factor_where_it_is() -> None:
    """That of an expected wait may be larger than the transfer, so that some measurements are below 0."""
    errors_s = np.random.default_rng(0).uniform(-0.3, 0.3, 4000)
    one, factors = transfers(), []
    for error_s in errors_s:
        one.observe(0.1, 0.15 + error_s)
        factors.append(one.factor)
    assert np.mean(factors[500:]) == pytest.approx(1.5, rel=0.05)


def test_the_factor_has_bounds() -> None:
    high, low = transfers(), transfers()
    for _ in range(250):
        high.observe(0.1, 1e6)
        low.observe(0.1, -1e6)
    assert (low.factor, high.factor) == (0.05, 20.0)


@pytest.mark.parametrize(("nominal_s", "measured_s"), [(0.0, 1.0), (1.0, nan), (nan, 1.0), (1.0, inf)])
def test_measurements_that_say_nothing_change_nothing(nominal_s: float, measured_s: float) -> None:
    one = transfers(3.0)
    one.observe(nominal_s, measured_s)
    assert (one.factor, one.measured) == (3.0, 0)


def test_a_trace_has_the_documents_stamps_of_what_has_happened() -> None:
    trace = OffloadTrace(
        request_id="r",
        route_class=RouteClass.WARM,
        offload_decision_reason=OffloadReason.BELOW_THRESHOLD,
        t_proxy_recv=1.0,
        t_prefill_sent=1.25,
    )
    assert trace.breakdown(shift_s=2.0) == {
        "request_id": "r",
        "route_class": "WARM",
        "offload_decision_reason": "below_threshold",
        "t_proxy_recv": 3.0,
        "t_prefill_sent": 3.25,
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
