"""What requests teach that complete: how long outputs are, and how predictions came out.

Predictions paired with outcomes are samples for training, and the live error of what was acted upon. A sample
carries our prior's answer beside the features, because the prior knows more of the fleet than the features
say (`training`). In disaggregated pools a request yields two samples, its TTFT with the prefill replica's
features and its TPOT with the decode replica's.
"""

from collections import deque
from collections.abc import Sequence
from math import inf, nan
from typing import NamedTuple

import numpy as np

from headway.routing.counters import Figures
from headway.routing.latency import Latency
from headway.routing.record import Record
from headway.routing.types import RouteRequest
from predictors.latency import ErrorFigures, LiveError, Target
from predictors.output_length import OutputLengths

MOST_SAMPLES = 20_000
"""Samples kept until they are taken; the oldest go first."""

FLUSH = 512
"""Outcomes that are counted at once."""

LEAST_GAPS = 32
"""Output tokens from which a TPOT says something of predictions: the mean of few gaps is mostly chance."""

Features = tuple[float, ...]


class Tracked(NamedTuple):
    """What was predicted from one replica's features; NaN where nothing was."""

    features: Features
    prior_ttft_s: float
    prior_tpot_s: float
    ttft_s: float
    tpot_s: float


class Sample(NamedTuple):
    """One row for training: features in the order of `predictors.latency.FIELDS`, prior, outcome.

    Seconds, NaN for a target that the row says nothing about. TTFT counts from the placement.
    """

    features: Features
    prior_ttft_s: float
    prior_tpot_s: float
    ttft_s: float
    tpot_s: float


class Learning:
    """Outcomes of one router. Teaches `latency` how long requests stay, and how safe its predictions are."""

    def __init__(self, latency: Latency) -> None:
        self._latency, self._lengths = latency, OutputLengths()
        self._samples: deque[Sample] = deque(maxlen=MOST_SAMPLES)
        self._errors = {target: LiveError() for target in Target}
        self._pairs: dict[Target, list[tuple[float, float]]] = {target: [] for target in Target}

    def expected_output(self, request: RouteRequest) -> int:
        """Output tokens that a request is thought to produce."""
        return max(1, round(self._lengths.predict(request.input_tokens, request.max_tokens).mean))

    def completed(self, now_s: float, record: Record, output_tokens: int) -> None:
        """A request has all its tokens."""
        self._lengths.observe(record.request.input_tokens, output_tokens)
        first_s = record.first_token_s
        if first_s < 0.0:
            return
        self._latency.stayed(now_s - first_s)
        ttft_s = first_s - record.placed_s
        self._latency.joined_safety.observe(record.joined_s, ttft_s)
        if record.tracked:
            tpot_s = (now_s - first_s) / (output_tokens - 1) if output_tokens > 1 else nan
            self._sample(record, ttft_s, tpot_s)
            enough = output_tokens >= LEAST_GAPS
            self._latency.ended(record.ttft_s, ttft_s, record.tpot_s, tpot_s if enough else nan)

    def take(self) -> Sequence[Sample]:
        """The samples since the last call, oldest first."""
        taken = tuple(self._samples)
        self._samples.clear()
        return taken

    def errors(self) -> dict[Target, ErrorFigures]:
        """Live errors of the predictions that requests were placed by."""
        for target in Target:
            self._flush(target)
        return {target: error.figures() for target, error in self._errors.items()}

    def figures(self) -> Figures:
        """The same as metrics: by target, `error`, `bias` and `pairs`."""
        return {
            (target.value, name): float(getattr(figures, name))
            for target, figures in self.errors().items()
            for name in ("error", "bias", "pairs")
        }

    def _sample(self, record: Record, ttft_s: float, tpot_s: float) -> None:
        """Samples of a tracked request; NaN for what could not be measured."""
        for each in record.tracked:
            self._pair(Target.TTFT, each.ttft_s, ttft_s)
            self._pair(Target.TPOT, each.tpot_s, tpot_s)
            self._samples.append(
                Sample(
                    features=each.features,
                    prior_ttft_s=each.prior_ttft_s,
                    prior_tpot_s=each.prior_tpot_s,
                    ttft_s=ttft_s if each.prior_ttft_s == each.prior_ttft_s else nan,
                    tpot_s=tpot_s if each.prior_tpot_s == each.prior_tpot_s else nan,
                )
            )

    def _pair(self, target: Target, predicted_s: float, measured_s: float) -> None:
        if 0.0 < predicted_s < inf and 0.0 < measured_s < inf:
            pairs = self._pairs[target]
            pairs.append((predicted_s, measured_s))
            if len(pairs) >= FLUSH:
                self._flush(target)

    def _flush(self, target: Target) -> None:
        pairs, self._pairs[target] = self._pairs[target], []
        if pairs:
            predicted_s, measured_s = np.array(pairs).T
            self._errors[target].observe(
                predicted_s=predicted_s, quantile_s=predicted_s, measured_s=measured_s
            )
