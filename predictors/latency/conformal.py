"""Split-conformal calibration of a quantile (Vovk et al. 2005; Romano, Patterson & Candès 2019).

A quantile curve q(x) was fitted without n held-out rows. With the ratios r_i = y_i / q(x_i) of those rows
sorted, let k = ⌈(n + 1) level⌉; the calibrated curve is r_(k) · q(x).

What is guaranteed: if the held-out rows and the next one are exchangeable, P(y ≤ r_(k) q(x)) ≥ level, and at
most level + 1 / (n + 1) where ratios do not tie, whatever the curve and the distribution. What is not: it
holds on average over loads, not at each load; over draws of the held-out rows, not for this one factor, whose
coverage varies by about √(level (1 - level) / n); and live traffic drifts, so rows of the past are not
exchangeable with the next. The newest rows are held out to keep that last gap small, and live coverage is
measured (`live.py`).
"""

import math

import numpy as np

from predictors.latency.features import FloatArray
from predictors.latency.settings import ROUNDING

LARGEST_FACTOR = 100.0
"""A calibration beyond this, up or down, says that the rows are broken rather than that the curve is."""


def conformal_factor(outcome_s: FloatArray, quantile_s: FloatArray, level: float) -> float:
    """r_(k) from held-out outcomes (n,) and the curve's answers (n,), both > 0.

    With fewer rows than level / (1 - level) there is no such ratio; the largest is taken, and nothing is
    guaranteed. Without any row the factor is 1.
    """
    if len(outcome_s) == 0:
        return 1.0
    ratios = np.sort(outcome_s / quantile_s)
    rank = math.ceil((len(ratios) + 1) * level - ROUNDING)
    factor = float(ratios[min(rank, len(ratios)) - 1])
    return min(max(factor, 1.0 / LARGEST_FACTOR), LARGEST_FACTOR)
