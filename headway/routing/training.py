"""A router's latency model as it is kept up, live as simulated: samples in, models out.

Training rows carry the prior's value at the moment of placement. The trained model is handed on without any
prior, since the router brings its own (`learning`).
"""

from collections.abc import Sequence
from math import log, nan
from typing import Any

from headway.config.routing import PredictionSettings
from headway.routing.learning import RecordedPrior, Sample, recorded_priors, training_samples, without_priors
from predictors.latency import (
    LatencyModel,
    LatencySettings,
    OnlineLatency,
    Target,
    Trained,
    TrainingWindow,
)


class Training:
    """The training window and the model in place. `add` and `train` may run in different threads in turn."""

    def __init__(self, settings: PredictionSettings) -> None:
        self._online = OnlineLatency(
            TrainingWindow(most_rows=settings.window_samples), LatencySettings(level=settings.quantile)
        )
        self._ttft, self._tpot = RecordedPrior(), RecordedPrior()
        self._trained: Trained | None = None
        self._now_s = nan
        self._trainings = self._accepted = self._fresh_rows = 0

    @property
    def model(self) -> LatencyModel | None:
        """The model for routers as of the last `add`, None before the first that was accepted."""
        model = self._online.model(self._now_s) if self._accepted else None
        return None if model is None else without_priors(model)

    @property
    def version(self) -> tuple[int, ...]:
        """Changes with the model: by trainings that were accepted, and by corrections of 1 % and more."""
        factors = self._online.factors(self._now_s).values()
        steps = (round(100.0 * log(factor)) for pair in factors for factor in pair)
        return self._accepted, *steps

    def add(self, samples: Sequence[Sample], now_s: float = nan) -> None:
        """Take in the samples, oldest first, that have come by `now_s`."""
        self._now_s = now_s
        if samples:
            recorded_priors(self._ttft, self._tpot, samples)
            self._fresh_rows += self._online.learn(training_samples(samples), now_s)

    def train(self) -> bool:
        """Train on the window unless nothing is new; True if a new model was accepted."""
        if not self._fresh_rows:
            return False
        self._fresh_rows = 0
        self._trained = self._online.train(recorded_priors(self._ttft, self._tpot, ()))
        self._trainings += 1
        self._accepted += self._trained.accepted
        return self._trained.accepted

    def status(self) -> dict[str, Any]:
        """Plain JSON: rows held, refused, trainings, and the last report of each target."""
        reports = {} if self._trained is None else self._trained.reports
        return {
            "rows": {target.value: self._online.window.size(target) for target in Target},
            "refused": dict(self._online.window.refused),
            "trainings": self._trainings,
            "accepted": self._accepted,
            "reports": {
                target.value: {"accepted": report.accepted, "reason": report.reason, "rows": report.rows}
                for target, report in reports.items()
            },
        }
