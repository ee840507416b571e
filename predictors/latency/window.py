"""The training window: bounded, stratified by load, the newest kept.

Traffic spends most of its time in few regimes. A plain window of the newest rows forgets what an overload
looks like as soon as it is over; here each stratum of load keeps its own newest rows, so that quiet hours
push out quiet rows only. A stratum is a cell of `EDGES`: an input's cell is the number of edges at or below
its value. Above the overall bound, the oldest row of the fullest stratum goes.

Rows are refused, and counted by reason, before they enter: `unmeasured` (no outcome), `not_finite` (a
feature), `negative` (a feature or an outcome), `too_large` (an outcome above `longest_s`, a share above 1, a
count above 1e9). A row with one sound and one absurd outcome is refused whole: what one clock got wrong, the
other may have.
"""

import math
from collections import Counter, deque
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from predictors.checks import number, whole
from predictors.latency.features import (
    FIELDS,
    LARGEST,
    BoolArray,
    FloatArray,
    LatencyFeatures,
    LatencySamples,
    Target,
)
from predictors.latency.fit import OWNER

EDGES: Mapping[str, tuple[float, ...]] = {
    "kv_usage": (0.1, 0.5, 0.8),
    "waiting": (1, 8, 64),
    "running": (4, 32, 128),
    "input_tokens": (512, 4096),
    "prefix_score": (0.5,),
}
"""Field → ascending bounds of its cells: 4 · 4 · 4 · 3 · 2 = 384 strata; traffic visits a few dozen."""

Stored = tuple[int, tuple[float, ...], float]
"""Arrival number, features in the order of `FIELDS`, outcome in seconds."""


class TrainingWindow:
    """The measured requests that models are trained on. Not thread-safe; pickles."""

    def __init__(self, *, stratum_rows: int = 256, most_rows: int = 8192, longest_s: float = 3600.0) -> None:
        """At most `stratum_rows` per stratum and `most_rows` overall, for each target.

        Raises OptionError: a bound that is not positive.
        """
        self._stratum_rows = whole(OWNER, "stratum_rows", stratum_rows, low=1)
        self._most_rows = whole(OWNER, "most_rows", most_rows, low=1)
        self._longest_s = number(OWNER, "longest_s", longest_s, above=0.0)
        self._strata: dict[Target, dict[int, deque[Stored]]] = {target: {} for target in Target}
        self._sizes = dict.fromkeys(Target, 0)
        self._refused: Counter[str] = Counter()
        self._arrived = 0
        self._newest_s = math.nan

    @property
    def refused(self) -> Mapping[str, int]:
        """Rows refused so far, by reason."""
        return dict(self._refused)

    @property
    def arrived(self) -> int:
        """Rows taken in so far, kept or since replaced."""
        return self._arrived

    @property
    def newest_s(self) -> float:
        """When the newest row was taken in, by the caller's clock; NaN where it did not say."""
        return self._newest_s

    def size(self, target: Target) -> int:
        """Rows held for a target."""
        return self._sizes[target]

    def strata(self, target: Target) -> int:
        """Strata with at least one row for a target."""
        return sum(1 for stratum in self._strata[target].values() if stratum)

    def add(self, samples: LatencySamples, now_s: float = math.nan) -> int:
        """Take in rows, oldest first, at `now_s`; how many were sound."""
        table = samples.features.table()
        sound = self._sound(table, samples)
        cells = stratum_of(table)
        for row in np.flatnonzero(sound):
            self._arrived += 1
            values = tuple(table[row].tolist())
            for target in Target:
                outcome = float(samples.outcome_s(target)[row])
                if outcome > 0.0:
                    self._keep(target, int(cells[row]), (self._arrived, values, outcome))
        if sound.any():
            self._newest_s = now_s
        return int(sound.sum())

    def rows(self, target: Target) -> tuple[LatencyFeatures, FloatArray]:
        """The rows held for a target, in order of arrival: features, and outcomes in seconds, shape (N,)."""
        held = sorted(row for stratum in self._strata[target].values() for row in stratum)
        table = np.array([values for _, values, _ in held], dtype=np.float64)
        return LatencyFeatures.from_table(table), np.array([outcome for *_, outcome in held])

    def _sound(self, table: FloatArray, samples: LatencySamples) -> BoolArray:
        """The rows that may enter; the others are counted under the first reason that applies."""
        outcomes = np.stack([samples.ttft_s, samples.tpot_s], axis=1)
        most = np.array([1.0 if name in {"kv_usage", "prefix_score"} else LARGEST for name in FIELDS])
        reasons = {
            "not_finite": ~np.isfinite(table).all(axis=1) | np.isinf(outcomes).any(axis=1),
            "negative": (table < 0.0).any(axis=1) | (outcomes < 0.0).any(axis=1),
            "too_large": (table > most).any(axis=1) | (outcomes > self._longest_s).any(axis=1),
            "unmeasured": ~(outcomes > 0.0).any(axis=1),
        }
        sound = np.ones(len(table), dtype=np.bool_)
        for reason, applies in reasons.items():
            if count := int((sound & applies).sum()):
                self._refused[reason] += count
            sound &= ~applies
        return sound

    def _keep(self, target: Target, cell: int, row: Stored) -> None:
        strata = self._strata[target]
        stratum = strata.setdefault(cell, deque())
        stratum.append(row)
        if len(stratum) > self._stratum_rows:
            stratum.popleft()
        else:
            self._sizes[target] += 1
        if self._sizes[target] > self._most_rows:
            # The fullest stratum gives way, not the oldest row: rare loads keep the rows that they have.
            fullest = max(strata.values(), key=len)
            fullest.popleft()
            self._sizes[target] -= 1


def stratum_of(table: FloatArray) -> npt.NDArray[np.intp]:
    """The stratum of each row of a feature table (N, 8): one whole number per combination of cells."""
    cell = np.zeros(len(table), dtype=np.intp)
    for name, edges in EDGES.items():
        cell = cell * (len(edges) + 1) + np.digitize(table[:, FIELDS.index(name)], edges)
    return cell
