"""Training: fit on the older rows, judge on the newest, and replace only what is not better.

Per target the rows are cut at a point in time. The candidate is fitted to the older part; the newest part
judges it by mean absolute percentage error beside the model in place and the prior alone, and calibrates its
quantile.

| what the held-out rows say                                             | outcome                     |
|------------------------------------------------------------------------|-----------------------------|
| fewer rows than the quantile takes                                     | kept: too few rows          |
| the solver failed                                                      | kept: its reason            |
| half lie MOST_SHIFT times off the candidate, and there is one in use   | kept: held-out rows are off |
| the candidate's error exceeds that of the model in place by MARGIN     | kept: worse than in place   |
| the candidate's error exceeds that of the prior alone by MARGIN        | kept: worse than the prior  |
| otherwise                                                              | accepted                    |

An accepted candidate is then refreshed: the centre is fitted anew to all rows, and used if it explains the
older rows as well as before (within MARGIN). So a judge is the first to meet broken rows, and a sound
centre is not a hundred rows old. The quantile stays as calibrated, on rows that it was not fitted to.

Train again once about as many rows have arrived as are held out; sooner, the comparison favours the model in
place a little. Nothing in training is random.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from predictors.checks import ModelError
from predictors.latency.curve import CENTRE, Learned, Rows, fit_curve
from predictors.latency.features import BoolArray, FloatArray, LatencyFeatures, Target
from predictors.latency.fit import LatencySettings, conformal_factor
from predictors.latency.model import LatencyModel, Prior, Priors, TargetModel, answers, ask, cold_model
from predictors.latency.window import TrainingWindow

NOT_JUDGED = math.nan

MOST_SHIFT = 3.0
"""Held-out rows of which half lie further off than this factor are not believed."""

MARGIN = 0.25
"""A candidate may be worse than the best alternative by this share of its error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetReport:
    """The outcome of training for one target.

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
        """The rows of `window` for `target`."""
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


def objection(report: TargetReport, off: float) -> str | None:
    """The reason not to use the candidate, or None; `off` is its `shift`. NaN, not judged, is no reason."""
    slack = 1.0 + MARGIN
    if off > MOST_SHIFT:
        return f"half of the held-out rows are {off:.1f} times off"
    error = f"error {100.0 * report.candidate_error:.1f} %"
    if report.candidate_error > slack * report.previous_error:
        return f"{error}, the model in place has {100.0 * report.previous_error:.1f} %"
    if report.candidate_error > slack * report.prior_error:
        return f"{error}, the prior alone has {100.0 * report.prior_error:.1f} %"
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """The model to use from now on, and why, per target."""

    model: LatencyModel
    reports: Mapping[Target, TargetReport]

    @property
    def accepted(self) -> bool:
        """True if any target has a new curve."""
        return any(report.accepted for report in self.reports.values())


def train(
    window: TrainingWindow,
    priors: Priors,
    previous: LatencyModel | None = None,
    settings: LatencySettings | None = None,
) -> Trained:
    """A model from what the window holds; `previous` stays in place where the new one is not good enough.

    A previous curve keeps the prior that it was fitted over; a target without one takes the prior given here.
    """
    settings = settings or LatencySettings()
    before = previous or cold_model(priors, level=settings.level)
    models: dict[Target, TargetModel] = {}
    reports: dict[Target, TargetReport] = {}
    for target in Target:
        prior = TargetModel(prior=priors.of(target))
        in_place = before.of(target) if before.of(target).learned is not None else prior
        measured = Measured.held_by(window, target, prior.prior)
        model, reports[target] = _train_target(target, measured, (prior, in_place), settings)
        if reports[target].accepted:
            model = _with(model, partial(replace, rows=len(measured), newest_s=window.newest_s))
        models[target] = model
    both = LatencyModel(ttft=models[Target.TTFT], tpot=models[Target.TPOT], level=settings.level)
    return Trained(model=both, reports=reports)


def _train_target(
    target: Target,
    measured: Measured,
    alternatives: tuple[TargetModel, TargetModel],
    settings: LatencySettings,
) -> tuple[TargetModel, TargetReport]:
    """The model of one target, and the report; `alternatives` are the prior alone and the model in place."""
    prior, in_place = alternatives
    count = len(measured)
    report = TargetReport(target=target, accepted=False, reason="", rows=count)
    if count < settings.least_rows:
        return in_place, replace(report, reason=f"kept: too few rows, {count} of {settings.least_rows}")
    cut = count - settings.holdout_of(count)
    older, held = measured.part(slice(cut)), measured.part(slice(cut, None))
    try:
        candidate = replace(prior, learned=_fit(older.rows(), settings))
        report = judged(report, held, (candidate, in_place, prior))
        candidate, report = _calibrated(candidate, report, held.rows(), settings)
        # Without a model in place there is nothing better to keep, however far off the rows seem.
        off = shift(candidate, held) if in_place.learned else 1.0
        if complaint := objection(report, off):
            return in_place, replace(report, reason=f"kept: {complaint}")
        fresh = _refreshed(candidate, measured, older)
    except ModelError as error:
        return in_place, replace(report, reason=f"kept: {error}")
    return fresh, replace(report, accepted=True, reason="accepted")


def _fit(rows: Rows, settings: LatencySettings) -> Learned:
    centre, quantile = (fit_curve(rows, level) for level in (CENTRE, settings.level))
    return Learned(centre=centre, quantile=quantile)


def _calibrated(
    candidate: TargetModel, report: TargetReport, held: Rows, settings: LatencySettings
) -> tuple[TargetModel, TargetReport]:
    assert candidate.learned is not None, "a candidate has been fitted"
    quantile_s = candidate.learned.quantile.at(held.inputs, held.prior_s)
    factor = conformal_factor(held.outcome_s, quantile_s, settings.level)
    return _with(candidate, partial(replace, factor=factor)), replace(report, factor=factor)


def _refreshed(candidate: TargetModel, measured: Measured, older: Measured) -> TargetModel:
    """The candidate with its centre fitted to all rows, unless that spoils its fit to the older ones."""
    rows = measured.rows()
    fresh = _with(candidate, partial(replace, centre=fit_curve(rows, CENTRE)))
    (after, _), (before, _) = score(fresh, older), score(candidate, older)
    return fresh if after <= (1.0 + MARGIN) * before else candidate


def _with(model: TargetModel, change: Callable[[Learned], Learned]) -> TargetModel:
    assert model.learned is not None, "a candidate has been fitted"
    return replace(model, learned=change(model.learned))
