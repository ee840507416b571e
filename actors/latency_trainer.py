"""The actor that trains the latency model: samples from the router, models back to it.

    every PULL_S                    samples into the training window; they also say how far off the model is,
                                    and the router gets it with that correction
    every `retrain_interval_s`      a model from the window, in a thread

It keeps nothing in the store. After its own crash the window starts empty and the router keeps its model;
after the router's crash the router gets the last model again, and with each model the age of its newest
sample: an old one counts for little until outcomes come. Only one router has to be asked: a cluster has
one control plane, and that one model.

Training rows carry the prior's value at the moment of placement. The trained model is handed on without any
prior, since the router brings its own (`headway.routing.training`).
"""

import asyncio
import logging
import time
from collections.abc import Sequence
from math import log, nan
from typing import Any

from actors import names
from actors.names import ActorGone, CallError, NamedActor
from headway.config import HeadwayConfig
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

PULL_S = 2.0
TIMEOUT_S = 10.0

logger = logging.getLogger(__name__)


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


class LatencyTrainer:
    """The trainer of one model's router."""

    async def __init__(self, config_json: str) -> None:  # type: ignore[misc] # Ray awaits it
        config = HeadwayConfig.model_validate_json(config_json)
        self._settings = config.routing.prediction
        self._training = Training(self._settings)
        self._router = NamedActor(names.router(config.model))
        self._epoch: str | None = None
        self._basis: int | None = None
        self._version: tuple[int, ...] = ()
        self._failure = "not asked yet"
        self._errors = 0
        self._trained_s = self._newest_s = time.monotonic()
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def status(self) -> dict[str, Any]:
        """Rows held per target, trainings, the last reports, and the last failure to reach the router."""
        return {**self._training.status(), "errors": self._errors, "failure": self._failure}

    async def ready(self) -> tuple[bool, str]:
        """True if the router answers, else False and the reason."""
        return not self._failure, self._failure

    async def _run(self) -> None:
        while True:
            try:
                await self._step()
                self._failure = ""
            except CallError as error:
                self._failure = str(error)
                if not isinstance(error, ActorGone):
                    self._errors += 1
            except Exception as error:
                self._errors += 1
                self._failure = f"{type(error).__name__}: {error}"
                logger.exception("the latency model could not be trained")
            await asyncio.sleep(PULL_S)

    async def _step(self) -> None:
        epoch, basis, samples = await self._router.call("take_samples", timeout_s=TIMEOUT_S)
        if basis != self._basis:
            # Samples are ratios to surfaces: those of other profiles say nothing of these.
            self._basis, self._training = basis, Training(self._settings)
        now_s = time.monotonic()
        self._training.add(samples, now_s)
        if samples:
            self._newest_s = now_s
        if time.monotonic() >= self._trained_s + self._settings.retrain_interval_s:
            self._trained_s = time.monotonic()
            await asyncio.to_thread(self._training.train)
        model, version = self._training.model, self._training.version
        if model is not None and (version != self._version or epoch != self._epoch):
            # Until the router has it: a call that fails is made again.
            self._epoch = None
            age_s = time.monotonic() - self._newest_s
            await self._router.call("use_model", model, basis, age_s, timeout_s=TIMEOUT_S)
            self._version = version
        self._epoch = epoch
