"""How good the predictions are that were acted upon: streaming errors of one target, for export.

Each prediction is paired with its outcome when the request has been measured. With y the outcome, p the
centre and q the quantile, the figures are exponentially weighted means over pairs, weight a^age, a =
2^(-1/half-life), divided by the sum of the weights, so that they hold from the first pair on:

    error      |p / y - 1|        mean absolute percentage error, as a share
    bias       p / y - 1          signed: above 0, latencies are overestimated
    coverage   [y ≤ q]            to be compared with the level of the quantile

A pair in which one of the three is not a positive, finite number is counted as `skipped` and changes nothing.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from predictors.errors import ArgumentError
from predictors.latency.settings import OWNER
from predictors.options import number


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorFigures:
    """Shares; NaN before the first pair. `pairs` and `skipped` count since the beginning."""

    error: float
    bias: float
    coverage: float
    pairs: int
    skipped: int


class LiveError:
    """Pairs predictions of one target with outcomes. Not thread-safe; pickles; constant memory."""

    def __init__(self, *, half_life_pairs: float = 500.0) -> None:
        """Half of a figure's weight lies in the last `half_life_pairs` pairs.

        Raises:
            OptionError: a half-life that is not a positive number.
        """
        self._decay = 0.5 ** (1.0 / number(OWNER, "half_life_pairs", half_life_pairs, above=0.0))
        self._sums = np.zeros(4)
        self._pairs = 0
        self._skipped = 0

    def observe(
        self, *, predicted_s: npt.ArrayLike, quantile_s: npt.ArrayLike, measured_s: npt.ArrayLike
    ) -> None:
        """Take in pairs in the order in which they were measured; numbers, or arrays of one length.

        Raises:
            ArgumentError: the lengths differ.
        """
        try:
            given = np.broadcast_arrays(*np.atleast_1d(predicted_s, quantile_s, measured_s))
            table = np.stack(given).astype(np.float64)
        except (TypeError, ValueError) as error:
            raise ArgumentError(f"live error: columns must be numbers of one length: {error}") from error
        sound = (np.isfinite(table) & (table > 0.0)).all(axis=0)
        self._skipped += int((~sound).sum())
        predicted, quantile, measured = table[:, sound]
        relative = predicted / measured - 1.0
        terms = np.stack([np.ones_like(relative), np.abs(relative), relative, measured <= quantile])
        weights = self._decay ** np.arange(len(relative))[::-1]
        self._sums = self._sums * self._decay ** len(relative) + terms @ weights
        self._pairs += len(relative)

    def figures(self) -> ErrorFigures:
        """The figures as of now."""
        total, *sums = self._sums.tolist()
        error, bias, coverage = (value / total if total > 0.0 else math.nan for value in sums)
        return ErrorFigures(
            error=error, bias=bias, coverage=coverage, pairs=self._pairs, skipped=self._skipped
        )
