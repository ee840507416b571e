"""The actor that trains the latency model: samples from the router, models back to it.

    every PULL_S                    samples into the training window; they also say how far off the model is,
                                    and the router gets it with that correction
    every `retrain_interval_s`      a model from the window, in a thread

It keeps nothing in the store. After its own crash the window starts empty and the router keeps its model;
after the router's crash the router gets the last model again, and with each model the age of its newest
sample: an old one counts for little until outcomes come. Only one router has to be asked: an application
has one model.
"""

import asyncio
import logging
import time
from typing import Any

from actors import names
from actors.names import ActorGone, CallError, NamedActor
from headway.config import HeadwayConfig
from headway.routing.predict.learning import Training

PULL_S = 2.0
TIMEOUT_S = 10.0

logger = logging.getLogger(__name__)


class LatencyTrainer:
    """The trainer of one model's router. Made within a running event loop."""

    def __init__(self, config_json: str, application: str = "") -> None:
        config = HeadwayConfig.model_validate_json(config_json)
        self._settings = config.routing.prediction
        self._training = Training(self._settings)
        self._router = NamedActor(names.router_of(config), application=application)
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

    def close(self) -> None:
        """Train no more."""
        self._task.cancel()

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
