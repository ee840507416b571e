"""Latency histogram: quantiles as numpy's within its resolution, exact means, bounded memory."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.loadgen.tally import Histogram
from headway.simulation.results import Latency
from tests.memory import grown_bytes


def filled(values: list[float], weight: float = 1.0) -> Histogram:
    histogram = Histogram()
    for value in values:
        histogram.add(value, weight)
    return histogram


@given(st.lists(st.floats(1e-4, 100.0), min_size=1, max_size=300))
def test_same_figures_as_the_simulator(values: list[float]) -> None:
    theirs = Latency()
    theirs.add(np.array(values))
    assert filled(values).summary() == pytest.approx(theirs.summary())


def test_weights_count() -> None:
    histogram = filled([0.01], weight=99.0)
    histogram.add(1.0)
    assert histogram.mean_s == pytest.approx((0.99 + 1.0) / 100)
    assert histogram.quantile(0.98) == pytest.approx(0.01, rel=0.003)
    assert histogram.quantile(1.0) == pytest.approx(1.0, rel=0.003)


def test_nothing_measured() -> None:
    assert Histogram().summary() == dict.fromkeys(("mean", "p50", "p90", "p95", "p99"))


@pytest.mark.parametrize("value", [-1e-9, float("nan"), float("inf")])
def test_nonsense_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="latency"):
        Histogram().add(value)


def test_memory_is_bounded() -> None:
    histogram = filled(np.geomspace(1e-6, 1e6, 50_000).tolist())
    extremes = np.geomspace(1e-300, 1e300, 10_000).tolist()
    assert grown_bytes(lambda: [histogram.add(value) for value in extremes]) < 1_000
