"""The training window: what is kept, what goes first, what never enters."""

import pickle

import numpy as np
import pytest
from latency_cases import measured

from predictors import OptionError
from predictors.latency import LatencyFeatures, LatencySamples, Target, TrainingWindow


def rows(ttft_s: list[float], tpot_s: list[float] | None = None, **features) -> LatencySamples:
    given = {
        "kv_usage": 0.2,
        "input_tokens": 100,
        "waiting": 0,
        "running": np.full(len(ttft_s), 8.0),
        **features,
    }
    unmeasured = [np.nan] * len(ttft_s)
    return LatencySamples(
        features=LatencyFeatures.of(**given), ttft_s=ttft_s, tpot_s=unmeasured if tpot_s is None else tpot_s
    )


def held(window: TrainingWindow, target: Target = Target.TTFT) -> list[float]:
    return window.rows(target)[1].tolist()


def test_a_stratum_keeps_its_newest_rows_in_order():
    window = TrainingWindow(stratum_rows=3)
    window.add(rows([1, 2, 3, 4, 5]))
    assert held(window) == [3, 4, 5]
    assert window.size(Target.TTFT) == 3
    assert window.arrived == 5


def test_quiet_hours_push_out_quiet_rows_only():
    window = TrainingWindow(stratum_rows=3)
    window.add(rows([9.0], waiting=100, kv_usage=0.95))
    window.add(rows([0.1] * 50))
    assert held(window) == [9.0, 0.1, 0.1, 0.1]
    assert window.strata(Target.TTFT) == 2


def test_above_the_overall_bound_the_fullest_stratum_loses_its_oldest():
    window = TrainingWindow(stratum_rows=10, most_rows=4)
    window.add(rows([9.0], waiting=100))
    window.add(rows([1, 2, 3, 4]))
    assert held(window) == [9.0, 2, 3, 4]


def test_the_window_never_outgrows_its_bounds():
    window = TrainingWindow(stratum_rows=20, most_rows=150)
    for seed in range(10):
        window.add(measured(200, seed=seed))
        for target in Target:
            assert len(held(window, target)) == window.size(target) <= 150
    assert window.size(Target.TTFT) == 150


def test_rows_come_back_in_order_of_arrival_with_their_features():
    samples = measured(100, seed=1)
    window = TrainingWindow()
    window.add(samples.rows(slice(50)))
    window.add(samples.rows(slice(50, None)))
    features, outcome = window.rows(Target.TPOT)
    np.testing.assert_array_equal(features.table(), samples.features.table())
    np.testing.assert_array_equal(outcome, samples.tpot_s)


def test_a_row_counts_for_the_targets_that_it_measured():
    window = TrainingWindow()
    window.add(rows([1.0, np.nan, 0.0], [np.nan, 0.02, 0.03]))
    assert held(window) == [1.0]
    assert held(window, Target.TPOT) == [0.02, 0.03]


@pytest.mark.parametrize(
    ("samples", "reason"),
    [
        (rows([np.nan]), "unmeasured"),
        (rows([0.0]), "unmeasured"),
        (rows([np.inf]), "not_finite"),
        (rows([1.0], kv_usage=np.nan), "not_finite"),
        (rows([1.0], input_tokens=np.inf), "not_finite"),
        (rows([-1.0]), "negative"),
        (rows([1.0], [-0.1]), "negative"),
        (rows([1.0], waiting=-1), "negative"),
        (rows([3601.0]), "too_large"),
        (rows([1.0], kv_usage=1.5), "too_large"),
        (rows([1.0], prefix_score=2.0), "too_large"),
        (rows([1.0], input_tokens=1e10), "too_large"),
    ],
)
def test_absurd_rows_never_enter_and_are_counted(samples, reason):
    window = TrainingWindow()
    assert window.add(samples) == 0
    assert window.refused == {reason: 1}
    assert held(window) == held(window, Target.TPOT) == []


def test_sound_rows_enter_beside_absurd_ones():
    window = TrainingWindow()
    assert window.add(rows([1.0, -1.0, 2.0])) == 2
    assert held(window) == [1.0, 2.0]


def test_a_window_survives_pickling():
    window = TrainingWindow(stratum_rows=5)
    window.add(measured(50, seed=1))
    restored = pickle.loads(pickle.dumps(window))
    assert held(restored) == held(window)
    restored.add(measured(50, seed=2))
    window.add(measured(50, seed=2))
    assert held(restored) == held(window)


@pytest.mark.parametrize("options", [{"stratum_rows": 0}, {"most_rows": 0}, {"longest_s": 0.0}])
def test_bounds_that_make_no_sense_are_refused(options):
    with pytest.raises(OptionError, match="latency"):
        TrainingWindow(**options)
