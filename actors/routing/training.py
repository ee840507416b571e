"""The training window and the model in place: samples in, models out, nothing else.

Rows carry the prior's answer of the moment when they were placed; the trained model is handed on without any
prior, since the router brings its own (`headway.routing.training`).
"""

from collections.abc import Sequence
from typing import Any

from headway.config.routing import PredictionSettings
from headway.routing.learning import Sample
from headway.routing.training import RecordedPrior, recorded_priors, training_samples, without_priors
from predictors.latency import LatencyModel, LatencySettings, Target, Trained, TrainingWindow, train


class Training:
    """One model's training. `add` and `train` may run in different threads, not at once."""

    def __init__(self, settings: PredictionSettings) -> None:
        self._settings = LatencySettings(level=settings.quantile)
        self._window = TrainingWindow(most_rows=settings.window_samples)
        self._ttft, self._tpot = RecordedPrior(), RecordedPrior()
        self._trained: Trained | None = None
        self._trainings = self._accepted = self._fresh_rows = 0

    @property
    def model(self) -> LatencyModel | None:
        """What routers should use, None before the first that was accepted."""
        return None if self._trained is None or not self._accepted else without_priors(self._trained.model)

    def add(self, samples: Sequence[Sample]) -> None:
        """Take in samples, oldest first."""
        if samples:
            recorded_priors(self._ttft, self._tpot, samples)
            self._fresh_rows += self._window.add(training_samples(samples))

    def train(self) -> bool:
        """Train on the window unless nothing is new; whether a new model was accepted."""
        if not self._fresh_rows:
            return False
        self._fresh_rows = 0
        previous = None if self._trained is None else self._trained.model
        priors = recorded_priors(self._ttft, self._tpot, ())
        self._trained = train(self._window, priors, previous, self._settings)
        self._trainings += 1
        self._accepted += self._trained.accepted
        return self._trained.accepted

    def status(self) -> dict[str, Any]:
        """Plain JSON: rows held, refused, trainings, and the last report of each target."""
        reports = {} if self._trained is None else self._trained.reports
        return {
            "rows": {target.value: self._window.size(target) for target in Target},
            "refused": dict(self._window.refused),
            "trainings": self._trainings,
            "accepted": self._accepted,
            "reports": {
                target.value: {"accepted": report.accepted, "reason": report.reason, "rows": report.rows}
                for target, report in reports.items()
            },
        }
