"""Arguments and answers of every surface: scalars in, scalars out; arrays in, arrays out; and the exceptions.

A query is broadcast as numpy would, flattened to contiguous float64 for the numeric part, and given its shape
back afterwards. NaN passes through; a token count that is zero, negative or infinite is refused by name.

    InterpError                 an argument that no surface can answer (a context of 0 tokens, say)
    └── ProfileError            a profile that cannot be read, is not valid, or cannot be written
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


class InterpError(ValueError):
    """An argument that no surface can answer; the message names it."""


class ProfileError(InterpError):
    """A profile directory or table that is not valid; the message names the file and the key."""


FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
Numbers = NDArray[Any]
"""An array argument of any real dtype."""

RealOrArray = float | Numbers
"""One argument of a query: a number or an array of numbers."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Query:
    """Arguments broadcast together: `shape` as numpy has it, and one flat float64 array per argument."""

    shape: tuple[int, ...]
    flat: tuple[FloatArray, ...]

    def answer(self, values: NDArray[Any]) -> Any:  # noqa: ANN401 - a scalar or an array, by the query's shape
        """Give flat `values` the query's shape; a Python scalar when the query was scalar."""
        return values[0].item() if self.shape == () else values.reshape(self.shape)


def query(**arguments: RealOrArray) -> Query:
    """Broadcast `arguments`; those whose name ends in `_tokens` must be positive and finite, or NaN.

    Raises InterpError naming the argument that is not numeric, does not broadcast or is not positive.
    """
    if all(isinstance(value, float | int) for value in arguments.values()):
        return _scalar_query(arguments)
    arrays = {name: _numeric(name, value) for name, value in arguments.items()}
    try:
        shape = np.broadcast_shapes(*(array.shape for array in arrays.values()))
    except ValueError as error:
        shapes = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
        raise InterpError(f"{shapes}: these shapes do not broadcast") from error
    for name, array in arrays.items():
        if name.endswith("_tokens"):
            refused = (array <= 0) | (array == np.inf)
            if refused.any():
                raise InterpError(f"{name}: must be positive and finite, got {array[refused].flat[0]:g}")
    alike = all(array.shape == shape for array in arrays.values())
    whole = arrays.values() if alike else np.broadcast_arrays(*arrays.values())
    return Query(shape=shape, flat=tuple(array.flatten() for array in whole))


def ascending_union(*parts: FloatArray | Sequence[float]) -> FloatArray:
    """All values of `parts`, once each, in ascending order."""
    return np.unique(np.concatenate([np.asarray(part, dtype=np.float64) for part in parts]))


def _scalar_query(arguments: Mapping[str, Any]) -> Query:
    """A query of plain numbers without broadcasting: the planner asks one at a time, and this is faster."""
    for name, value in arguments.items():
        if name.endswith("_tokens") and (value <= 0 or value == math.inf):
            raise InterpError(f"{name}: must be positive and finite, got {value:g}")
    return Query(shape=(), flat=tuple(np.array([value], dtype=np.float64) for value in arguments.values()))


def _numeric(name: str, value: RealOrArray) -> FloatArray:
    try:
        return np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InterpError(f"{name}: expected a number or an array of numbers, got {value!r:.80}") from error
