"""Requests that were measured: features and what came of them.

One row may hold both outcomes or one; NaN is "not measured". The public predictors' JSON rows write
milliseconds, and zero for "not measured"; they are converted here, at the edge.
"""

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from predictors.errors import ArgumentError
from predictors.latency.features import FIELDS, FloatArray, LatencyFeatures

JSON_NAMES: Mapping[str, str] = {
    "kv_usage": "kv_cache_percentage",
    "input_tokens": "input_token_length",
    "waiting": "num_request_waiting",
    "running": "num_request_running",
    "generated_tokens": "num_tokens_generated",
    "prefix_score": "prefix_cache_score",
    "prefill_tokens_in_flight": "prefill_tokens_in_flight",
    "decode_tokens_in_flight": "decode_tokens_in_flight",
}
"""Field → its name in the public rows. The share of the KV cache is in [0, 1] there too, despite its name."""


class Target(enum.Enum):
    """What is predicted; the value is the name in metrics and reports."""

    TTFT = "ttft"
    TPOT = "tpot"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LatencySamples:
    """Measured requests, oldest first: N rows of features; outcomes in seconds, f8[N], NaN where unmeasured.

    Raises:
        ArgumentError: an outcome column does not have one value per row.
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


def samples_from_json(rows: Iterable[Mapping[str, Any]]) -> LatencySamples:
    """Samples from rows in the public form; a field that a row lacks counts as NaN, a missing outcome too.

    Raises:
        ArgumentError: a value is not a number.
    """
    listed = list(rows)
    try:
        columns = {
            field: np.array([row.get(name, np.nan) for row in listed], dtype=np.float64)
            for field, name in JSON_NAMES.items()
        }
        ttft, tpot = (
            np.array([row.get(name, 0.0) for row in listed], dtype=np.float64) / 1e3
            for name in ("actual_ttft_ms", "actual_tpot_ms")
        )
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"samples: a row holds something that is not a number: {error}") from error
    return LatencySamples(
        features=LatencyFeatures(**{field: columns[field] for field in FIELDS}),
        ttft_s=np.where(ttft == 0.0, np.nan, ttft),
        tpot_s=np.where(tpot == 0.0, np.nan, tpot),
    )
