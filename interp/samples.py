"""The measured samples of a profile, valid once constructed, in seconds and tokens.

A sample is one point of a sweep: a prefill of `isl_tokens` took `ttft_s`; a decode batch at `kv_usage` of the
KV cache and `context_tokens` per request had `itl_s` between tokens. Samples may come in any order, on a grid
or scattered, and more than once: `merged()` puts them in order and replaces repeats by their median, so that
nothing downstream depends on the order in the file.

Each check returns its input as contiguous float64 or raises a ProfileError. The messages begin with the name
they are given, so the same checks serve a file's keys (`storage.py`) and the fields of samples.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import ArrayLike

from interp.arrays import BoolArray, FloatArray, ProfileError

ROUNDING = 1e-9
"""How far above 1 a KV usage may lie before it counts as wrong rather than rounded."""

DECIMALS = 12
"""Decimals of a KV usage that count: a millionth of a token in a cache of a million."""

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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PrefillSamples:
    """N prefill measurements, batch size one, at two or more different ISLs: f8[N] each.

    `throughput_per_gpu` is in input tokens per second per GPU. Raises ProfileError naming the field.
    """

    isl_tokens: FloatArray
    ttft_s: FloatArray
    throughput_per_gpu: FloatArray

    @classmethod
    def timed(cls, isl_tokens: FloatArray, ttft_s: FloatArray, gpus: int) -> Self:
        """Samples of an engine on `gpus` GPUs by its times alone: throughput is isl / ttft / gpus."""
        return cls(isl_tokens=isl_tokens, ttft_s=ttft_s, throughput_per_gpu=isl_tokens / ttft_s / gpus)

    def __post_init__(self) -> None:
        fields = {name: positive(name, getattr(self, name)) for name in self.__slots__}
        length_of_all(fields, at_least=2)
        two_different("isl_tokens", fields["isl_tokens"])
        _set(self, fields)

    def merged(self) -> tuple[Self, list[str]]:
        """The samples by ascending ISL, repeats replaced by their median, and a note for each repeat."""
        (isl,), (ttft, throughput), counts = _merge(
            (self.isl_tokens,), (self.ttft_s, self.throughput_per_gpu)
        )
        notes = [
            f"prefill ISL {isl[i]:g}: {counts[i]} samples merged to their median"
            for i in np.flatnonzero(counts > 1)
        ]
        return type(self)(isl_tokens=isl, ttft_s=ttft, throughput_per_gpu=throughput), notes


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DecodeSamples:
    """N decode measurements, f8[N] each, on an engine whose KV cache holds `max_kv_tokens`.

    `kv_usage` lies in [0, 1] (rounding of 1e-9 above is forgiven), `throughput_per_gpu` is in output tokens
    per second per GPU. The batch size of a sample is kv_usage * max_kv_tokens / context_tokens. Raises
    ProfileError.
    """

    max_kv_tokens: float
    kv_usage: FloatArray
    context_tokens: FloatArray
    itl_s: FloatArray
    throughput_per_gpu: FloatArray

    @classmethod
    def timed(
        cls,
        batch: FloatArray,
        context_tokens: FloatArray,
        itl_s: FloatArray,
        *,
        max_kv_tokens: float,
        gpus: int,
    ) -> Self:
        """Samples of an engine on `gpus` GPUs by its times alone: throughput is batch / ITL / gpus."""
        return cls(
            max_kv_tokens=max_kv_tokens,
            kv_usage=batch * context_tokens / max_kv_tokens,
            context_tokens=context_tokens,
            itl_s=itl_s,
            throughput_per_gpu=batch / itl_s / gpus,
        )

    def __post_init__(self) -> None:
        fields = {"kv_usage": unit_interval("kv_usage", self.kv_usage)}
        for name in ("context_tokens", "itl_s", "throughput_per_gpu"):
            fields[name] = positive(name, getattr(self, name))
        length_of_all(fields, at_least=1)
        _set(self, fields)
        object.__setattr__(self, "max_kv_tokens", cache_size("max_kv_tokens", self.max_kv_tokens))

    @property
    def batch_size(self) -> FloatArray:
        """Requests in the batch at each sample, f8[N]."""
        return self.kv_usage * self.max_kv_tokens / self.context_tokens

    def merged(self) -> tuple[Self, list[str]]:
        """The samples by ascending (context, KV usage), repeats replaced by their median, and their notes."""
        (context, kv), (itl, throughput), counts = _merge(
            (self.context_tokens, self.kv_usage), (self.itl_s, self.throughput_per_gpu)
        )
        notes = [
            f"decode context {context[i]:g}, kv {kv[i]:g}: {counts[i]} samples merged to their median"
            for i in np.flatnonzero(counts > 1)
        ]
        unique = type(self)(
            max_kv_tokens=self.max_kv_tokens,
            kv_usage=kv,
            context_tokens=context,
            itl_s=itl,
            throughput_per_gpu=throughput,
        )
        return unique, notes


Columns = tuple[FloatArray, ...]


def _set(samples: PrefillSamples | DecodeSamples, fields: dict[str, FloatArray]) -> None:
    for name, values in fields.items():
        object.__setattr__(samples, name, values)


def _merge(
    keys: Columns, values: Columns
) -> tuple[Columns, Columns, np.ndarray[tuple[int], np.dtype[np.int64]]]:
    """Rows by ascending `keys` (the first weighs most), those of equal keys as their median, and counts."""
    order = np.lexsort((*values[::-1], *keys[::-1]))
    sorted_keys, sorted_values = [key[order] for key in keys], [value[order] for value in values]
    differs = np.any([np.diff(key) != 0 for key in sorted_keys], axis=0)
    starts = np.concatenate([[0], np.flatnonzero(differs) + 1])
    groups = np.split(np.arange(len(order)), starts[1:])
    medians = tuple(np.array([np.median(value[group]) for group in groups]) for value in sorted_values)
    counts = np.array([len(group) for group in groups], dtype=np.int64)
    return tuple(key[starts] for key in sorted_keys), medians, counts
