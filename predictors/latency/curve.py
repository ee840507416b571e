"""What was learned of one target: a central curve and a quantile curve.

Both are sums of ramps (`basis.py`), fitted at level 0.5 and at the level asked for (`fit.py`). The quantile
curve is stretched by its conformal factor, and never below the centre. The centre is the conditional median
of the relative error, which is the value that a mean absolute percentage error asks for; it is below the
arithmetic mean where the outcome has a long tail.
"""

from dataclasses import dataclass

import numpy as np

from predictors.latency.basis import Basis, basis_for
from predictors.latency.conformal import conformal_factor
from predictors.latency.features import FloatArray
from predictors.latency.fit import Problem, relative_quantile
from predictors.latency.settings import LatencySettings

CENTRE = 0.5
SHORTEST_S, LONGEST_S = 1e-6, 1e6
"""Bounds of any prediction, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rows:
    """Rows of one target, oldest first: inputs f8[8, N], outcome_s f8[N], prior_s f8[N] (None: no prior)."""

    inputs: FloatArray
    outcome_s: FloatArray
    prior_s: FloatArray | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Curve:
    """`weights` f8[basis.size], all >= 0."""

    basis: Basis
    weights: FloatArray

    def at(self, inputs: FloatArray, prior_s: FloatArray | None) -> FloatArray:
        """Seconds, shape (N,), positive and finite where `inputs` and `prior_s` are."""
        seconds = self.weights @ self.basis.design(inputs, prior_s)
        return np.asarray(np.clip(seconds, SHORTEST_S, LONGEST_S))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Learned:
    """The two curves of one target; `factor` calibrates the quantile."""

    centre: Curve
    quantile: Curve
    factor: float = 1.0

    def predict(self, inputs: FloatArray, prior_s: FloatArray | None) -> tuple[FloatArray, FloatArray]:
        """Centre and quantile in seconds, shape (N,) each."""
        centre = self.centre.at(inputs, prior_s)
        stretched = self.factor * self.quantile.at(inputs, prior_s)
        return centre, np.clip(stretched, centre, LONGEST_S)


def fit_curve(rows: Rows, level: float, settings: LatencySettings) -> Curve:
    """The curve at `level` through `rows`, newer rows weighing more; ramps without weight are left out.

    Raises:
        ModelError: the solver found no answer.
    """
    basis = basis_for(rows.inputs, has_prior=rows.prior_s is not None)
    problem = Problem(
        design=basis.design(rows.inputs, rows.prior_s),
        outcome_s=rows.outcome_s,
        weights=_recency(len(rows.outcome_s), settings),
        anchor=_anchor(rows, basis.size),
        anchor_rows=settings.prior_rows,
        bending=settings.bend_rows * _bending(basis, rows),
    )
    weights = relative_quantile(problem, level)
    fixed = basis.size - len(basis.source)
    used = weights[fixed:] > 0.0
    return Curve(basis=basis.ramps(used), weights=np.concatenate([weights[:fixed], weights[fixed:][used]]))


def calibration(quantile: Curve, held: Rows, level: float) -> float:
    """The conformal factor of a quantile curve from rows that it was not fitted to."""
    return conformal_factor(held.outcome_s, quantile.at(held.inputs, held.prior_s), level)


def _bending(basis: Basis, rows: Rows) -> FloatArray:
    """What a bend costs, f8[size, size]: per knot of input j, (S_j (slope above - slope below))².

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


def _recency(rows: int, settings: LatencySettings) -> FloatArray:
    age = np.arange(rows)[::-1]
    return np.asarray(np.maximum(0.5 ** (age / settings.half_life_rows), settings.least_weight))


def _anchor(rows: Rows, size: int) -> FloatArray:
    """Without data: the prior, scaled by the median ratio, or a constant where there is no prior."""
    anchor = np.zeros(size)
    if rows.prior_s is None:
        anchor[0] = np.median(rows.outcome_s)
    else:
        anchor[1] = np.median(rows.outcome_s / rows.prior_s)
    return anchor
