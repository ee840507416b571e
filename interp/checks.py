"""What a table must fulfil: each check returns its input as contiguous float64 or raises a ProfileError.

The messages begin with the name they are given, so the same checks serve a file's keys and a value's fields.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike

from interp.arrays import BoolArray, FloatArray
from interp.errors import ProfileError

ROUNDING = 1e-9
"""How far above 1 a KV usage may lie before it counts as wrong rather than rounded."""

DECIMALS = 12
"""To how many a KV usage is told from another: a millionth of a token in a cache of a million."""

MOST_KV_TOKENS = 1e12
"""No KV cache holds more; a larger count is a slip, and would not fit the counters of a simulation."""


def vector(name: str, values: ArrayLike) -> FloatArray:
    """`values` as a new f8[N] without NaN or infinity."""
    array = np.asarray(values)
    if array.dtype.kind not in "iuf":
        raise ProfileError(f"{name}: must hold numbers, holds dtype {array.dtype}")
    if array.ndim != 1:
        raise ProfileError(f"{name}: must have one dimension, has shape {array.shape}")
    _refuse(name, array, ~np.isfinite(array), "must be finite")
    return np.array(array, dtype=np.float64, order="C")


def positive(name: str, values: ArrayLike) -> FloatArray:
    """`values` as a new f8[N], each above zero."""
    array = vector(name, values)
    _refuse(name, array, array <= 0, "must be positive")
    return array


def unit_interval(name: str, values: ArrayLike) -> FloatArray:
    """`values` as a new f8[N], each in [0, 1].

    Rounding is undone: 1e-9 above 1 becomes 1, and what differs by far less than a token (in the 13th
    decimal) becomes the same, so that a table has no cells of a width that is only noise.
    """
    array = vector(name, values)
    _refuse(name, array, (array < 0) | (array > 1 + ROUNDING), "must lie in [0, 1]")
    return np.asarray(np.round(np.minimum(array, 1.0), DECIMALS), dtype=np.float64)


def cache_size(name: str, value: ArrayLike) -> float:
    """`value`, a number or an array of one, as a float above zero and at most `MOST_KV_TOKENS`."""
    tokens = positive_number(name, value)
    if tokens > MOST_KV_TOKENS:
        raise ProfileError(f"{name}: must be at most {MOST_KV_TOKENS:g}, is {tokens:g}")
    return tokens


def positive_number(name: str, value: ArrayLike) -> float:
    """`value`, a number or an array of one, as a float above zero."""
    array = np.asarray(value)
    if array.size != 1:
        raise ProfileError(f"{name}: must be one number, has shape {array.shape}")
    return float(positive(name, array.reshape(1))[0])


def length_of_all(arrays: Mapping[str, FloatArray], *, at_least: int) -> int:
    """The length that all `arrays` share."""
    lengths = {name: len(array) for name, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        said = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise ProfileError(f"arrays of different lengths: {said}")
    length = next(iter(lengths.values()))
    if length < at_least:
        raise ProfileError(f"{', '.join(lengths)}: at least {at_least} samples needed, found {length}")
    return length


def two_different(name: str, array: FloatArray) -> None:
    """Refuse an `array` whose values are all the same: no line can be drawn through one point."""
    if len(np.unique(array)) < 2:
        raise ProfileError(f"{name}: at least 2 different values needed, all are {array[0]:g}")


def _refuse(name: str, array: FloatArray, wrong: BoolArray, rule: str) -> None:
    if wrong.any():
        index = int(np.flatnonzero(wrong)[0])
        raise ProfileError(f"{name}: {rule}, is {array[index]:g} at index {index}")
