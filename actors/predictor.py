"""The actor that knows the load's past and forecasts its next interval.

`observe` writes the interval to the store and returns; the predictors learn in one thread beside the event
loop, in order, so that a fit of seconds holds up neither `observe` nor `status`. `forecast` waits for that
thread; the planner waits for `forecast` only as long as its deadline allows. Killed at any moment, it loses
no interval that `observe` has answered for: what the stored predictors have not seen is shown to them again.
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from actors.forecasts.history import History, Interval
from actors.forecasts.models import Models, restore_models, save_models
from actors.store import InternalKvStore, Store
from headway.config import HeadwayConfig
from headway.planning import LoadForecast, decision_interval_s
from headway.workload import TraceError
from predictors import PredictorError

logger = logging.getLogger(__name__)

Restore = Callable[[HeadwayConfig, Store], Models]


class Predictor:
    """Load predictors with their history. `store` and `restore` are for tests."""

    def __init__(
        self, config_json: str, store: Store | None = None, restore: Restore = restore_models
    ) -> None:
        self._config = HeadwayConfig.model_validate_json(config_json)
        self._store = InternalKvStore() if store is None else store
        self._history = History(self._store, decision_interval_s(self._config.planner))
        self._restore = restore
        self._models: Models | None = None
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="predictors")
        self._forecasting: tuple[int | None, asyncio.Task[LoadForecast]] | None = None
        self._learning: set[asyncio.Future[None]] = set()
        self._failure = ""
        self._worker.submit(self._learn)

    async def observe(self, requests: float, isl_tokens: float, osl_tokens: float, tick: int) -> None:
        """Take in one interval; nothing happens for a tick that was seen before."""
        interval = Interval(tick=tick, requests=requests, isl_tokens=isl_tokens, osl_tokens=osl_tokens)
        if self._history.add(interval):
            learning = asyncio.get_running_loop().run_in_executor(self._worker, self._learn)
            self._learning.add(learning)
            learning.add_done_callback(self._learning.discard)

    async def forecast(self) -> LoadForecast:
        """The next interval, once everything observed has been learnt; calls meanwhile share one answer."""
        tick = self._history.last_tick
        if self._forecasting is None or self._forecasting[0] != tick or self._forecasting[1].done():
            self._forecasting = tick, asyncio.create_task(self._forecast())
        return await asyncio.shield(self._forecasting[1])

    async def ready(self) -> tuple[bool, str]:
        """Whether the predictors have learnt what is known so far."""
        if self._failure:
            return False, self._failure
        return (True, "") if self._caught_up() else (False, "the predictors are learning the past")

    async def status(self) -> dict[str, Any]:
        """Predictor, intervals kept, ticks, and what is wrong if anything is."""
        models = self._models
        return {
            "predictor": self._config.planner.predictor,
            "intervals": len(self._history),
            "last_tick": self._history.last_tick,
            "learnt_tick": None if models is None else models.tick,
            "warmed_up_intervals": 0 if models is None else models.warmed_up,
            "learning": len(self._learning),
            "failure": self._failure,
        }

    async def _forecast(self) -> LoadForecast:
        return await asyncio.get_running_loop().run_in_executor(self._worker, self._answer)

    def _answer(self) -> LoadForecast:
        self._learn()
        if self._models is None:
            raise PredictorError(self._failure)
        return self._models.forecast()

    def _learn(self) -> None:
        """In the worker: bring the models up to date, and store them."""
        try:
            if self._models is None:
                self._models = self._restore(self._config, self._store)
            if self._models.catch_up(self._history):
                save_models(self._models, self._store)
            self._failure = ""
        except (PredictorError, TraceError) as error:
            self._failure = str(error)
            logger.warning("the predictors cannot learn: %s", error)

    def _caught_up(self) -> bool:
        return self._models is not None and self._models.tick == self._history.last_tick
