"""A mean over seeds with its 95 % confidence interval: x̄ ± t(0.975, n − 1) · s / √n (Student's t).

Seeds are independent runs, so the interval holds for however correlated the waits within a run are.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import isnan, nan, sqrt

import numpy as np

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Mean and half the width of its interval; the half width is NaN with one seed, both with none."""

    mean: float
    half_width: float

    @property
    def is_below_zero(self) -> bool:
        """Whether the whole interval is negative."""
        return self.mean + self.half_width < 0

    @property
    def is_above_zero(self) -> bool:
        """Whether the whole interval is positive."""
        return self.mean - self.half_width > 0


def estimate(values: Iterable[float]) -> Estimate:
    """The mean of one value per seed; seeds without a value (NaN) are left out."""
    from scipy.stats import t

    known = np.array([value for value in values if not isnan(value)])
    if not len(known):
        return Estimate(mean=nan, half_width=nan)
    if len(known) == 1:
        return Estimate(mean=float(known[0]), half_width=nan)
    spread = float(known.std(ddof=1)) / sqrt(len(known))
    half_width = float(t.ppf((1 + CONFIDENCE) / 2, len(known) - 1)) * spread
    return Estimate(mean=float(known.mean()), half_width=half_width)
