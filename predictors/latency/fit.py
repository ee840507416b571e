"""Weights of the additive model: relative quantile regression with weights that are not negative.

With design rows a_i, outcomes y_i > 0 and relative errors e_i = 1 - a_i·β / y_i, minimise over β ≥ 0

    Σ_i w_i ρ(e_i) + m Σ_j s_j² (β_j - β⁰_j)² + β·B·β,        ρ(e) = e (level - [e < 0])

ρ is the pinball loss (Koenker & Bassett 1978), here of the error relative to the outcome: at level 0.5 half
the mean absolute percentage error, so the central curve is the one which that measure asks for, and one
request that timed out cannot bend it. β⁰ is what is believed without data, s_j the root mean square of
a_ij / y_i, so m counts rows. B is what bends cost (`curve.py`).

Solved by iteratively reweighted least squares: ρ(e) ≈ e² |level - [e < 0]| / max(|e|, ε), each step a
non-negative least squares problem (Lawson & Hanson 1974) of the size of β, on the Cholesky factor of the
normal equations.
"""

from dataclasses import dataclass

import numpy as np
from scipy.linalg import LinAlgError, cholesky, solve_triangular
from scipy.optimize import nnls

from predictors.errors import library_call
from predictors.latency.features import FloatArray

STEPS = 15
SMOOTHING = 0.02
"""ε: relative errors below it count as squares, not as absolute values."""

RIDGE = 1e-9
"""Keeps the normal equations regular where a column is empty or a copy of another, relative to the rest."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Problem:
    """design f8[C, N], outcome_s f8[N] > 0, weights f8[N] > 0, anchor f8[C] ≥ 0 worth `anchor_rows` rows,
    bending f8[C, C], the matrix B: positive semi-definite.
    """

    design: FloatArray
    outcome_s: FloatArray
    weights: FloatArray
    anchor: FloatArray
    anchor_rows: float
    bending: FloatArray


def relative_quantile(problem: Problem, level: float) -> FloatArray:
    """β of shape (C,), every weight ≥ 0.

    Raises:
        ModelError: the solver found no answer.
    """
    relative = problem.design / problem.outcome_s
    scale = np.sqrt(np.mean(relative**2, axis=1))
    scale = np.where(scale > 0.0, scale, 1.0)
    relative /= scale[:, None]
    pull = problem.anchor_rows + RIDGE * problem.weights.sum()
    penalty = pull * np.eye(len(scale)) + problem.bending / np.outer(scale, scale)
    towards = pull * problem.anchor * scale
    row_weights = problem.weights
    for _ in range(STEPS):
        beta = _least_squares(relative, row_weights, penalty, towards)
        row_weights = problem.weights * _pinball_weights(1.0 - beta @ relative, level)
        row_weights *= problem.weights.sum() / row_weights.sum()
    return np.asarray(beta / scale)


def _pinball_weights(error: FloatArray, level: float) -> FloatArray:
    side = np.where(error < 0.0, 1.0 - level, level)
    return np.asarray(side / np.maximum(np.abs(error), SMOOTHING))


def _least_squares(
    relative: FloatArray, weights: FloatArray, penalty: FloatArray, towards: FloatArray
) -> FloatArray:
    """β ≥ 0 that minimises Σ w (β·relative - 1)² + β·penalty·β - 2 β·towards; all terms scaled alike."""
    weighted = relative * weights
    with library_call("non-negative least squares", LinAlgError, RuntimeError, ValueError):
        lower = cholesky(weighted @ relative.T + penalty, lower=True)
        right = solve_triangular(lower, weighted.sum(axis=1) + towards, lower=True)
        beta, _ = nnls(lower.T, right)
    return np.asarray(beta, dtype=np.float64)
