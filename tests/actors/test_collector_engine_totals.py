"""What engines count of their own work, by both ways to read them; the requests behind pages are known."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from actors.collector.engine_totals import EngineTotalsReader
from actors.collector.exposition import series_id
from actors.collector.interval import HealthStatus, Measured
from actors.collector.presets import PRESETS, engine_names
from actors.collector.raw_samples import RawSeries, measured_of
from actors.collector.series import ModelSeries
from headway.engine.observed_metrics import EngineReading, EngineTotals
from headway.planning import Role
from tests.truth.engines import MODEL, Engine, Requests, Sample, requests
from tests.truth.reading import BEGIN_S, Target, read_engines

UNTIL_S, TTFT_S, ITL_S = 240.0, 0.12, 0.02
BORDERS_S = (60.0, 120.0, 180.0, 240.0)


def vllm(seed: int, **changes: object) -> Engine:
    """An engine of a vLLM that shows prefill times, as they do; each prompt takes TTFT_S."""
    served = requests(3.0, seed, until_s=UNTIL_S, ttft_s=TTFT_S, itl_s=ITL_S)

    def with_prefill(at_s: float, page: list[Sample]) -> list[Sample]:
        labels = {"model_name": MODEL}
        ended = float((served.end_s <= at_s).sum())
        shown = {
            "request_prefill_time_seconds_sum": TTFT_S * ended,
            "request_prefill_time_seconds_count": ended,
        }
        return [*page, *((f"vllm:{name}", labels, value) for name, value in shown.items())]

    made = Engine(served=served, address=f"10.0.0.{seed}:8000", pod=f"vllm-{seed}", odd=with_prefill)
    return replace(made, **changes)


def by_raw_samples(engines: list[Engine], every_s: float) -> list[Measured]:
    """The intervals as a Prometheus' samples of so many seconds have them."""
    samples: dict[tuple[tuple[str, str], object], list[tuple[float, float]]] = {}
    for engine in engines:
        for at_s, (name, labels, value) in Target(engine, every_s=every_s).scraped(UNTIL_S):
            series = series_id(name, dict(labels))
            target = labels.get("job", ""), labels.get("instance", "")
            samples.setdefault((target, series), []).append((BEGIN_S + at_s, value))
    series, found = ModelSeries(PRESETS["vllm"], MODEL), []
    for start_s, end_s in zip((0.0, *BORDERS_S), BORDERS_S, strict=False):
        span_s = BEGIN_S + start_s, BEGIN_S + end_s
        raw = [
            RawSeries(target, each, [point for point in points if point[0] <= span_s[1]])
            for (target, each), points in samples.items()
            if each.name in series.names
        ]
        found.append(measured_of(series, raw, span_s, 30.0, {}))
    return found


WAYS: Mapping[str, Callable[[list[Engine]], list[Measured]]] = {
    "engines": lambda engines: read_engines(engines, "vllm", BORDERS_S)[0],
    "prometheus 5 s": lambda engines: by_raw_samples(engines, 5.0),
    "prometheus 15 s": lambda engines: by_raw_samples(engines, 15.0),
}


def between(served: Requests, column: np.ndarray, reading: EngineReading) -> float:
    """The sum of a column of the requests whose first token came in a reading."""
    first_s = served.first_s + BEGIN_S
    return float(column[(first_s > reading.begun_s) & (first_s <= reading.ended_s)].sum())


@pytest.mark.parametrize("way", WAYS)
def test_readings_are_what_each_engine_did(way: str) -> None:
    engines = [vllm(1), vllm(2)]
    measured = WAYS[way](engines)
    readings = [each for interval in measured[1:] for each in interval.engines]
    assert len(readings) >= 2 * 3 * 2
    for each in readings:
        (made,) = [engine for engine in engines if engine.address in each.engine]
        ones = np.ones(len(made.served.isl))
        assert each.gained.first_tokens == pytest.approx(between(made.served, ones, each), abs=1.0)
        assert each.gained.asked_tokens == pytest.approx(
            between(made.served, made.served.isl, each), abs=2000.0
        )
        assert each.gained.prefill_s == pytest.approx(TTFT_S * each.gained.prefills)
        assert each.gained.gap_s == pytest.approx(ITL_S * each.gained.gaps)
    begun = sorted((each.engine, each.begun_s, each.ended_s) for each in readings)
    for (engine, _, ended_s), (following, begun_s, _) in pairwise(begun):
        assert engine != following or begun_s >= ended_s


def test_what_is_in_doubt_shows_nothing() -> None:
    """One of two engines refuses from 175 s on: of the interval that ends then, not all is known."""
    measured, _ = read_engines([vllm(1), vllm(2, gone_s=175.0)], "vllm", BORDERS_S)
    assert [each.health.status is HealthStatus.OK for each in measured] == [True, True, False, True]
    assert [bool(each.engines) for each in measured] == [True, True, False, True]


def shown(role: Role | None, **labels: str) -> EngineTotals | None:
    """What the reader takes of a page of an engine of that role."""
    names = engine_names(PRESETS["vllm"]).series
    own = {"model_name": MODEL, "instance": "a", **({"role": role.value} if role else {}), **labels}
    samples = {series_id(name, own): 7.0 for name in names}
    return EngineTotalsReader(PRESETS["vllm"], MODEL).read(samples).get("a")


def test_prefill_engines_show_no_gaps_and_decode_engines_no_prompts() -> None:
    prefill, decode, mixed = (shown(role) for role in (Role.PREFILL, Role.DECODE, None))
    assert prefill
    assert decode
    assert mixed
    assert (prefill.gaps, prefill.prefills) == (0.0, 7.0)
    assert (decode.gaps, decode.prefills, decode.first_tokens) == (7.0, 0.0, 0.0)
    assert (mixed.gaps, mixed.prefills) == (7.0, 7.0)
    assert shown(None, model_name="another") is None


def test_an_engine_that_shows_nonsense_is_left_out() -> None:
    samples = {
        series_id("vllm:inter_token_latency_seconds_sum", {"model_name": MODEL, "instance": name}): value
        for name, value in {"a": 1.0, "b": float("nan"), "c": -1.0}.items()
    }
    assert set(EngineTotalsReader(PRESETS["vllm"], MODEL).read(samples)) == {"a"}


def test_the_ranks_of_an_engine_add_up() -> None:
    samples = {
        series_id(
            "vllm:inter_token_latency_seconds_count", {"model_name": MODEL, "instance": "a", "engine": n}
        ): 5.0
        for n in ("0", "1")
    }
    assert EngineTotalsReader(PRESETS["vllm"], MODEL).read(samples)["a"].gaps == 10.0


def test_sglang_shows_prefill_as_first_tokens_less_queueing() -> None:
    labels = {"model_name": MODEL, "instance": "a", "engine_type": "prefill"}
    values = {"time_to_first_token_seconds_sum": 9.0, "time_to_first_token_seconds_count": 30.0}
    values |= {"queue_time_seconds_sum": 4.0, "queue_time_seconds_count": 31.0}
    samples = {series_id(f"sglang:{name}", labels): value for name, value in values.items()}
    totals = EngineTotalsReader(PRESETS["sglang"], MODEL).read(samples)["a"]
    assert (totals.prefills, totals.prefill_s, totals.gaps) == (30.0, 5.0, 0.0)
