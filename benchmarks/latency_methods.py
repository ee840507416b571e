"""Methods that the latency benchmark compares: the prior alone, the project's model, and common regressors.

Prior: a profile's surfaces. TTFT = ttft(uncached tokens) + prompt tokens in flight / best prefill throughput,
TPOT = itl(KV usage, input tokens). The samples do not say which model was served; where the profile is
another's, its scale is left to be learned.

Ridge and boosting see the same eight features; their quantile is the normal one (ridge) or a second model at
0.9 (boosting); the "log" ones are fitted to the logarithm. Their predictions count as 1 ms at least.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

import interp
from predictors.latency import (
    LatencyFeatures,
    LatencyModel,
    LatencySamples,
    Priors,
    Target,
    TrainingWindow,
    cold_model,
    train,
)

Array = npt.NDArray[np.float64]
Answer = tuple[Array, Array]
"""Centre and 0.9 quantile in seconds."""
Predict = Callable[[LatencyFeatures, Target], Answer]
Learn = Callable[[LatencySamples, int], Predict]

LEVEL = 0.9
Z = 1.2815515655446004
"""The standard normal quantile at 0.9."""
SHORTEST_S = 1e-3
OURS = "ours"
WITH_PRIOR, WITHOUT_PRIOR = f"{OURS} (prior + residual)", f"{OURS} without prior"


def profile_priors(profile: interp.Profile) -> Priors:
    """Latencies of a profile, before any measurement."""

    sampled = profile.prefill.table.isl_tokens
    best = float(np.max(profile.prefill.throughput_per_gpu(sampled))) * profile.gpus_per_engine

    def ttft(features: LatencyFeatures) -> Array:
        uncached = np.maximum(features.input_tokens * (1.0 - features.prefix_score), 1.0)
        return np.asarray(profile.prefill.ttft_s(uncached) + features.prefill_tokens_in_flight / best)

    def tpot(features: LatencyFeatures) -> Array:
        return np.asarray(profile.decode.itl_s(features.kv_usage, np.maximum(features.input_tokens, 1.0)))

    return Priors(ttft=ttft, tpot=tpot)


def of_model(model: LatencyModel) -> Predict:
    """The project's model as a method."""

    def predict(features: LatencyFeatures, target: Target) -> Answer:
        answer = model.predict(features)
        if target is Target.TTFT:
            return answer.ttft_s, answer.ttft_quantile_s
        return answer.tpot_s, answer.tpot_quantile_s

    return predict


def _prior_alone(priors: Priors) -> Learn:
    return lambda samples, seed: of_model(cold_model(priors))


def _ours(priors: Priors) -> Learn:
    def learn(samples: LatencySamples, seed: int) -> Predict:
        window = TrainingWindow()
        window.add(samples)
        return of_model(train(window, priors).model)

    return learn


@dataclass(frozen=True, slots=True, kw_only=True)
class _Regressor:
    """A scikit-learn baseline over the raw features: `fit` gives centre and quantile functions of a table."""

    fit: Callable[[Array, Array, int], Callable[[Array], Answer]]
    log: bool = False

    def __call__(self, samples: LatencySamples, seed: int) -> Predict:
        """Fitted to both targets."""
        fitted = {target: self._fitted(samples, target, seed) for target in Target}

        def predict(features: LatencyFeatures, target: Target) -> Answer:
            centre, quantile = fitted[target](features.table())
            if self.log:
                centre, quantile = (np.exp(np.clip(each, -14.0, 14.0)) for each in (centre, quantile))
            return np.maximum(centre, SHORTEST_S), np.maximum(quantile, SHORTEST_S)

        return predict

    def _fitted(self, samples: LatencySamples, target: Target, seed: int) -> Callable[[Array], Answer]:
        outcome = samples.outcome_s(target)
        measured = np.isfinite(outcome)
        known = np.log(outcome[measured]) if self.log else outcome[measured]
        return self.fit(samples.features.table()[measured], known, seed)


def _ridge(table: Array, outcome: Array, seed: int) -> Callable[[Array], Answer]:
    from sklearn.linear_model import BayesianRidge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    model = make_pipeline(StandardScaler(), BayesianRidge()).fit(table, outcome)

    def answer(asked: Array) -> Answer:
        centre, spread = model.predict(asked, return_std=True)
        return centre, centre + Z * spread

    return answer


def _boosting(table: Array, outcome: Array, seed: int) -> Callable[[Array], Answer]:
    from sklearn.ensemble import HistGradientBoostingRegressor as Boosting

    centre = Boosting(random_state=seed).fit(table, outcome)
    quantile = Boosting(loss="quantile", quantile=LEVEL, random_state=seed).fit(table, outcome)
    return lambda asked: (centre.predict(asked), quantile.predict(asked))


def methods(priors: Priors) -> Mapping[str, Learn]:
    """All that are compared, by name."""
    return {
        "prior alone": _prior_alone(priors),
        WITH_PRIOR: _ours(priors),
        WITHOUT_PRIOR: _ours(Priors()),
        "Bayesian ridge": _Regressor(fit=_ridge),
        "Bayesian ridge, log": _Regressor(fit=_ridge, log=True),
        "boosting": _Regressor(fit=_boosting),
        "boosting, log": _Regressor(fit=_boosting, log=True),
    }
