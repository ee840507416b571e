"""What can go wrong in `predictors`, drawn as a tree.

    PredictorError
    ├── UnknownPredictorError   a name that is not in the registry; lists the known ones
    ├── OptionError             an option that does not exist, or a value it cannot take; names the option
    ├── ArgumentError           an observation, horizon or quantile level that makes no sense
    └── ModelError              a model, or the library under it, could not answer

A caller sees the first three. `ModelError` never leaves a predictor: the guard counts it, keeps its reason
and lets the constant predictor answer. Foreign exceptions become a `ModelError` here and nowhere else.
"""

from collections.abc import Iterator
from contextlib import contextmanager

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
