"""The Predictor without Ray: nothing observed is lost, nothing is learnt twice, slow fits hold nobody up."""

import asyncio
import math
import threading

import pytest

from actors.predictor import (
    CHUNK,
    HISTORY,
    LONGEST_GAP,
    LoadHistory,
    ObservedLoad,
    Predictor,
    begin_models,
)
from headway.config import HeadwayConfig, load_config
from headway.planning.forecasting import make_forecaster, make_request_forecaster
from predictors import PredictorError
from tests.patience import PATIENCE_S
from tests.stores import MemoryStore

pytestmark = pytest.mark.anyio

SERIES = [(float(100 + 5 * step), 1000.0 + step, 200.0) for step in range(12)]


def config(**changes: object) -> HeadwayConfig:
    base: dict[str, object] = {
        "planner.policy": "reference",
        "planner.predictor": "kalman",
        "planner.adjustment_interval_s": 10.0,
    }
    return load_config(None, base | {key.replace("__", "."): value for key, value in changes.items()})


def make(store: MemoryStore, **changes: object) -> Predictor:
    return Predictor(config(**changes).model_dump_json(), store)


async def show(predictor: Predictor, series, first_tick: int = 0) -> None:
    for tick, values in enumerate(series, start=first_tick):
        await predictor.observe(*values, tick)


def expected(series, name: str = "kalman"):
    forecaster = make_forecaster(name, {}, 10.0)
    for values in series:
        forecaster.observe_values(*values)
    return forecaster.ranged()


async def test_it_forecasts_what_its_predictors_do() -> None:
    predictor = make(MemoryStore())
    await show(predictor, SERIES)
    assert (await predictor.forecast()) == expected(SERIES)


def test_for_a_policy_that_judges_forecasts_it_asks_each_predictor_for_the_requests_to_come() -> None:
    own = make_request_forecaster(["kalman", "constant"], 10.0)
    changes = {"planner__policy": "headway", "planner__headway__predictors": ["kalman", "constant"]}

    async def story(store, series, first_tick=0):
        predictor = make(store, **changes)
        await show(predictor, series, first_tick)
        return await predictor.forecast()

    store = MemoryStore()
    asyncio.run(story(store, SERIES[:6]))
    said = asyncio.run(story(store, SERIES[6:], 6))
    for values in SERIES:
        own.observe_values(*values)
    assert list(said) == ["kalman", "constant"]
    assert {name: path.tolist() for name, path in said.items()} == {
        name: path.tolist() for name, path in own.forecast().items()
    }


def test_a_killed_predictor_comes_back_with_the_same_forecast() -> None:
    store = MemoryStore()

    async def before():
        predictor = make(store)
        await show(predictor, SERIES[:7])
        await predictor.forecast()
        await show(predictor, SERIES[7:], first_tick=7)  # killed before the models have learnt these

    async def after():
        return await make(store).forecast()

    asyncio.run(before())
    assert asyncio.run(after()) == expected(SERIES)


def test_a_tick_counts_once_also_after_a_restart() -> None:
    store = MemoryStore()

    async def story(first: bool):
        predictor = make(store)
        if first:
            await show(predictor, SERIES)
        await show(predictor, SERIES)
        return await predictor.forecast()

    assert asyncio.run(story(first=True)) == asyncio.run(story(first=False)) == expected(SERIES)


async def test_ticks_that_nobody_measured_are_gaps() -> None:
    gap = (math.nan, math.nan, math.nan)
    predictor = make(MemoryStore())
    await show(predictor, SERIES[:6])
    await show(predictor, SERIES[6:], first_tick=8)
    assert (await predictor.forecast()) == expected([*SERIES[:6], gap, gap, *SERIES[6:]])


def test_a_long_absence_is_a_bounded_gap() -> None:
    history = LoadHistory(MemoryStore(), 10.0)
    for tick in (1, 1_000_000):
        history.add(ObservedLoad(tick=tick, requests=1.0, isl_tokens=2.0, osl_tokens=3.0))
    assert len(history.since(None)) == LONGEST_GAP + 2
    assert [item.tick for item in history.since(999_998)] == [999_999, 1_000_000]


def test_the_history_is_bounded_and_belongs_to_one_interval_length() -> None:
    store = MemoryStore()
    history = LoadHistory(store, 10.0, keep=3)
    for tick in range(5):
        history.add(ObservedLoad(tick=tick, requests=math.nan, isl_tokens=1.0, osl_tokens=1.0))
    assert [item.tick for item in LoadHistory(store, 10.0).since(None)] == [2, 3, 4]
    assert math.isnan(LoadHistory(store, 10.0).since(None)[0].requests)
    assert len(LoadHistory(store, 20.0)) == 0


def test_of_a_history_only_the_part_that_cannot_be_read_is_lost() -> None:
    store = MemoryStore()
    history = LoadHistory(store, 10.0)
    for tick in range(2 * CHUNK):
        history.add(ObservedLoad(tick=tick, requests=1.0, isl_tokens=1.0, osl_tokens=1.0))
    store.put(store.keys(HISTORY)[0], b"{")
    kept = LoadHistory(store, 10.0)
    assert [len(kept), kept.last_tick] == [CHUNK, 2 * CHUNK - 1]


def test_another_predictor_learns_from_the_same_history() -> None:
    store = MemoryStore()

    async def story(name: str):
        predictor = make(store, planner__predictor=name)
        if name == "kalman":
            await show(predictor, SERIES)
        return await predictor.forecast()

    asyncio.run(story("kalman"))
    assert asyncio.run(story("constant")) == expected(SERIES, "constant")


async def test_a_warm_up_trace_is_learnt_before_the_first_interval() -> None:
    trace = "steady:rate_rps=4,duration_s=200,input_tokens=500,output_tokens=50,seed=1"
    predictor = make(MemoryStore(), planner__load_predictor_warmup_trace=trace)
    forecast, status = (await predictor.forecast(), await predictor.status())
    assert forecast.requests == pytest.approx(40, rel=0.5)
    assert status["warmed_up_intervals"] > 5
    assert status["failure"] == ""


async def test_a_warm_up_trace_that_is_not_there_is_said_and_raised_to_who_asks() -> None:
    predictor = make(MemoryStore(), planner__load_predictor_warmup_trace="/no/such/trace.jsonl")
    await predictor.observe(*SERIES[0], 0)
    with pytest.raises(PredictorError, match="no such"):
        await predictor.forecast()
    status = await predictor.status()
    assert "no/such/trace" in status["failure"]
    assert status["intervals"] == 1


async def test_a_fit_that_takes_long_holds_up_neither_observe_nor_status() -> None:
    fitting, finish = threading.Event(), threading.Event()

    def slow(config):
        fitting.set()
        assert finish.wait(PATIENCE_S)
        return begin_models(config)

    predictor = Predictor(config().model_dump_json(), MemoryStore(), slow)
    assert fitting.wait(PATIENCE_S)
    await show(predictor, SERIES)
    asked = [asyncio.create_task(predictor.forecast()) for _ in range(3)]
    await asyncio.sleep(0)
    status = await predictor.status()
    assert not any(task.done() for task in asked)
    asked[0].cancel()  # the planner has no time left
    finish.set()
    second, third = await asked[1], await asked[2]
    assert status["intervals"] == len(SERIES)
    assert status["learnt_tick"] is None
    assert status["learning"] > 0
    assert second == third == expected(SERIES)
