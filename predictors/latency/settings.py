"""What can be set about the latency model, with the reason for each default."""

import math
from dataclasses import dataclass

from predictors.options import number, whole

OWNER = "latency"
ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencySettings:
    """How the latency model is trained and judged.

    `level`              the quantile, in (0, 1)
    `minimum_rows`       measured rows of a target below which its prior answers alone; None: 20, or as many
                         as the quantile takes, half of them held out
    `holdout_share`      newest share of the rows that judges and calibrates, never more than
    `holdout_rows`       this many; None: 100, few enough not to age the model, or what the quantile takes
    `half_life_rows`     a row's weight in training halves every so many newer rows, down to
    `least_weight`       this much, so that a regime seen long ago is not forgotten
    `prior_rows`         rows that the prior's shape is worth: few, for it may be another engine's
    `bend_rows`          rows that the smoothness of each input's effect is worth: steadies what lies beyond
    `most_shift`         held-out rows of which half lie further off than this factor are not believed
    `margin`             a candidate may be worse than the best alternative by this share of its error

    Raises:
        OptionError: a value out of range, or a holdout too small to hold the quantile.
    """

    level: float = 0.9
    minimum_rows: int | None = None
    holdout_share: float = 0.2
    holdout_rows: int | None = None
    half_life_rows: float = 500.0
    least_weight: float = 0.05
    prior_rows: float = 0.03
    bend_rows: float = 0.003
    most_shift: float = 3.0
    margin: float = 0.25

    def __post_init__(self) -> None:
        number(OWNER, "level", self.level, above=0.0, up_to=0.999)
        number(OWNER, "holdout_share", self.holdout_share, above=0.0, up_to=0.9)
        number(OWNER, "half_life_rows", self.half_life_rows, above=0.0)
        number(OWNER, "least_weight", self.least_weight, above=0.0, up_to=1.0)
        number(OWNER, "prior_rows", self.prior_rows, above=0.0)
        number(OWNER, "most_shift", self.most_shift, above=1.0)
        number(OWNER, "bend_rows", self.bend_rows, above=-ROUNDING)
        number(OWNER, "margin", self.margin, above=-1.0)
        whole(OWNER, "holdout_rows", self.most_holdout, low=self.least_holdout)
        whole(OWNER, "minimum_rows", self.least_rows, low=2 * self.least_holdout)

    @property
    def least_holdout(self) -> int:
        """Rows that split-conformal calibration needs at least: level / (1 - level), rounded up."""
        return max(1, math.ceil(self.level / (1.0 - self.level) - ROUNDING))

    @property
    def least_rows(self) -> int:
        """`minimum_rows`, or what stands for it."""
        return max(20, 2 * self.least_holdout) if self.minimum_rows is None else self.minimum_rows

    @property
    def most_holdout(self) -> int:
        """`holdout_rows`, or what stands for it."""
        return max(100, self.least_holdout) if self.holdout_rows is None else self.holdout_rows

    def holdout_of(self, rows: int) -> int:
        """How many of `rows` are held out."""
        return min(max(round(self.holdout_share * rows), self.least_holdout), self.most_holdout)
