"""Forecasts of a pool's work, from the work of past intervals, by several levels at once.

Work is in replica-seconds per second: how many replicas the interval would have kept busy. Of a series y,
with smoothing a:

    s ← s + a (y − s)          the forecast for any time to come is s

Simple exponential smoothing (Brown, 1956). At the start a is 1, 1/2, 1/3, … until it falls to its value, so
that the first values weigh alike. Which of them is worth its cost, times which safety factor, is not decided
here: see `judging`.
"""

import numpy as np
from numpy.typing import NDArray

from interp.jit import compiled

FloatArray = NDArray[np.float64]

SMOOTHINGS = (0.5, 0.2, 0.1, 0.05)
"""a of each row of `forecasts`, from quick to slow."""


def forecasts(work: FloatArray) -> FloatArray:
    """The level by each of SMOOTHINGS after each interval: f8[len(SMOOTHINGS), N]."""
    levels = np.empty((len(SMOOTHINGS), len(work)))
    for row, smoothing in enumerate(SMOOTHINGS):
        _smooth(work, smoothing, levels[row])
    return levels


@compiled
def _smooth(work: FloatArray, smoothing: float, out: FloatArray) -> None:
    level = 0.0
    for i in range(len(work)):
        level += max(smoothing, 1.0 / (i + 1)) * (work[i] - level)
        out[i] = level
