"""Forecasts of predictors, as candidates beside the levels of a pool's own work.

A predictor speaks of requests, hindsight judges work. With R the level of the requests of late and W that of
a pool's work, by the same smoothing (`backtest`), what was said after interval i of interval i + h is

    work = W_i · said_i(h) / R_i

so that lengths are as of late. What was said is kept as it was said, at HORIZONS steps ahead (between two of
them a straight line, beyond the last one its value), since the lead may change. Where nothing was said, as
before the predictor had learnt, or where no requests came of late, the level W_i stands.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite

import numpy as np
from numpy.typing import NDArray

from headway.planning.types import FloatArray

HORIZONS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Intervals ahead."""

SMOOTHING = 0.05
"""Of R and W."""

Said = NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Predicted:
    """The forecasts of requests after each of the last N intervals.

    `level` f8[N] is R, `said` by predictor f4[N, len(HORIZONS)], NaN where there was none; `measured` counts
    the intervals with known requests.
    """

    level: FloatArray = field(default_factory=lambda: np.zeros(0))
    said: Mapping[str, Said] = field(default_factory=dict)
    measured: int = 0

    def add(self, requests: float, ahead: Mapping[str, FloatArray], most: int) -> "Predicted":
        """With one more interval, of NaN requests if not measured; the oldest beyond `most` are dropped.

        Nothing is kept before the first forecast, nor of a predictor that was silent for `most` intervals.
        """
        if not ahead and not self.said:
            return self
        measured = self.measured + isfinite(requests)
        level = self.level[-1] if len(self.level) else 0.0
        if isfinite(requests):
            level += max(SMOOTHING, 1.0 / measured) * (requests - level)
        said = {name: self._with(name, ahead.get(name))[-most:] for name in {**self.said, **ahead}}
        spoken = {name: rows for name, rows in said.items() if np.isfinite(rows).any()}
        return Predicted(np.append(self.level, level)[-most:], spoken, measured)

    def _with(self, name: str, path: FloatArray | None) -> Said:
        """What it said so far, and now; `path` f8[A] of each of the next intervals, None: nothing."""
        before = self.said.get(name)
        if before is None:
            before = np.full((len(self.level), len(HORIZONS)), np.nan, np.float32)
        now = np.full(len(HORIZONS), np.nan)
        if path is not None and len(path):
            now = path[np.minimum(HORIZONS, len(path)) - 1]
        return np.concatenate([before, now[None].astype(np.float32)])

    def of_work(self, work: FloatArray, lead: int) -> Mapping[str, FloatArray]:
        """By predictor that spoke last, the work expected `lead` intervals after each of M: f8[M].

        `work` f8[M] is the pool's W after each of the last M intervals.
        """
        return {
            name: self._of_work(rows, work, lead)
            for name, rows in self.said.items()
            if len(work) and np.isfinite(rows[-1, 0])
        }

    def _of_work(self, rows: Said, work: FloatArray, lead: int) -> FloatArray:
        count = min(len(work), len(rows))
        after = int(np.searchsorted(HORIZONS, lead))
        if after == 0 or after == len(HORIZONS):
            requests = rows[-count:, min(after, len(HORIZONS) - 1)].astype(np.float64)
        else:
            low, high = HORIZONS[after - 1 : after + 1]
            share = (lead - low) / (high - low)
            requests = (1.0 - share) * rows[-count:, after - 1] + share * rows[-count:, after]
        level, expected = self.level[-count:], work.copy()
        usable = np.isfinite(requests) & (level > 0.0)
        late = expected[len(work) - count :]
        np.divide(late * requests, level, out=late, where=usable)
        return expected
