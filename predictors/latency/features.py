"""Load of a replica and size of a request, as columns; and measured requests, with their latencies.

    kv_usage                  share of the KV cache in use, [0, 1]
    input_tokens              prompt tokens of the request
    waiting, running          requests queued and in the batch, before this one
    generated_tokens          tokens that the request has had so far (0 when it is placed)
    prefix_score              share of the prompt held by the replica's prefix cache, [0, 1]
    prefill_tokens_in_flight  prompt tokens queued or in prefill ahead of the request
    decode_tokens_in_flight   tokens that the running requests are still expected to generate

The model looks at `INPUTS`: the same columns, but for the prefix score, which enters by what it leaves to
compute, `uncached_tokens` = input_tokens (1 - prefix_score). NaN is "not measured".
"""

import enum
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from predictors.checks import ArgumentError

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

LARGEST = 1e9
"""No count of tokens or requests is larger; beyond it a column counts as this much."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LatencyFeatures:
    """Columns of equal length N, float64 and read-only, each of shape (N,). `of` builds them from scalars.

    NaN and infinity are allowed and mean "not known": such a row gets no usable prediction. Raises
    ArgumentError: a column is not numeric or not one-dimensional, or the lengths differ.
    """

    kv_usage: FloatArray
    input_tokens: FloatArray
    waiting: FloatArray
    running: FloatArray
    generated_tokens: FloatArray
    prefix_score: FloatArray
    prefill_tokens_in_flight: FloatArray
    decode_tokens_in_flight: FloatArray

    def __post_init__(self) -> None:
        for name, row in zip(FIELDS, _aligned([getattr(self, name) for name in FIELDS]), strict=True):
            object.__setattr__(self, name, row)

    @classmethod
    def of(
        cls,
        *,
        kv_usage: npt.ArrayLike,
        input_tokens: npt.ArrayLike,
        waiting: npt.ArrayLike,
        running: npt.ArrayLike,
        generated_tokens: npt.ArrayLike = 0.0,
        prefix_score: npt.ArrayLike = 0.0,
        prefill_tokens_in_flight: npt.ArrayLike = 0.0,
        decode_tokens_in_flight: npt.ArrayLike = 0.0,
    ) -> "LatencyFeatures":
        """Columns from numbers, lists or arrays; a single number holds for all rows."""
        given = (
            kv_usage,
            input_tokens,
            waiting,
            running,
            generated_tokens,
            prefix_score,
            prefill_tokens_in_flight,
            decode_tokens_in_flight,
        )
        return cls(**dict(zip(FIELDS, _aligned(given), strict=True)))

    @classmethod
    def from_table(cls, table: npt.ArrayLike) -> "LatencyFeatures":
        """The features whose `table()` this is, shape (N, 8)."""
        columns = np.asarray(table, dtype=np.float64).reshape(-1, len(FIELDS)).T
        return cls(**dict(zip(FIELDS, columns, strict=True)))

    def __len__(self) -> int:
        return len(self.kv_usage)

    def table(self) -> FloatArray:
        """All fields, shape (N, 8), in the order of `FIELDS`."""
        return np.stack([getattr(self, name) for name in FIELDS], axis=1)

    def inputs(self) -> FloatArray:
        """The inputs of the model, one row per input, shape (8, N): negatives as 0 and at most `LARGEST`."""
        uncached = self.input_tokens * (1.0 - np.clip(self.prefix_score, 0.0, 1.0))
        columns = [*(getattr(self, name) for name in INPUTS[:-1]), uncached]
        return np.asarray(np.clip(np.stack(columns), 0.0, LARGEST))

    def known(self) -> BoolArray:
        """The rows in which every field is finite, shape (N,)."""
        return np.asarray(np.isfinite(self.table()).all(axis=1))


FIELDS = tuple(field.name for field in fields(LatencyFeatures))
"""The names of the columns, in order."""

INPUTS = (*(name for name in FIELDS if name != "prefix_score"), "uncached_tokens")
"""The inputs of the model, in order."""


def _aligned(columns: "tuple[npt.ArrayLike, ...] | list[npt.ArrayLike]") -> FloatArray:
    """The columns as the rows of one read-only table."""
    try:
        given = [np.asarray(column, dtype=np.float64) for column in columns]
        shape = np.broadcast_shapes((1,), *(column.shape for column in given))
        if any(column is None for column in columns):
            raise TypeError("a column is None")
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"features: columns must be numbers of one length: {error}") from error
    if len(shape) != 1:
        raise ArgumentError(f"features: a column has one dimension, got {len(shape)}")
    if not all(column.shape in {(), shape} for column in given):
        raise ArgumentError(f"features: every column must have {shape[0]} values, or be a single number")
    table = np.empty((len(given), *shape))
    for row, column in zip(table, given, strict=True):
        row[:] = column
    table.setflags(write=False)
    return table


class Target(enum.Enum):
    """A predicted latency; the value is the name in metrics and reports."""

    TTFT = "ttft"
    TPOT = "tpot"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LatencySamples:
    """Measured requests, oldest first: N rows of features; outcomes in seconds, f8[N], NaN where unmeasured.

    Raises ArgumentError: an outcome column does not have one value per row.
    """

    features: LatencyFeatures
    ttft_s: FloatArray
    tpot_s: FloatArray

    def __post_init__(self) -> None:
        for name in ("ttft_s", "tpot_s"):
            column = np.array(getattr(self, name), dtype=np.float64)
            if column.shape != (len(self.features),):
                raise ArgumentError(f"samples: {name} needs {len(self.features)} values, got {column.shape}")
            column.setflags(write=False)
            object.__setattr__(self, name, column)

    def __len__(self) -> int:
        return len(self.features)

    def outcome_s(self, target: Target) -> FloatArray:
        """The outcomes of one target, shape (N,), NaN where unmeasured."""
        return self.ttft_s if target is Target.TTFT else self.tpot_s

    def rows(self, index: npt.NDArray[Any] | slice) -> "LatencySamples":
        """The rows that `index` (positions, mask or slice) picks, in its order."""
        return LatencySamples(
            features=LatencyFeatures.from_table(self.features.table()[index]),
            ttft_s=self.ttft_s[index],
            tpot_s=self.tpot_s[index],
        )
