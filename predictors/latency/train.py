"""Training: fit on the older rows, judge on the newest, and replace only what is not better.

Per target the rows are cut at a point in time. The candidate is fitted to the older part; the newest part
judges it by mean absolute percentage error beside the model in place and the prior alone, and calibrates its
quantile.

| what the held-out rows say                                             | outcome                     |
|------------------------------------------------------------------------|-----------------------------|
| fewer rows than `minimum_rows`                                         | kept: too few rows          |
| the solver failed                                                      | kept: its reason            |
| half lie `most_shift` times off the candidate, and there is one in use | kept: held-out rows are off |
| the candidate's error exceeds that of the model in place by `margin`   | kept: worse than in place   |
| the candidate's error exceeds that of the prior alone by `margin`      | kept: worse than the prior  |
| otherwise                                                              | accepted                    |

What is accepted is then refreshed: the centre is fitted anew to all rows, and used if it explains the older
rows as well as before (within `margin`). So what broken rows would teach is met by a judge first, and a sound
centre is not a hundred rows old. The quantile stays as calibrated, on rows that it was not fitted to.

A lasting change is taken up once its rows outweigh the older ones among those fitted; a passing one never is.
Training is a function of its arguments: nothing in it is random.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from predictors.errors import ModelError
from predictors.latency.curve import CENTRE, Learned, Rows, calibration, fit_curve
from predictors.latency.judge import Measured, TargetReport, judged, objection, score, shift
from predictors.latency.model import LatencyModel, Priors, TargetModel, cold_model
from predictors.latency.samples import Target
from predictors.latency.settings import LatencySettings
from predictors.latency.window import TrainingWindow


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """The model to use from now on, and why, per target."""

    model: LatencyModel
    reports: Mapping[Target, TargetReport]

    @property
    def accepted(self) -> bool:
        """Whether any target has a new curve."""
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
        models[target], reports[target] = _train_target(target, measured, (prior, in_place), settings)
    model = LatencyModel(ttft=models[Target.TTFT], tpot=models[Target.TPOT], level=settings.level)
    return Trained(model=model, reports=reports)


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
        off = shift(candidate, held) if in_place.learned else 1.0
        if complaint := objection(report, off, settings):
            return in_place, replace(report, reason=f"kept: {complaint}")
        fresh = _refreshed(candidate, measured, older, settings)
    except ModelError as error:
        return in_place, replace(report, reason=f"kept: {error}")
    return fresh, replace(report, accepted=True, reason="accepted")


def _fit(rows: Rows, settings: LatencySettings) -> Learned:
    centre, quantile = (fit_curve(rows, level, settings) for level in (CENTRE, settings.level))
    return Learned(centre=centre, quantile=quantile)


def _calibrated(
    candidate: TargetModel, report: TargetReport, held: Rows, settings: LatencySettings
) -> tuple[TargetModel, TargetReport]:
    assert candidate.learned is not None, "a candidate has been fitted"
    factor = calibration(candidate.learned.quantile, held, settings.level)
    calibrated = replace(candidate, learned=replace(candidate.learned, factor=factor))
    return calibrated, replace(report, factor=factor)


def _refreshed(
    candidate: TargetModel, measured: Measured, older: Measured, settings: LatencySettings
) -> TargetModel:
    """The candidate with its centre fitted to all rows, unless that spoils what it knew of the older ones."""
    assert candidate.learned is not None, "a candidate has been fitted"
    centre = fit_curve(measured.rows(), CENTRE, settings)
    fresh = replace(candidate, learned=replace(candidate.learned, centre=centre))
    (after, _), (before, _) = score(fresh, older), score(candidate, older)
    return fresh if after <= (1.0 + settings.margin) * before else candidate
