"""The exceptions of this package, and the checks of option values that raise them.

    PredictorError
    ├── UnknownPredictorError   a name that is not in the registry; lists the known ones
    ├── OptionError             an option that does not exist, or a value it cannot take; names the option
    ├── ArgumentError           an observation, horizon or quantile level that makes no sense
    └── ModelError              a model, or the library under it, could not answer

A caller sees the first three. `ModelError` never leaves a predictor: the guard counts it, keeps its reason
and lets the constant predictor answer. Foreign exceptions become a `ModelError` in `library_call` and nowhere
else. All predictors word a refused option alike: `kalman: option ...`.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from numbers import Real

REASON_LENGTH = 160


class PredictorError(Exception):
    """Base of everything that this package raises on purpose."""


class UnknownPredictorError(PredictorError):
    """No predictor has this name."""


class OptionError(PredictorError):
    """An option is unknown, or its value is out of range."""


class ArgumentError(PredictorError):
    """An observation is not a number, a horizon is not a positive integer, or a level is outside (0, 1)."""


class ModelError(PredictorError):
    """A model could not fit, update or predict; the message says why in one line."""


@contextmanager
def library_call(action: str, *failures: type[Exception]) -> Iterator[None]:
    """Turn the `failures` that a library is known to raise into a one-line `ModelError` naming `action`."""
    try:
        yield
    except failures as error:
        lines = str(error).strip().splitlines()
        reason = lines[0][:REASON_LENGTH] if lines else "no message"
        raise ModelError(f"{action}: {type(error).__name__}: {reason}") from error


def is_number(value: object) -> bool:
    """True if `value` is a real number, numpy's included; text that reads as one and booleans are not."""
    return isinstance(value, Real) and not isinstance(value, bool)


def whole(owner: str, option: str, value: object, *, low: int) -> int:
    """`value` as an int that is at least `low`; booleans and fractions are refused.

    Raises OptionError naming `owner`, `option` and the value.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise OptionError(f"{owner}: option {option!r} must be a whole number >= {low}, got {value!r}")
    return value


def number(owner: str, option: str, value: object, *, above: float, up_to: float = math.inf) -> float:
    """`value` as a finite float in (`above`, `up_to`].

    Raises OptionError naming `owner`, `option` and the value.
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        checked = float(value)
        if math.isfinite(checked) and above < checked <= up_to:
            return checked
    limit = "" if math.isinf(up_to) else f" and <= {up_to:g}"
    raise OptionError(f"{owner}: option {option!r} must be a number > {above:g}{limit}, got {value!r}")


def flag(owner: str, option: str, value: object) -> bool:
    """`value` as a bool. Raises OptionError naming `owner`, `option` and the value."""
    if not isinstance(value, bool):
        raise OptionError(f"{owner}: option {option!r} must be true or false, got {value!r}")
    return value
