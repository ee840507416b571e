"""The actor that trains the latency model: samples from the router, models back to it.

    every PULL_S                    samples into the training window
    every `retrain_interval_s`      a model from the window, in a thread; if any target accepts its new curve,
                                    the router gets it

It keeps nothing in the store. After its own crash the window starts empty and the router keeps its model;
after the router's crash the router gets the last model again. Only one router has to be asked: a cluster has
one control plane, and that one model.
"""

import asyncio
import logging
import time
from typing import Any

from actors import names
from actors.calling import ActorGone, CallError, NamedActor
from actors.routing.training import Training
from headway.config import HeadwayConfig

PULL_S = 2.0
TIMEOUT_S = 10.0

logger = logging.getLogger(__name__)


class LatencyTrainer:
    """The trainer of one model's router."""

    async def __init__(self, config_json: str) -> None:  # type: ignore[misc] # Ray awaits it
        config = HeadwayConfig.model_validate_json(config_json)
        self._settings = config.routing.prediction
        self._training = Training(self._settings)
        self._router = NamedActor(names.router(config.model))
        self._epoch: str | None = None
        self._failure = "not asked yet"
        self._errors = 0
        self._trained_s = time.monotonic()
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def status(self) -> dict[str, Any]:
        """Rows held per target, trainings, what became of the last one, and whether the router answers."""
        return {**self._training.status(), "errors": self._errors, "failure": self._failure}

    async def ready(self) -> tuple[bool, str]:
        """Whether the router answers; if not, why not."""
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
        epoch, samples = await self._router.call("take_samples", timeout_s=TIMEOUT_S)
        self._training.add(samples)
        fresh = False
        if time.monotonic() >= self._trained_s + self._settings.retrain_interval_s:
            self._trained_s = time.monotonic()
            fresh = await asyncio.to_thread(self._training.train)
        model = self._training.model
        if model is not None and (fresh or epoch != self._epoch):
            # Until the router has it: a call that fails is made again.
            self._epoch = None
            await self._router.call("use_model", model, timeout_s=TIMEOUT_S)
        self._epoch = epoch


def start_trainer(settings_json: str) -> Any:  # noqa: ANN401 - an actor handle
    """The trainer, created unless it runs."""
    import ray

    options = names.detached(names.LATENCY_TRAINER)
    return ray.remote(LatencyTrainer).options(**options).remote(settings_json)
