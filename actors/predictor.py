"""The actor that forecasts the load to come from that of all intervals before.

`observe` writes the interval to the store and returns; the predictors learn in one thread beside the event
loop, in order, so that a fit of seconds holds up neither `observe` nor `status`. `forecast` waits for that
thread; the planner waits for `forecast` only as long as its deadline allows. Killed at any moment, the actor
loses no interval that `observe` has answered for: what the stored predictors have not seen is shown to them
again.

The history is one value under one key, replaced whole. It belongs to one interval length: counts per 10 s say
nothing about counts per 180 s, so a history of another interval is dropped. Each row has its own length in
such intervals: those around decisions out of turn are shorter. A tick number that was seen
before, or is older, is not taken again; numbers that were skipped are intervals without a measurement.

The predictors are stored as they are, so that a restart need not fit everything again:

    restored, if they were made from the same settings     else: new, warmed up with the configured trace
    then every interval of the history that they have not seen

The history stays what counts: stored predictors that cannot be read, or are too large to store, cost time, no
data.
"""

import asyncio
import json
import logging
import pickle
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from actors.store import UNPICKLING_ERRORS, InOrder, InternalKvStore, Store
from headway.config import HeadwayConfig
from headway.planning import LoadForecast, decision_interval_s
from headway.planning.forecasting import Ahead, Forecaster, LoadForecaster, forecaster_for
from headway.planning.policies import predictors_asked
from headway.workload import TraceError, TraceOptions, interval_series, open_trace
from predictors import PredictorError

logger = logging.getLogger(__name__)

HISTORY, MODELS = "predictor/history", "predictor/models"
"""Keys of the store."""

ROW = ("tick", "requests", "isl_tokens", "osl_tokens", "length")
"""The columns of a stored interval; older versions have no length."""
KEEP = 2000
LONGEST_GAP = 100
"""Missing intervals that the predictors are shown in a row; a longer absence is shown as this many."""

MOST_BYTES = 8_000_000

NAN = float("nan")


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedLoad:
    """The load of one interval as observed, `length` times the policy's; NaN where it was not measured."""

    tick: int
    requests: float
    isl_tokens: float
    osl_tokens: float
    length: float = 1.0

    @property
    def values(self) -> tuple[float, float, float]:
        """As a forecaster takes it."""
        return self.requests, self.isl_tokens, self.osl_tokens


class LoadHistory:
    """The last `keep` intervals."""

    def __init__(self, store: Store, interval_s: float, keep: int = KEEP) -> None:
        self._store = store
        self._interval_s = interval_s
        self._intervals: deque[ObservedLoad] = deque(self._restored(), maxlen=keep)

    def __len__(self) -> int:
        return len(self._intervals)

    @property
    def last_tick(self) -> int | None:
        """The newest tick seen."""
        return self._intervals[-1].tick if self._intervals else None

    def add(self, interval: ObservedLoad) -> bool:
        """Keep an interval; False when its tick, or a later one, was seen before."""
        if self.last_tick is not None and interval.tick <= self.last_tick:
            return False
        self._intervals.append(interval)
        rows = [(item.tick, *item.values, item.length) for item in self._intervals]
        stored = {"interval_s": self._interval_s, "intervals": rows}
        self._store.put(HISTORY, json.dumps(stored, separators=(",", ":")).encode())
        return True

    def since(self, tick: int | None) -> list[ObservedLoad]:
        """The intervals after a tick, oldest first; those that were missed in between are NaN."""
        fresh = [item for item in self._intervals if tick is None or item.tick > tick]
        return list(_with_gaps(fresh, tick))

    def _restored(self) -> list[ObservedLoad]:
        try:
            stored = json.loads(self._store.get(HISTORY) or b"{}")
            if stored.get("interval_s") != self._interval_s:
                return []
            return [ObservedLoad(**dict(zip(ROW, row, strict=False))) for row in stored["intervals"]]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            logger.warning("the stored history of the load cannot be read, it begins anew: %s", error)
            return []


def _with_gaps(intervals: Sequence[ObservedLoad], last: int | None) -> Iterator[ObservedLoad]:
    for interval in intervals:
        if last is not None:
            first_missing = max(last + 1, interval.tick - LONGEST_GAP)
            for tick in range(first_missing, interval.tick):
                yield ObservedLoad(tick=tick, requests=NAN, isl_tokens=NAN, osl_tokens=NAN)
        last = interval.tick
        yield interval


