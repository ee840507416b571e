"""Forecasts of a pool's work, from the work of past intervals, by many simple predictors at once.

Work is in replica-seconds per second: how many replicas the interval would have kept busy. Of a series y,
with smoothing a and (for trends) b, lead of h intervals:

    level     s ← s + a (y − s)
    trend     s ← s + g + a (y − s − g),   g ← φ g + b (s − s' − φ g),   forecast s + g (φ + … + φ^h)

Holt's method with a damped trend (Gardner & McKenzie, 1985), φ = 0.95. At the start a is 1, 1/2, 1/3, …
until it falls to its value, so that the first values weigh alike. On top of each of them:

    as it is
    peak      the largest forecast of the last m intervals: holds what it had for a while
    swing     the largest ratio of forecast to slow trend of the last m intervals, times the slow trend: holds
              a margin, not a count, and so falls with the load

Which of them is worth its cost is not decided here: see `judging`.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from interp.jit import compiled

FloatArray = NDArray[np.float64]

DAMPING = 0.95
SMOOTHINGS = ((0.5, 0.0), (0.2, 0.0), (0.1, 0.0), (0.05, 0.0), (0.4, 0.1), (0.2, 0.05), (0.1, 0.03))
"""(a, b) of the predictors; b = 0: no trend."""

SLOW = 6
"""Position in SMOOTHINGS of the slow trend that swings are measured against."""

MEMORIES = (10, 40)
"""Intervals over which peaks and swings are remembered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Predictor:
    """One row of `forecasts`: smoothing a, trend b, and whether it holds a peak or a swing of `memory`."""

    smoothing: float
    trend: float
    holds: str = ""
    memory: int = 1

    def describe(self) -> str:
        """For an operator."""
        base = f"trend {self.smoothing:g}" if self.trend else f"level {self.smoothing:g}"
        return f"{base}, {self.holds} of {self.memory} intervals" if self.holds else base


PREDICTORS = tuple(
    predictor
    for a, b in SMOOTHINGS
    for predictor in (
        Predictor(smoothing=a, trend=b),
        *(
            Predictor(smoothing=a, trend=b, holds=holds, memory=memory)
            for memory in MEMORIES
            for holds in ("peak", "swing")
        ),
    )
)
"""The rows of `forecasts`, in order."""


def forecasts(work: FloatArray, lead: int) -> FloatArray:
    """What each of PREDICTORS said after each interval for `lead` intervals later: f8[len(PREDICTORS), N]."""
    a, b = np.array(SMOOTHINGS).T
    return _forecasts(work, lead, a.copy(), b.copy(), np.array(MEMORIES, np.int64))


@compiled
def _smooth(work: FloatArray, lead: int, a: float, b: float, out: FloatArray) -> None:
    level, growth, reach = 0.0, 0.0, 0.0
    for step in range(1, lead + 1):
        reach += DAMPING**step
    for i in range(len(work)):
        share = max(a, 1.0 / (i + 1))
        before = level if i > 0 else work[0]
        carried = growth if b > 0.0 else 0.0
        level = before + carried + share * (work[i] - before - carried)
        if b > 0.0 and i > 0:
            weight = b if i > 5 else 0.3 * b
            growth = DAMPING * growth + weight * (level - before - DAMPING * growth)
        out[i] = max(0.0, level + growth * reach)


@compiled
def _hold(values: FloatArray, trend: FloatArray, memory: int, peak: FloatArray, swing: FloatArray) -> None:
    for i in range(len(values)):
        most, ratio = 0.0, 0.0
        for k in range(max(0, i - memory + 1), i + 1):
            most = max(most, values[k])
            if trend[k] > 0.0:
                ratio = max(ratio, values[k] / trend[k])
        peak[i], swing[i] = most, ratio * trend[i]


@compiled
def _forecasts(
    work: FloatArray, lead: int, a: FloatArray, b: FloatArray, memories: NDArray[np.int64]
) -> FloatArray:
    each = 1 + 2 * len(memories)
    out = np.zeros((len(a) * each, len(work)))
    slow = np.zeros(len(work))
    _smooth(work, lead, a[SLOW], b[SLOW], slow)
    for place in range(len(a)):
        row = place * each
        _smooth(work, lead, a[place], b[place], out[row])
        for m in range(len(memories)):
            _hold(out[row], slow, memories[m], out[row + 1 + 2 * m], out[row + 2 + 2 * m])
    return out
