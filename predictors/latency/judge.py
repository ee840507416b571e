"""Judging a candidate on held-out rows, beside the model in place and the prior alone.

The comparison is even where the held-out rows are newer than what the model in place was fitted to, so train
again once about as many rows have arrived as are held out; sooner, it favours the model in place a little.
"""

import math
from dataclasses import dataclass, replace

import numpy as np

from predictors.latency.curve import Rows
from predictors.latency.features import BoolArray, FloatArray, LatencyFeatures
from predictors.latency.model import Prior, TargetModel, answers, ask
from predictors.latency.samples import Target
from predictors.latency.settings import LatencySettings
from predictors.latency.window import TrainingWindow

NOT_JUDGED = math.nan


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetReport:
    """What training came to for one target.

    Errors are mean absolute percentage errors on the held-out rows, as shares (0.05 is 5 %); coverages the
    share of these rows at or below the quantile; NaN where there was nothing to judge. `coverage` is the
    candidate's before calibration; `previous_coverage` that of the model in place. `factor` is the
    candidate's calibration.
    """

    target: Target
    accepted: bool
    reason: str
    rows: int
    held_out: int = 0
    candidate_error: float = NOT_JUDGED
    previous_error: float = NOT_JUDGED
    prior_error: float = NOT_JUDGED
    coverage: float = NOT_JUDGED
    previous_coverage: float = NOT_JUDGED
    factor: float = NOT_JUDGED


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Measured:
    """Measured rows, oldest first, without those where the prior has no answer."""

    features: LatencyFeatures
    outcome_s: FloatArray
    prior_s: FloatArray | None

    def __len__(self) -> int:
        return len(self.outcome_s)

    @classmethod
    def held_by(cls, window: TrainingWindow, target: Target, prior: Prior | None) -> "Measured":
        """What `window` holds for `target`."""
        features, outcome_s = window.rows(target)
        if prior is None or len(outcome_s) == 0:
            return cls(features=features, outcome_s=outcome_s, prior_s=None)
        prior_s = ask(prior, features)
        every = cls(features=features, outcome_s=outcome_s, prior_s=prior_s)
        return every if np.isfinite(prior_s).all() else every.part(np.isfinite(prior_s))

    def part(self, which: slice | BoolArray) -> "Measured":
        """The rows that a slice or a mask picks."""
        prior_s = None if self.prior_s is None else self.prior_s[which]
        features = LatencyFeatures.from_table(self.features.table()[which])
        return Measured(features=features, outcome_s=self.outcome_s[which], prior_s=prior_s)

    def rows(self) -> Rows:
        """The rows as curves are fitted to them."""
        return Rows(inputs=self.features.inputs(), outcome_s=self.outcome_s, prior_s=self.prior_s)


def judged(
    report: TargetReport, held: Measured, models: tuple[TargetModel, TargetModel, TargetModel]
) -> TargetReport:
    """The report with the errors of candidate, model in place and prior on the held-out rows."""
    (error, coverage), (previous_error, previous_coverage), (prior_error, _) = (
        score(model, held) for model in models
    )
    return replace(
        report,
        held_out=len(held.outcome_s),
        candidate_error=error,
        coverage=coverage,
        previous_error=previous_error,
        previous_coverage=previous_coverage,
        prior_error=prior_error,
    )


def score(model: TargetModel, held: Measured) -> tuple[float, float]:
    """Mean absolute percentage error and coverage where the model answers; NaN where it nowhere does."""
    centre, quantile = answers(model, held.features)
    answered = np.isfinite(centre)
    if not answered.any():
        return NOT_JUDGED, NOT_JUDGED
    outcome_s = held.outcome_s[answered]
    error = np.abs(centre[answered] / outcome_s - 1.0).mean()
    return float(error), float((outcome_s <= quantile[answered]).mean())


def shift(candidate: TargetModel, held: Measured) -> float:
    """The median ratio of held-out outcomes to the candidate, above or below 1 alike: always >= 1."""
    centre, _ = answers(candidate, held.features)
    return math.exp(abs(float(np.median(np.log(held.outcome_s / centre)))))


def objection(report: TargetReport, off: float, settings: LatencySettings) -> str | None:
    """Why the candidate may not be used, or None; `off` is its `shift`. What was not judged is no reason."""
    slack = 1.0 + settings.margin
    if off > settings.most_shift:
        return f"half of the held-out rows are {off:.1f} times off"
    if report.candidate_error > slack * report.previous_error:
        return f"error {report.candidate_error:.1%}, the model in place has {report.previous_error:.1%}"
    if report.candidate_error > slack * report.prior_error:
        return f"error {report.candidate_error:.1%}, the prior alone has {report.prior_error:.1%}"
    return None