@dataclass(slots=True, kw_only=True)
class FittedModels:
    """A forecaster, the settings that it was made from, and the newest tick that it has seen."""

    made_from: str
    forecaster: Forecaster
    tick: int | None = None
    warmed_up: int = 0

    def catch_up(self, history: LoadHistory) -> bool:
        """Show the forecaster what it has not seen yet; False if there was nothing."""
        fresh = history.since(self.tick)
        for interval in fresh:
            self.forecaster.observe_values(*interval.values, length=interval.length)
            self.tick = interval.tick
        return bool(fresh)


def restore_models(config: HeadwayConfig, store: Store) -> FittedModels:
    """The stored models if they fit the settings, else new ones (PredictorError or TraceError)."""
    planner, interval_s = config.planner, decision_interval_s(config.planner)
    options = sorted((key, repr(value)) for key, value in planner.predictor_options.items())
    made_from = repr(
        (planner.policy, predictors_asked(planner), options, interval_s, planner.load_predictor_warmup_trace)
    )
    made_from += " of any length"  # what an older version stored knows no parts of intervals
    data = store.get(MODELS)
    if data is not None:
        try:
            stored = pickle.loads(data)
            if isinstance(stored, FittedModels) and stored.made_from == made_from:
                return stored
        except UNPICKLING_ERRORS as error:
            logger.warning("the stored predictors cannot be read, they learn anew: %s", error)
    forecaster = forecaster_for(planner, interval_s)
    models = FittedModels(made_from=made_from, forecaster=forecaster)
    if planner.load_predictor_warmup_trace is not None:
        with open_trace(planner.load_predictor_warmup_trace, TraceOptions()) as trace:
            series = interval_series(trace, interval_s)
        for note in trace.notes:
            logger.warning("planner.load_predictor_warmup_trace: %s", note)
        columns = (series.requests, series.isl_tokens, series.osl_tokens)
        forecaster.warm_start(*(column.tolist() for column in columns))
        models.warmed_up = len(series.requests)
    return models


def save_models(models: FittedModels, store: Store) -> None:
    """Store them, unless they are too large."""
    data = pickle.dumps(models)
    if len(data) <= MOST_BYTES:
        store.put(MODELS, data)
    else:
        store.delete(MODELS)


class Predictor:
    """Load predictors with their history. `store` and `restore` are for tests."""

    def __init__(
        self,
        config_json: str,
        store: Store | None = None,
        restore: Callable[[HeadwayConfig, Store], FittedModels] = restore_models,
    ) -> None:
        self._config = HeadwayConfig.model_validate_json(config_json)
        self._store = InternalKvStore() if store is None else store
        self._history = LoadHistory(self._store, decision_interval_s(self._config.planner))
        self._order = InOrder()
        self._restore = restore
        self._models: FittedModels | None = None
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="predictors")
        self._forecasting: tuple[int | None, asyncio.Future[LoadForecast | Ahead]] | None = None
        self._learning: set[asyncio.Future[None]] = set()
        self._failure = ""
        self._worker.submit(self._learn)  # the past, before the first question

    async def observe(
        self, requests: float, isl_tokens: float, osl_tokens: float, tick: int, length: float = 1.0
    ) -> None:
        """Take in one interval, `length` times the policy's; a tick that was seen before changes nothing."""
        interval = ObservedLoad(
            tick=tick, requests=requests, isl_tokens=isl_tokens, osl_tokens=osl_tokens, length=length
        )
        if await self._order.run(lambda: self._history.add(interval)):
            learning = asyncio.get_running_loop().run_in_executor(self._worker, self._learn)
            self._learning.add(learning)
            learning.add_done_callback(self._learning.discard)

    async def forecast(self) -> LoadForecast | Ahead:
        """What the policy asks for, once everything observed has been learnt; calls meanwhile share one
        answer.
        """
        tick = self._history.last_tick
        if self._forecasting is None or self._forecasting[0] != tick or self._forecasting[1].done():
            answering = asyncio.get_running_loop().run_in_executor(self._worker, self._answer)
            self._forecasting = tick, answering
        # A planner that waits no longer must not end the fit that its next question needs.
        return await asyncio.shield(self._forecasting[1])

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

    def _answer(self) -> LoadForecast | Ahead:
        self._learn()
        if self._models is None:
            raise PredictorError(self._failure)
        forecaster = self._models.forecaster
        return forecaster.ranged() if isinstance(forecaster, LoadForecaster) else forecaster.forecast()

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
