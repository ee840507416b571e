"""Fitting and calibrating a curve: settings, relative quantile regression, split-conformal calibration.

With design rows a_i, outcomes y_i > 0 and relative errors e_i = 1 - a_i·β / y_i, minimise over β ≥ 0

    Σ_i w_i ρ(e_i) + m Σ_j s_j² (β_j - β⁰_j)² + β·B·β,        ρ(e) = e (level - [e < 0])

ρ is the pinball loss (Koenker & Bassett 1978), here of the error relative to the outcome. At level 0.5 it is
half the mean absolute percentage error, so the central curve is the one which that measure asks for, and one
request that timed out cannot bend it. β⁰ is the belief without data, s_j the root mean square of a_ij / y_i,
so m counts rows. B is the cost of bends (`curve.py`).

Solved by iteratively reweighted least squares: ρ(e) ≈ e² |level - [e < 0]| / max(|e|, ε), each step a
non-negative least squares problem (Lawson & Hanson 1974) of the size of β, on the Cholesky factor of the
normal equations.

Calibration (Vovk et al. 2005; Romano, Patterson & Candès 2019): a quantile curve q(x) was fitted without n
held-out rows. With the ratios r_i = y_i / q(x_i) of those rows sorted, let k = ⌈(n + 1) level⌉; the
calibrated curve is r_(k) · q(x). If the held-out rows and the next one are exchangeable, P(y ≤ r_(k) q(x)) ≥
level on average over loads, and at most level + 1 / (n + 1) where ratios do not tie, whatever the curve and
the distribution. Live traffic drifts, so the newest rows are held out, and live coverage is measured
(`model.LiveError`).
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy.linalg import LinAlgError, cholesky, solve_triangular
from scipy.optimize import nnls

from predictors.checks import library_call, number
from predictors.latency.features import FloatArray

OWNER = "latency"
ROUNDING = 1e-9


HOLDOUT_SHARE, MOST_HOLDOUT = 0.2, 100
"""The newest share of the rows judges and calibrates, of at most so many: few enough not to age the model."""

FEWEST_ROWS = 20
"""Measured rows of a target below which its prior answers alone, or as many as the quantile takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencySettings:
    """`level` of the quantile, in (0, 0.999]; how many rows are wanted and held out follows from it.

    Raises OptionError: out of range.
    """

    level: float = 0.9

    def __post_init__(self) -> None:
        number(OWNER, "level", self.level, above=0.0, up_to=0.999)

    @property
    def least_holdout(self) -> int:
        """Rows that split-conformal calibration needs at least: level / (1 - level), rounded up."""
        return max(1, math.ceil(self.level / (1.0 - self.level) - ROUNDING))

    @property
    def least_rows(self) -> int:
        """Measured rows from which a curve is trained: half of them may be held out."""
        return max(FEWEST_ROWS, 2 * self.least_holdout)

    def holdout_of(self, rows: int) -> int:
        """The number of `rows` that are held out."""
        most = max(MOST_HOLDOUT, self.least_holdout)
        return min(max(round(HOLDOUT_SHARE * rows), self.least_holdout), most)


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
    """β of shape (C,), every weight ≥ 0. Raises ModelError: the solver found no answer."""
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


LARGEST_FACTOR = 100.0
"""A calibration beyond this, up or down, says that the rows are broken rather than that the curve is."""


def conformal_factor(outcome_s: FloatArray, quantile_s: FloatArray, level: float) -> float:
    """r_(k) from held-out outcomes (n,) and the curve's answers (n,), both > 0.

    With fewer rows than level / (1 - level) there is no such ratio; the largest is taken, and nothing is
    guaranteed. Without any row the factor is 1.
    """
    if len(outcome_s) == 0:
        return 1.0
    ratios = np.sort(outcome_s / quantile_s)
    rank = math.ceil((len(ratios) + 1) * level - ROUNDING)
    factor = float(ratios[min(rank, len(ratios)) - 1])
    return min(max(factor, 1.0 / LARGEST_FACTOR), LARGEST_FACTOR)
