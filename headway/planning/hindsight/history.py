"""What a pool remembers of past intervals: the work that came, and what fleets of n replicas would have lost.

Loss curves have different lengths; they stand one after the other, `starts[i]` to `starts[i + 1]`. An
interval that was not measured has no requests, and the work of the one before.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from headway.planning.replay import LossCurve

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


def _floats() -> FloatArray:
    return np.zeros(0)


def _ints() -> IntArray:
    return np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class PoolHistory:
    """`work` f8[N] in replicas, `requests` i8[N], `starts` i8[N + 1] and `lost` i8[...], the curves."""

    work: FloatArray = field(default_factory=_floats)
    requests: IntArray = field(default_factory=_ints)
    starts: IntArray = field(default_factory=lambda: np.zeros(1, np.int64))
    lost: IntArray = field(default_factory=_ints)

    def __len__(self) -> int:
        return len(self.work)

    def add(self, work: float, curve: LossCurve, most: int) -> "PoolHistory":
        """With one more interval; the oldest ones beyond `most` are forgotten."""
        drop = max(0, len(self) + 1 - most)
        cut = self.starts[drop]
        starts = np.append(self.starts[drop:], self.starts[-1] + len(curve.lost)) - cut
        return PoolHistory(
            work=np.append(self.work[drop:], work),
            requests=np.append(self.requests[drop:], curve.requests),
            starts=starts,
            lost=np.concatenate([self.lost[cut:], curve.lost]),
        )

    def skip(self, most: int) -> "PoolHistory":
        """With an interval of which nothing is known."""
        if len(self) == 0:
            return self
        unknown = LossCurve(requests=0, lost=np.zeros(1, np.int64))
        return self.add(float(self.work[-1]), unknown, most)
