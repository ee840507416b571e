"""Finished requests teach how long outputs are, and how predictions came out.

Predictions paired with outcomes are samples for training, and the live error of what was acted upon. In
disaggregated pools a request yields two samples, its TTFT with the prefill replica's features and its TPOT
with the decode replica's.

Trainers of `predictors.latency` want priors as functions of features, but our prior knows more of the fleet
than the features say. So a sample carries our prior's answer at the moment of placement, which `Training`
looks up by the features; routers, which bring their own prior, get the model without it.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from itertools import starmap
from math import isnan, log, nan
from typing import Any

import numpy as np

from headway.config.routing import PredictionSettings
from headway.routing.fleet.fleet import RoutedFleet
from headway.routing.fleet.records import Features, PlainSample, Record, Sample
from headway.routing.fleet.table import FloatArray
from headway.routing.predict.latency import LatencyForecaster
from headway.routing.types import Figures, Labels, RouteRequest
from predictors.latency import (
    LatencyFeatures,
    LatencyModel,
    LatencySamples,
    LatencySettings,
    LiveError,
    OnlineLatency,
    Priors,
    Target,
    Trained,
    TrainingWindow,
)
from predictors.output_length import OutputLengths

MOST_SAMPLES = 20_000
"""Samples kept until they are taken; the oldest go first."""

FLUSH = 512
"""Outcomes that are counted at once."""

NEARLY_ALONE = 2
"""Requests that may enter a replica, itself included, while one counts as alone there: with one beside it,
its TPOT is about the same."""


class Learning:
    """Outcomes of one router. Teaches `latency` how long requests stay, and how safe its predictions are."""

    def __init__(self, latency: LatencyForecaster, fleet: RoutedFleet) -> None:
        self._latency, self._fleet, self._lengths = latency, fleet, OutputLengths()
        self._samples: deque[PlainSample] = deque(maxlen=MOST_SAMPLES)
        self._errors = {target: LiveError() for target in Target}
        self._pairs: list[tuple[float, float, float, float]] = []
        """TTFT as predicted and measured, and TPOT; to count many at once takes as long as to count one."""

    def expected_output(self, request: RouteRequest) -> int:
        """Output tokens that a request is thought to produce."""
        return max(1, round(self._lengths.predict(request.input_tokens, request.max_tokens).mean))

    def expected_after(self, request: RouteRequest, output_tokens: int) -> int:
        """The same in all, once there are `output_tokens` of it; never fewer than these."""
        mean = self._lengths.mean_from(request.input_tokens, request.max_tokens, output_tokens)
        return max(output_tokens, round(mean))

    def completed(self, now_s: float, record: Record, output_tokens: int) -> None:
        """A request has all its tokens, and is still at its replicas."""
        self._lengths.observe(record.request.input_tokens, output_tokens)
        if record.first_token_s >= 0.0:
            self._latency.stayed(now_s - record.first_token_s)
            self._outcome(now_s, record, output_tokens)

    def broken_off(self, now_s: float, record: Record) -> None:
        """It ended without completing: its TTFT, if it had one, is an outcome like that of others.

        Without it the predictions that refuse the rest of a flood seem to lack outcomes, and are doubted. Its
        stay says nothing of those that complete.
        """
        if record.first_token_s >= 0.0:
            self._outcome(now_s, record, output_tokens=0)

    def _outcome(self, now_s: float, record: Record, output_tokens: int) -> None:
        """What a request took; TPOT is not known of one with fewer than two output tokens."""
        if not record.tracked:
            return
        first_s = record.first_token_s
        ttft_s = first_s - record.placed_s
        tpot_s = (now_s - first_s) / (output_tokens - 1) if output_tokens > 1 else nan
        self._sample(record, ttft_s, tpot_s)
        self._latency.ended(record, ttft_s, tpot_s)
        for replica in (record.prefill, record.decode if record.decode is not record.prefill else None):
            if replica is not None:
                self._fleet.set_caution(replica)
        self._weigh(now_s, record, (ttft_s, tpot_s))

    def _weigh(self, now_s: float, record: Record, measured: tuple[float, float]) -> None:
        """What the outcome says of the predictions by which others are refused."""
        evidence, decode = self._latency.evidence, record.decode
        kind = -1 if decode is None else self._latency.kind_of(decode.gpu_type)
        if decode is None or kind < 0:
            return
        ttft_s, tpot_s = measured
        prior = Sample(*record.tracked[0]).prior_ttft_s, Sample(*record.tracked[-1]).prior_tpot_s
        evidence.outcome(now_s, prior, measured)
        if record.found_idle >= 0:
            alone = decode.entered <= record.found_idle + NEARLY_ALONE
            evidence.alone(now_s, kind, prior, (ttft_s, tpot_s if alone else nan))
        slo, waited_s = record.slo, record.placed_s - record.request.arrival_s
        kept = waited_s + ttft_s <= slo.ttft_s and not tpot_s > slo.tpot_s
        evidence.probes.outcome(now_s, kind, record, kept=kept)

    def take(self) -> Sequence[Sample]:
        """The samples since the last call, oldest first."""
        taken = tuple(starmap(Sample, self._samples))
        self._samples.clear()
        return taken

    def figures(self) -> Figures:
        """Live errors of predictions that requests were placed by: by target, `error`, `bias` and `pairs`.

        And of requests that predictions had refused, how many were `placed`, and how many `kept` their SLO.
        """
        probes, found = self._latency.evidence.probes, dict[Labels, float]()
        self._flush()
        for target, errors in self._errors.items():
            figures = errors.figures()
            found |= {(target.value, name): getattr(figures, name) for name in ("error", "bias")}
            found[target.value, "pairs"] = float(figures.pairs)
        if probes.placed:
            found |= {("refused", "placed"): float(probes.placed), ("refused", "kept"): float(probes.kept)}
        return found

    def _sample(self, record: Record, ttft_s: float, tpot_s: float) -> None:
        """Samples of a tracked request; NaN for what could not be measured."""
        for features, prior_ttft_s, prior_tpot_s, predicted_ttft_s, predicted_tpot_s in record.tracked:
            self._pairs.append((predicted_ttft_s, ttft_s, predicted_tpot_s, tpot_s))
            # Without a prior nothing is said of this target.
            known_s = nan if isnan(prior_ttft_s) else ttft_s, nan if isnan(prior_tpot_s) else tpot_s
            self._samples.append((features, prior_ttft_s, prior_tpot_s, *known_s))
        if len(self._pairs) >= FLUSH:
            self._flush()

    def _flush(self) -> None:
        pairs, self._pairs = np.array(self._pairs).reshape(-1, 4), []
        for place, target in enumerate((Target.TTFT, Target.TPOT)):
            predicted_s, measured_s = pairs[:, 2 * place : 2 * place + 2].T
            self._errors[target].observe(
                predicted_s=predicted_s, quantile_s=predicted_s, measured_s=measured_s
            )


def training_samples(samples: Sequence[Sample]) -> LatencySamples:
    """Samples in the form that training windows take."""
    table = np.array([each.features for each in samples], dtype=np.float64).reshape(-1, 8)
    return LatencySamples(
        features=LatencyFeatures.from_table(table),
        ttft_s=np.array([each.ttft_s for each in samples]),
        tpot_s=np.array([each.tpot_s for each in samples]),
    )


class RecordedPrior:
    """A prior by look-up: features of a recorded sample → our prior's answer then; NaN for others.

    Of samples with the same features the latest counts. `most` rows are remembered.
    """

    def __init__(self, most: int = 4 * MOST_SAMPLES) -> None:
        self._most = most
        self._rows: dict[Features, float] = {}

    def record(self, features: Features, prior_s: float) -> None:
        """Remember a row, if it has a prior."""
        if isnan(prior_s):
            return
        self._rows.pop(features, None)
        self._rows[features] = prior_s
        if len(self._rows) > self._most:
            del self._rows[next(iter(self._rows))]

    def __call__(self, features: LatencyFeatures) -> FloatArray:
        """The recorded answers for rows of features, f8[N]."""
        rows = features.table().tolist()
        return np.array([self._rows.get(tuple(row), nan) for row in rows])


class Training:
    """A router's latency model as it is kept up, live as simulated: samples in, models out.

    `add` and `train` may run in different threads in turn.
    """

    def __init__(self, settings: PredictionSettings) -> None:
        self._online = OnlineLatency(TrainingWindow(most_rows=settings.window_samples), LatencySettings())
        self._ttft, self._tpot = RecordedPrior(), RecordedPrior()
        self._trained: Trained | None = None
        self._now_s = nan
        self._trainings = self._accepted = self._fresh_rows = 0

    @property
    def model(self) -> LatencyModel | None:
        """The model for routers as of the last `add`, None before the first that was accepted."""
        if not self._accepted or (model := self._online.model(self._now_s)) is None:
            return None
        return replace(model, ttft=replace(model.ttft, prior=None), tpot=replace(model.tpot, prior=None))

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
            for each in samples:
                self._ttft.record(each.features, each.prior_ttft_s)
                self._tpot.record(each.features, each.prior_tpot_s)
            self._fresh_rows += self._online.learn(training_samples(samples), now_s)

    def train(self) -> bool:
        """Train on the window unless nothing is new; True if a new model was accepted."""
        if not self._fresh_rows:
            return False
        self._fresh_rows = 0
        self._trained = self._online.train(Priors(ttft=self._ttft, tpot=self._tpot))
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
