"""One latency from several runs: the median of those that are no outliers, and how far they spread.

    spread   = 1.4826 · median(|x - median|) / median          (MAD: equals the standard deviation for normal
             x)
    outlier    |x - median| > max(3 · 1.4826 · MAD, 5 % of the median)

The 5 % keep runs that agree to a few per cent from calling each other outliers; with three runs, one that
went wrong is left out. Outliers are counted and said. Source: Iglewicz and Hoaglin, How to Detect and Handle
Outliers (1993), with 3 for their 3.5. Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

MAD_TO_DEVIATION = 1.4826
OUTLIER_DEVIATIONS = 3.0
OUTLIER_SHARE = 0.05
STEADY = 0.05
"""Spread up to which runs are taken to agree."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The median in seconds of the `runs` that are no outliers, and their relative spread."""

    value_s: float
    spread: float
    runs: int
    outliers: int

    @property
    def steady(self) -> bool:
        """Whether the runs agree well enough."""
        return self.spread <= STEADY


def summarise(values_s: Sequence[float]) -> Summary:
    """The summary of at least one latency, each above zero."""
    middle = median(values_s)
    allowed = max(OUTLIER_DEVIATIONS * _deviation(values_s), OUTLIER_SHARE * middle)
    kept = [value for value in values_s if abs(value - middle) <= allowed]
    value_s = median(kept)
    return Summary(
        value_s=value_s,
        spread=_deviation(kept) / value_s,
        runs=len(kept),
        outliers=len(values_s) - len(kept),
    )


def _deviation(values: Sequence[float]) -> float:
    middle = median(values)
    return MAD_TO_DEVIATION * median([abs(value - middle) for value in values])
