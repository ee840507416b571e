"""From what was measured to what enters the history.

| observation                              | result                                                        |
|------------------------------------------|---------------------------------------------------------------|
| NaN or infinite, after the start         | a gap: time moves on, no value; counted in `missing`          |
| NaN or infinite, before the start        | counted in `missing`, nothing else                            |
| negative                                 | taken as 0 (a load cannot be negative); counted in `clipped`  |
| 0 before the first positive observation  | skipped (service not started); counted in `leading_zeros`     |
| 0 afterwards                             | a value like any other                                        |

The series starts at its first positive observation.
"""

import math

import numpy as np

from predictors.errors import ArgumentError
from predictors.forecast import FloatArray
from predictors.options import is_number

GAP = math.nan


class Intake:
    """Cleans one observation at a time and counts what it had to change."""

    def __init__(self) -> None:
        self.missing = 0
        self.clipped = 0
        self.leading_zeros = 0
        self.largest = 0.0

    @property
    def started(self) -> bool:
        """Whether a positive value has been seen."""
        return self.largest > 0.0

    def clean(self, value: float) -> float | None:
        """The value >= 0 to keep, `GAP` for an interval without a measurement, or None to ignore it.

        Raises:
            ArgumentError: `value` is not a number.
        """
        number = _as_float(value)
        if not math.isfinite(number):
            self.missing += 1
            return GAP if self.started else None
        if number < 0.0:
            self.clipped += 1
            number = 0.0
        if number == 0.0 and not self.started:
            self.leading_zeros += 1
            return None
        self.largest = max(self.largest, number)
        return number


def _as_float(value: float) -> float:
    if not is_number(value):
        raise ArgumentError(f"observe: value must be a number, got {value!r:.80}")
    try:
        return float(value)
    except OverflowError:
        raise ArgumentError("observe: value must be a number that a float can hold") from None


def fill_gaps(values: FloatArray) -> FloatArray:
    """Copy of `values` (n,) without NaN, for models that need equal spacing.

    A gap takes the straight line between its measured neighbours; one at the end takes the last measured
    value. At least one value must be finite.
    """
    index = np.arange(values.size)
    measured = np.isfinite(values)
    return np.interp(index, index[measured], values[measured])
