"""The additive basis: a latency as a sum of ramps, each a time that some part of the load costs.

    t(x) = β₀ + β_prior · prior(x) + Σ_j Σ_k β_jk · ramp_jk(x_j),        every β ≥ 0
    ramp_jk(v) = clip(v - start_jk, 0, width_jk)

Per input j the ramps cover 0 → first knot, knot → knot, and the last knot → ∞, so that their sum with free
weights is any continuous, piecewise linear, non-decreasing function of that input. Knots are quantiles of the
values seen above 0, the more the more values there are. The last ramp has no end: beyond what was seen
the time keeps growing at the rate last learned, which is what a queue does, where trees stay flat.

With weights that are not negative, time is positive, more load never predicts less time beyond what the prior
itself does, and collinear inputs cannot cancel each other with large opposite weights. What falls with load
(TPOT with a full cache that starves prefill, say) can come from the prior alone.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from predictors.latency.features import INPUTS, FloatArray

KNOTS: tuple[tuple[int, tuple[float, ...]], ...] = ((200, (0.25, 0.5, 0.75)), (60, (0.5,)))
"""From so many values above 0 on, an input bends at these quantiles: some fifty rows for each ramp."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Basis:
    """The ramps: input position int[R], start f8[R] and width f8[R] (infinite for the last of an input).

    Designs hold one row per term (they are read along requests, which is several times faster).
    """

    source: npt.NDArray[np.intp]
    start: FloatArray
    width: FloatArray
    has_prior: bool

    @property
    def size(self) -> int:
        """Rows of the design: the constant, the prior where there is one, the ramps."""
        return 1 + self.has_prior + len(self.source)

    def design(self, inputs: FloatArray, prior_s: FloatArray | None) -> FloatArray:
        """The terms at `inputs` (8, N) and the prior's answers (N,): shape (size, N), none negative."""
        terms = np.empty((self.size, inputs.shape[1]))
        terms[0] = 1.0
        if self.has_prior:
            assert prior_s is not None, "a basis with a prior is given the prior's answers"
            terms[1] = prior_s
        ramps = terms[1 + self.has_prior :]
        np.take(inputs, self.source, axis=0, out=ramps)
        ramps -= self.start[:, None]
        np.maximum(ramps, 0.0, out=ramps)
        np.minimum(ramps, self.width[:, None], out=ramps)
        return terms

    def bends(self) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
        """Where two ramps of one input meet: the term below each knot, and the term above it."""
        below = np.flatnonzero(self.source[1:] == self.source[:-1]) + 1 + self.has_prior
        return below, below + 1

    def ramps(self, keep: npt.NDArray[np.bool_]) -> "Basis":
        """The basis with only the ramps that `keep`, bool[R], picks."""
        return Basis(
            source=self.source[keep], start=self.start[keep], width=self.width[keep], has_prior=self.has_prior
        )


def basis_for(inputs: FloatArray, *, has_prior: bool) -> Basis:
    """A basis with knots at the quantiles of `inputs` (8, N)."""
    edges = [[0.0, *_knots(values), np.inf] for values in inputs]
    return Basis(
        source=np.repeat(np.arange(len(INPUTS)), [len(each) - 1 for each in edges]),
        start=np.concatenate([each[:-1] for each in edges]),
        width=np.concatenate([np.diff(each) for each in edges]),
        has_prior=has_prior,
    )


def _knots(values: FloatArray) -> list[float]:
    positive = values[values > 0.0]
    quantiles = next((levels for least, levels in KNOTS if len(positive) >= least), ())
    if not quantiles:
        return []
    return [float(knot) for knot in np.unique(np.quantile(positive, quantiles)) if knot < positive.max()]
