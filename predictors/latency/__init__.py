"""Request latency prediction: load of a replica and size of a request → TTFT and TPOT, with a quantile.

    model = cold_model(Priors(ttft=..., tpot=...))         # functions of features, e.g. from profile surfaces
    prediction = model.predict(LatencyFeatures.of(kv_usage=usage, input_tokens=900, waiting=w, running=r))
    prediction.ttft_s, prediction.ttft_quantile_s, prediction.usable      # one row per replica

    online = OnlineLatency()
    online.learn(samples, now_s)                           # measured requests, oldest first
    trained = online.train(priors)                         # now and then, in the background
    trained.reports[Target.TTFT].reason                    # why it was taken, or the one in place was kept
    model = online.model(now_s)                            # what is in place, corrected by its recent errors

Seconds and tokens. Nothing here reads a clock or draws a random number.
"""

from predictors.latency.features import FIELDS, LatencyFeatures, LatencySamples, Target
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
from predictors.latency.online import OnlineLatency, RecentErrors
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
    "OnlineLatency",
    "Prior",
    "Priors",
    "RecentErrors",
    "Target",
    "TargetModel",
    "TargetReport",
    "Trained",
    "TrainingWindow",
    "cold_model",
    "train",
]
