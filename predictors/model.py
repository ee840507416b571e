"""The interface between a forecasting method and the behaviour that all predictors share.

A model turns equally spaced values into a prediction and knows nothing else: warm-up, cleaning, bounded
history, failures, residual quantiles and the refit schedule belong to the guard (`guard.py`) that composes
it. A new predictor is one file with one class of this shape and one row in `registry.py`.
"""

from dataclasses import dataclass
from typing import Protocol

from predictors.forecast import Distribution, FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """What a model needs from the guard.

    `minimum_points`: measured values below which the constant predictor answers. `max_points`: length of
    the window handed to `fit`. `refit_every`: observations between two scheduled fits, 0 for never. `lazy`:
    the model is brought up to date when a forecast is asked for, not at each observation; it must then give
    its own distribution, because nobody follows its past forecasts.
    """

    name: str
    minimum_points: int
    max_points: int
    refit_every: int = 0
    lazy: bool = False

    def __post_init__(self) -> None:
        if self.lazy and self.refit_every < 1:
            raise ValueError(f"{self.name}: a lazy model needs refit_every >= 1, or history would be lost")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prediction:
    """A model's answer: `mean` of shape (horizon,), and its own distribution where it has one."""

    mean: FloatArray
    distribution: Distribution | None = None


class Model(Protocol):
    """A forecasting method. Each of the three methods may raise `ModelError`, and only that, for a failure.

    State follows from the last `fit` and the updates since: fitting starts afresh. Instances can be pickled.
    """

    traits: Traits

    @property
    def stale(self) -> bool:
        """True when recent errors say that the fit no longer holds; the guard then fits again."""

    def fit(self, values: FloatArray) -> None:
        """Learn from a window of values >= 0, oldest first; NaN is an interval that was not measured."""

    def update(self, value: float) -> None:
        """Move on by one interval; NaN when it was not measured."""

    def predict(self, horizon: int) -> Prediction:
        """The next `horizon` intervals. Changes nothing."""
