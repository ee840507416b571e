"""The actor that forecasts the load to come from that of all intervals before.

`observe` writes the interval to the store and returns; the predictors learn in one thread beside the event
loop, in order, so that a fit of seconds holds up neither `observe` nor `status`. `forecast` waits for that
thread; the planner waits for `forecast` only as long as its deadline allows. Killed at any moment, the actor
loses no interval that `observe` has answered for.

The history is in the store, CHUNK intervals under a key, of which only the newest changes. It belongs to one
interval length: counts per 10 s say nothing about counts per 180 s, so a history of another interval is
dropped. A row has its own length in them, shorter around decisions out of turn. A tick number that was seen
before, or is older, is not taken again; numbers that were skipped are intervals without a measurement.
Predictors themselves are not stored: they learn the history again, after the trace that warms them up. Rows
in doubt are stored as measured, and learnt as settled once a sure one follows (`headway.planning.doubt`).
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import takewhile
from math import ceil, inf
from typing import Any

from actors.store import InOrder, InternalKvStore, Store
from actors.stored import Kind, put, read
from headway.config import HeadwayConfig
from headway.planning import LoadForecast, decision_interval_s
from headway.planning.doubt import in_doubt, makes_sure, open_still, settled
from headway.planning.forecasting import Ahead, Forecaster, LoadForecaster, forecaster_for
from headway.workload import TraceError, TraceOptions, interval_series, open_trace
from predictors import PredictorError

logger = logging.getLogger(__name__)

HISTORY, CHUNK = "predictor/history/", 256
KIND = Kind("history", dict[str, Any])
ROW = ("tick", "requests", "isl_tokens", "osl_tokens", "length", "least")
"""The columns of a stored interval; the last only where it is in doubt."""
KEPT_S, FEWEST_KEPT, MOST_KEPT = 26 * 3600.0, 2_000, 20_000
"""Rather more than a day, whose rhythm predictors follow; and bounds in intervals."""

LONGEST_GAP = 100
"""Missing intervals that the predictors are shown in a row; a longer absence is shown as this many."""

NAN = float("nan")


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedLoad:
    """The load of one interval as observed, `length` times the policy's; NaN where it was not measured.

    `least` of the requests are sure where it is in doubt.
    """

    tick: int
    requests: float
    isl_tokens: float
    osl_tokens: float
    length: float = 1.0
    least: float = NAN

    @property
    def values(self) -> tuple[float, float, float]:
        """As a forecaster takes it."""
        return self.requests, self.isl_tokens, self.osl_tokens


class LoadHistory:
    """The last `keep` intervals."""

    def __init__(self, store: Store, interval_s: float, keep: int | None = None) -> None:
        self._store = store
        self._interval_s = interval_s
        keep = min(max(FEWEST_KEPT, ceil(KEPT_S / interval_s)), MOST_KEPT) if keep is None else keep
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
        number = interval.tick // CHUNK
        rows = [
            (each.tick, *each.values, each.length, *[each.least][: in_doubt(each.requests, each.least)])
            for each in self._newest(number)
        ]
        put(self._store, KIND, _key(number), {"interval_s": self._interval_s, "intervals": rows})
        if len(rows) == 1:
            oldest = _key(self._intervals[0].tick // CHUNK)
            for key in self._store.keys(HISTORY):
                if key < oldest:
                    self._store.delete(key)
        return True

    def _newest(self, number: int) -> list[ObservedLoad]:
        """Those of the newest chunk, oldest first."""
        return list(takewhile(lambda item: item.tick // CHUNK == number, reversed(self._intervals)))[::-1]

    def since(self, tick: int | None) -> list[ObservedLoad]:
        """The intervals after a tick, oldest first; those that were missed in between are NaN."""
        fresh = [item for item in self._intervals if tick is None or item.tick > tick]
        return list(_with_gaps(fresh, tick))

    def _restored(self) -> Iterator[ObservedLoad]:
        def use(stored: Mapping[str, Any]) -> list[ObservedLoad]:
            rows = stored["intervals"] if stored["interval_s"] == self._interval_s else []
            return [_load(row) for row in rows]

        last = -1
        for key in self._store.keys(HISTORY):
            for interval in read(self._store, KIND, key, use) or ():
                if interval.tick > last:
                    yield interval
                last = max(last, interval.tick)


def _key(number: int) -> str:
    return f"{HISTORY}{number:012d}"


def _with_gaps(intervals: Sequence[ObservedLoad], last: int | None) -> Iterator[ObservedLoad]:
    for interval in intervals:
        if last is not None:
            first_missing = max(last + 1, interval.tick - LONGEST_GAP)
            for tick in range(first_missing, interval.tick):
                yield ObservedLoad(tick=tick, requests=NAN, isl_tokens=NAN, osl_tokens=NAN)
        last = interval.tick
        yield interval


def _load(row: Sequence[Any]) -> ObservedLoad:
    """The interval of a row, of which the last columns may be missing."""
    return ObservedLoad(**dict(zip(ROW[: len(row)], row, strict=True)))


def _settled(intervals: Iterable[ObservedLoad]) -> tuple[list[ObservedLoad], list[ObservedLoad]]:
    """The intervals, those in doubt as settled, and the latest ones that no sure one has settled yet."""
    known: list[ObservedLoad] = []
    doubted: list[ObservedLoad] = []
    for each in intervals:
        sure = makes_sure(each.requests, each.least, each.length)
        waiting = open_still([in_doubt(one.requests, one.least) for one in doubted])
        if waiting and not sure:
            doubted.append(each)
            continue
        rate = each.requests / each.length if sure else inf
        known += [
            replace(one, requests=settled(one.requests, one.least, rate * one.length)) for one in doubted
        ]
        doubted = [each] if in_doubt(each.requests, each.least) else []
        known += [] if doubted else [each]
    return known, doubted


@dataclass(slots=True, kw_only=True)
class FittedModels:
    """A forecaster, the newest tick that it has seen, and intervals of the trace that it saw before.

    `sure` are the first two as they were before the latest intervals, where those are in doubt.
    """

    forecaster: Forecaster
    tick: int | None = None
    warmed_up: int = 0
    sure: tuple[Forecaster, int | None] | None = None

    def catch_up(self, history: LoadHistory) -> None:
        """Show the forecaster what it has not seen yet."""
        if history.last_tick == self.tick:
            return
        if self.sure is not None:
            (self.forecaster, self.tick), self.sure = self.sure, None
        known, doubted = _settled(history.since(self.tick))
        self._see(known)
        if doubted:
            self.sure = deepcopy(self.forecaster), self.tick
            self._see(doubted)

    def _see(self, intervals: Iterable[ObservedLoad]) -> None:
        for interval in intervals:
            self.forecaster.observe_values(*interval.values, length=interval.length)
            self.tick = interval.tick


def begin_models(config: HeadwayConfig) -> FittedModels:
    """New ones, with the warm-up trace learnt. PredictorError, TraceError."""
    planner, interval_s = config.planner, decision_interval_s(config.planner)
    models = FittedModels(forecaster=forecaster_for(planner, interval_s))
    if planner.load_predictor_warmup_trace is not None:
        with open_trace(planner.load_predictor_warmup_trace, TraceOptions()) as trace:
            series = interval_series(trace, interval_s)
        for note in trace.notes:
            logger.warning("planner.load_predictor_warmup_trace: %s", note)
        columns = (series.requests, series.isl_tokens, series.osl_tokens)
        models.forecaster.warm_start(*(column.tolist() for column in columns))
        models.warmed_up = len(series.requests)
    return models


class Predictor:
    """Load predictors with their history. `store` and `begin` are for tests."""

    def __init__(
        self,
        config_json: str,
        store: Store | None = None,
        begin: Callable[[HeadwayConfig], FittedModels] = begin_models,
    ) -> None:
        self._config = HeadwayConfig.model_validate_json(config_json)
        self._store = InternalKvStore() if store is None else store
        self._history = LoadHistory(self._store, decision_interval_s(self._config.planner))
        self._order = InOrder()
        self._begin = begin
        self._models: FittedModels | None = None
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="predictors")
        self._forecasting: tuple[int | None, asyncio.Future[LoadForecast | Ahead]] | None = None
        self._learning: set[asyncio.Future[None]] = set()
        self._failure = ""
        self._worker.submit(self._learn)  # the past, before the first question

    async def observe(
        self, requests: float, isl_tokens: float, osl_tokens: float, tick: int, *more: float
    ) -> None:
        """Take in one interval; a tick that was seen before changes nothing. `more`: `length` and `least`."""
        interval = _load((tick, requests, isl_tokens, osl_tokens, *more))
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

    def close(self) -> None:
        """Learn no more."""
        self._worker.shutdown(wait=False, cancel_futures=True)

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
        """In the worker: bring the models up to date."""
        try:
            if self._models is None:
                self._models = self._begin(self._config)
            self._models.catch_up(self._history)
            self._failure = ""
        except (PredictorError, TraceError) as error:
            self._failure = str(error)
            logger.warning("the predictors cannot learn: %s", error)
