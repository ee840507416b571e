"""Checks of option values, so that every predictor words its complaints alike: `kalman: option ...`."""

import math
from numbers import Real

from predictors.errors import OptionError


def is_number(value: object) -> bool:
    """Whether `value` is a real number, numpy's included; text that reads as one and booleans are not."""
    return isinstance(value, Real) and not isinstance(value, bool)


def whole(owner: str, option: str, value: object, *, low: int) -> int:
    """`value` as an int that is at least `low`; booleans and fractions are refused.

    Raises:
        OptionError: naming `owner`, `option` and the value.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise OptionError(f"{owner}: option {option!r} must be a whole number >= {low}, got {value!r}")
    return value


def number(owner: str, option: str, value: object, *, above: float, up_to: float = math.inf) -> float:
    """`value` as a finite float in (`above`, `up_to`].

    Raises:
        OptionError: naming `owner`, `option` and the value.
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        checked = float(value)
        if math.isfinite(checked) and above < checked <= up_to:
            return checked
    limit = "" if math.isinf(up_to) else f" and <= {up_to:g}"
    raise OptionError(f"{owner}: option {option!r} must be a number > {above:g}{limit}, got {value!r}")


def flag(owner: str, option: str, value: object) -> bool:
    """`value` as a bool.

    Raises:
        OptionError: naming `owner`, `option` and the value.
    """
    if not isinstance(value, bool):
        raise OptionError(f"{owner}: option {option!r} must be true or false, got {value!r}")
    return value
