"""The curves of one target: a latency as a sum of ramps, each a time that some part of the load costs.

    t(x) = β₀ + β_prior · prior(x) + Σ_j Σ_k β_jk · ramp_jk(x_j),        every β ≥ 0
    ramp_jk(v) = clip(v - start_jk, 0, width_jk)

Per input j the ramps cover 0 → first knot, knot → knot, and the last knot → ∞, so that their sum with free
weights is any continuous, piecewise linear, non-decreasing function of that input. Knots are quantiles of the
values seen above 0; more values get more knots.

Beyond what was seen. A curve over a prior p was learned between the bounds of its inputs and of the prior's
answers (`COVERED` of the rows). Outside of them it moves as far as what the prior alone explains, e(p):

    t(x, p) = t(x', p') e(p) / e(p'),     e(p) = α + γ p,     x', p' the nearest values within the bounds
    least e(p) ≤ t(x, p) ≤ most e(p),     of outcome / e(p) as measured

α, γ ≥ 0 are fitted to the same rows, with α = 0 and γ the median of outcome / prior worth EDGE_ROWS rows.
So where nothing speaks against the prior's shape, time is the prior times the correction at the edge; where
the rows show that the prior explains nothing, it stays as it was at the edge. A curve without a prior has
nothing else to go by: its last ramps have no end, and time keeps growing at the rate last learned.

With weights that are not negative, more load never predicts less time beyond what the prior itself does, and
collinear inputs cannot cancel each other with large opposite weights.

Each target has a central curve, fitted at level 0.5, and a quantile curve at the level asked for (`fit.py`).
The quantile curve is stretched by its conformal factor, and never below the centre. The centre is the
conditional median of the relative error, which minimises the mean absolute percentage error; it is below the
arithmetic mean where the outcome has a long tail.
"""

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from predictors.latency.features import INPUTS, FloatArray
from predictors.latency.fit import Problem, relative_quantile

KNOTS: tuple[tuple[int, tuple[float, ...]], ...] = ((200, (0.25, 0.5, 0.75)), (60, (0.5,)))
"""From so many values above 0 on, an input bends at these quantiles: some fifty rows for each ramp."""

HALF_LIFE_ROWS, LEAST_WEIGHT = 500.0, 0.05
"""A row's weight halves every so many newer rows, down to this: what was seen long ago is not forgotten."""

PRIOR_ROWS, EDGE_ROWS = 0.03, 0.3
"""Rows that the prior's shape is worth, and beyond what was seen: few, for it may be another engine's."""

BEND_ROWS = 0.003
"""Rows that the smoothness of each input's effect is worth: steadies what lies beyond."""

COVERED = (0.001, 0.999)
"""Quantiles of the rows between which something was learned."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Basis:
    """The ramps: input position int[R], start f8[R] and width f8[R] (without a prior infinite for the last).

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
    """A basis with knots at the quantiles of `inputs` (8, N), which with a prior ends where they end."""
    edges = [_edges(values, has_prior=has_prior) for values in inputs]
    return Basis(
        source=np.repeat(np.arange(len(INPUTS)), [len(each) - 1 for each in edges]),
        start=np.concatenate([each[:-1] for each in edges]),
        width=np.concatenate([np.diff(each) for each in edges]),
        has_prior=has_prior,
    )


def _edges(values: FloatArray, *, has_prior: bool) -> list[float]:
    knots = _knots(values)
    if not has_prior:
        return [0.0, *knots, np.inf]
    low, high = covered(values)
    return [low, *(knot for knot in knots if low < knot < high), high] if low < high else [low]


def covered(values: FloatArray) -> tuple[float, float]:
    """The bounds of what `values` say something about."""
    low, high = np.quantile(values, COVERED)
    return float(low), float(high)


def _knots(values: FloatArray) -> list[float]:
    positive = values[values > 0.0]
    quantiles = next((levels for least, levels in KNOTS if len(positive) >= least), ())
    if not quantiles:
        return []
    return [float(knot) for knot in np.unique(np.quantile(positive, quantiles)) if knot < positive.max()]


