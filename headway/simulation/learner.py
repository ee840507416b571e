"""The latency trainer of a simulation: every so often, a model from what was measured since the run began.

It stands for the LatencyTrainer of the live system, on virtual time, and takes none: a model trained at t is
used from t on. Where the live one trains beside the work, this one holds it up, so it also waits until the
window has turned over by `RENEWED`. Training is a function of the samples: a run stays reproducible.
"""

from headway.config.routing import PredictionSettings
from headway.routing import Router
from headway.routing.learning import RecordedPrior, Sample, recorded_priors, training_samples, without_priors
from predictors.latency import LatencyModel, LatencySettings, TrainingWindow, train

RENEWED = 0.5
"""New samples for another training, as a share of those that the window holds."""


class Learner:
    """Trains the model of one router; looks for something new every `prediction.retrain_interval_s`."""

    def __init__(self, prediction: PredictionSettings) -> None:
        self._interval_s, self._most = prediction.retrain_interval_s, prediction.window_samples
        self._settings = LatencySettings(level=prediction.quantile)
        self._window = TrainingWindow(most_rows=self._most)
        self._ttft, self._tpot = RecordedPrior(), RecordedPrior()
        self._fresh: list[Sample] = []
        self._seen = 0
        self._model: LatencyModel | None = None
        self.next_due_s = self._interval_s

    def learn(self, now_s: float, router: Router) -> None:
        """Train, if there is enough new, and let the router use what is better than what it has."""
        self.next_due_s = now_s + self._interval_s
        self._fresh += router.take_samples()
        if len(self._fresh) <= RENEWED * min(self._seen, self._most):
            return
        priors = recorded_priors(self._ttft, self._tpot, self._fresh)
        self._window.add(training_samples(self._fresh))
        self._seen += len(self._fresh)
        self._fresh.clear()
        trained = train(self._window, priors, self._model, self._settings)
        self._model = trained.model
        if trained.accepted:
            router.use_model(without_priors(trained.model))
