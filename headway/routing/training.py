"""A router's samples as trainers of `predictors.latency` take them.

They want priors as functions of features; ours knows more of the fleet than the features say. So
`recorded_priors` are such functions for rows that were recorded, and `without_priors` is the trained model
without that memory, for routers, which bring their own prior.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import nan

import numpy as np

from headway.routing.fleet import FloatArray
from headway.routing.learning import MOST_SAMPLES, Features, Sample
from predictors.latency import LatencyFeatures, LatencyModel, LatencySamples, Priors


def training_samples(samples: Sequence[Sample]) -> LatencySamples:
    """Samples in the form that training windows take."""
    table = np.array([each.features for each in samples], dtype=np.float64).reshape(-1, 8)
    return LatencySamples(
        features=LatencyFeatures.from_table(table),
        ttft_s=np.array([each.ttft_s for each in samples]),
        tpot_s=np.array([each.tpot_s for each in samples]),
    )


class RecordedPrior:
    """A prior by look-up: features of a recorded sample → what our prior said then; NaN for others.

    Of samples with the same features the latest counts. `most` rows are remembered.
    """

    def __init__(self, most: int = 4 * MOST_SAMPLES) -> None:
        self._most = most
        self._rows: dict[Features, float] = {}

    def record(self, features: Features, prior_s: float) -> None:
        """Remember a row."""
        self._rows.pop(features, None)
        self._rows[features] = prior_s
        if len(self._rows) > self._most:
            del self._rows[next(iter(self._rows))]

    def __call__(self, features: LatencyFeatures) -> FloatArray:
        """The recorded answers for rows of features, f8[N]."""
        rows = features.table().tolist()
        return np.array([self._rows.get(tuple(row), nan) for row in rows])


def recorded_priors(ttft: RecordedPrior, tpot: RecordedPrior, samples: Sequence[Sample]) -> Priors:
    """Priors for training that know `samples` too."""
    for each in samples:
        if each.prior_ttft_s == each.prior_ttft_s:
            ttft.record(each.features, each.prior_ttft_s)
        if each.prior_tpot_s == each.prior_tpot_s:
            tpot.record(each.features, each.prior_tpot_s)
    return Priors(ttft=ttft, tpot=tpot)


def without_priors(model: LatencyModel) -> LatencyModel:
    """The model for routers, which bring their own prior."""
    return replace(model, ttft=replace(model.ttft, prior=None), tpot=replace(model.tpot, prior=None))
