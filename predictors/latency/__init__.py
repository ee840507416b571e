"""Request latency prediction: load of a replica and size of a request → TTFT and TPOT, with a quantile.

    model = cold_model(Priors(ttft=..., tpot=...))         # functions of features, e.g. from profile surfaces
    prediction = model.predict(LatencyFeatures.of(kv_usage=usage, input_tokens=900, waiting=w, running=r))
    prediction.ttft_s, prediction.ttft_quantile_s, prediction.usable      # one row per replica

    window = TrainingWindow()
    window.add(samples)                                    # measured requests, oldest first
    trained = train(window, priors, previous=model)        # in the background
    model = trained.model                                  # the old one's parts where the new were no better
    trained.reports[Target.TTFT].reason

Seconds and tokens. Nothing here reads a clock or draws a random number.
"""

from predictors.latency.features import FIELDS, LatencyFeatures, LatencySamples, Target, samples_from_json
from predictors.latency.fit import LatencySettings
from predictors.latency.model import (
    ErrorFigures,
    LatencyModel,
    LatencyPrediction,
    LiveError,
    Prior,
    Priors,
    TargetModel,
    cold_model,
)
from predictors.latency.train import TargetReport, Trained, train
from predictors.latency.window import TrainingWindow

__all__ = [
    "FIELDS",
    "ErrorFigures",
    "LatencyFeatures",
    "LatencyModel",
    "LatencyPrediction",
    "LatencySamples",
    "LatencySettings",
    "LiveError",
    "Prior",
    "Priors",
    "Target",
    "TargetModel",
    "TargetReport",
    "Trained",
    "TrainingWindow",
    "cold_model",
    "samples_from_json",
    "train",
]
