"""Warm start: a predictor that has seen a trace before its first live interval.

The trace is cut into intervals elsewhere (workload, planning); here it is a sequence of numbers like any
other. Costs: constant and Kalman do the work of each observation; ARIMA and Prophet, being lazy, fit once
afterwards.
"""

from collections.abc import Iterable

from predictors.registry import Predictor


def warm_start(predictor: Predictor, values: Iterable[float]) -> None:
    """Observe `values` in order, oldest first, NaN where an interval was not measured.

    Raises:
        ArgumentError: a value is not a number.
    """
    for value in values:
        predictor.observe(value)