CENTRE = 0.5
SHORTEST_S, LONGEST_S = 1e-6, 1e6
"""Bounds of any prediction, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rows:
    """Rows of one target, oldest first: inputs f8[8, N], outcome_s f8[N], prior_s f8[N] (None: no prior)."""

    inputs: FloatArray
    outcome_s: FloatArray
    prior_s: FloatArray | None


class Span(NamedTuple):
    """Between which answers of the prior a curve was learned; what the prior explains alone, as base_s +
    slope times its answer; and the bounds of outcomes as shares of that. By default nothing is bounded.
    """

    low_s: float = 0.0
    high_s: float = math.inf
    base_s: float = 0.0
    slope: float = 1.0
    least: float = 0.0
    most: float = math.inf

    def within(self, prior_s: FloatArray) -> FloatArray:
        """The nearest answers of the prior that were covered."""
        return np.asarray(np.clip(prior_s, self.low_s, self.high_s))

    def explained_s(self, prior_s: FloatArray) -> FloatArray:
        """What the prior alone explains."""
        return self.base_s + self.slope * prior_s


UNBOUNDED = Span()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Curve:
    """`weights` f8[basis.size], all >= 0; `span` is that of its prior."""

    basis: Basis
    weights: FloatArray
    span: Span = UNBOUNDED

    def at(self, inputs: FloatArray, prior_s: FloatArray | None) -> FloatArray:
        """Seconds, shape (N,), positive and finite where `inputs` and `prior_s` are."""
        if prior_s is None or not self.basis.has_prior:
            seconds = self.weights @ self.basis.design(inputs, None)
        else:
            within_s, alone_s = self.span.within(prior_s), self.span.explained_s(prior_s)
            seconds = self.weights @ self.basis.design(inputs, within_s)
            seconds *= alone_s / self.span.explained_s(within_s)
            seconds = np.clip(seconds, self.span.least * alone_s, self.span.most * alone_s)
        return np.asarray(np.clip(seconds, SHORTEST_S, LONGEST_S))

    def scaled(self, factor: float) -> "Curve":
        """The curve, and what bounds it, times a factor."""
        span = self.span._replace(least=factor * self.span.least, most=factor * self.span.most)
        return Curve(basis=self.basis, weights=factor * self.weights, span=span)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Learned:
    """The two curves of one target; `factor` calibrates the quantile.

    `rows` taught it, of which the newest is of the moment `newest_s`, by the clock of the window that held
    them; NaN: it was not told.
    """

    centre: Curve
    quantile: Curve
    factor: float = 1.0
    rows: int = 0
    newest_s: float = math.nan

    def predict(self, inputs: FloatArray, prior_s: FloatArray | None) -> tuple[FloatArray, FloatArray]:
        """Centre and quantile in seconds, shape (N,) each."""
        centre = self.centre.at(inputs, prior_s)
        return centre, np.clip(self.factor * self.quantile.at(inputs, prior_s), centre, LONGEST_S)

    def times(self, centre: float, quantile: float) -> "Learned":
        """With both curves times `centre`, and the quantile times `quantile` besides."""
        return replace(
            self,
            centre=self.centre.scaled(centre),
            quantile=self.quantile.scaled(centre),
            factor=quantile * self.factor,
        )


def fit_curve(rows: Rows, level: float) -> Curve:
    """The curve at `level` through `rows`, newer rows weighing more; ramps without weight are left out.

    Raises ModelError: the solver found no answer.
    """
    basis = basis_for(rows.inputs, has_prior=rows.prior_s is not None)
    problem = Problem(
        design=basis.design(rows.inputs, rows.prior_s),
        outcome_s=rows.outcome_s,
        weights=row_weights(len(rows.outcome_s)),
        anchor=_anchor(rows, basis.size),
        anchor_rows=PRIOR_ROWS,
        bending=BEND_ROWS * _bending(basis, rows),
    )
    weights = relative_quantile(problem, level)
    fixed = basis.size - len(basis.source)
    used = weights[fixed:] > 0.0
    return Curve(
        basis=basis.ramps(used),
        weights=np.concatenate([weights[:fixed], weights[fixed:][used]]),
        span=_span(rows),
    )


def _span(rows: Rows) -> Span:
    if rows.prior_s is None:
        return UNBOUNDED
    anchor = np.array([0.0, np.median(rows.outcome_s / rows.prior_s)])
    problem = Problem(
        design=np.stack([np.ones_like(rows.prior_s), rows.prior_s]),
        outcome_s=rows.outcome_s,
        weights=np.ones_like(rows.prior_s),
        anchor=anchor,
        anchor_rows=EDGE_ROWS,
        bending=np.zeros((2, 2)),
    )
    base_s, slope = relative_quantile(problem, CENTRE).tolist()
    share = rows.outcome_s / (base_s + slope * rows.prior_s)
    low_s, high_s = covered(rows.prior_s)
    least, most = covered(share)
    return Span(low_s, high_s, base_s, slope, least, most)


def row_weights(rows: int) -> FloatArray:
    """What each of so many rows counts, oldest first."""
    age = np.arange(rows)[::-1]
    return np.asarray(np.maximum(0.5 ** (age / HALF_LIFE_ROWS), LEAST_WEIGHT))


def _bending(basis: Basis, rows: Rows) -> FloatArray:
    """Cost of bends, f8[size, size]: per knot of input j, (S_j (slope above - slope below))².

    S_j is the root mean square of x_ij / y_i: a slope counts by what it means for the outcome. The few rows
    beyond the last knot would else set the rate at which times grow beyond what was seen, alone.
    """
    below, above = basis.bends()
    scale = np.sqrt(np.mean((rows.inputs / rows.outcome_s) ** 2, axis=1))
    differences = np.zeros((len(below), basis.size))
    knots = np.arange(len(below))
    differences[knots, above] = scale[basis.source[below - 1 - basis.has_prior]]
    differences[knots, below] = -differences[knots, above]
    return np.asarray(differences.T @ differences)


def _anchor(rows: Rows, size: int) -> FloatArray:
    """Without data: the prior, scaled by the median ratio, or a constant where there is no prior."""
    anchor = np.zeros(size)
    if rows.prior_s is None:
        anchor[0] = np.median(rows.outcome_s)
    else:
        anchor[1] = np.median(rows.outcome_s / rows.prior_s)
    return anchor
