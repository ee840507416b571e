"""What engines count of their own work, by both ways to read them; the requests behind pages are known."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from actors.collector import promql
from actors.collector.engine_totals import EngineTotalsReader
from actors.collector.exposition import series_id
from actors.collector.interval import HealthStatus, Measured
from actors.collector.presets import PRESETS, preset
from actors.collector.raw_samples import RawSeries, measured_of
from actors.collector.series import ModelSeries
from headway.config.presets import PresetSettings
from headway.engine.observed_metrics import EngineLoad, EngineReading, EngineTotals
from headway.planning import Role
from tests.truth.engines import MODEL, Engine, Requests, Sample, requests
from tests.truth.reading import BEGIN_S, Target, read_engines

UNTIL_S, TTFT_S, ITL_S = 240.0, 0.12, 0.02
BLOCKS = 5000
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
        blocks = {"engine": "0", "block_size": "16", "num_gpu_blocks": f"{BLOCKS}"}
        cache = ("vllm:cache_config_info", blocks, 1.0)
        return [*page, cache, *((f"vllm:{name}", labels, value) for name, value in shown.items())]

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
        assert (each.load.kv_tokens, each.load.waiting) == (16.0 * BLOCKS, 0.0)
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
    names = PRESETS["vllm"].totals
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


def test_engines_of_one_replica_add_up_and_their_ranks_iterate_beside_each_other() -> None:
    figures = {"inter_token_latency_seconds_count": 5.0, "iteration_tokens_total_count": 4.0}
    figures |= {"num_requests_running": 3.0, "num_requests_waiting": 0.0, "kv_cache_usage_perc": 0.5}
    samples = {
        series_id(f"vllm:{name}", {"model_name": MODEL, "instance": each, "node": "h100-3"}): value
        for each in "ab"
        for name, value in figures.items()
    }
    reader, joint = EngineTotalsReader(PRESETS["vllm"], MODEL), {"a": "a+b", "b": "a+b"}
    (totals,), (load,) = reader.read(samples, joint).values(), reader.loads(samples, joint).values()
    assert (totals.gaps, totals.iterations) == (10.0, 4.0)
    assert load == EngineLoad(6.0, 0.0, 0.5, pytest.approx(float("nan"), nan_ok=True), "h100")


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [({}, ["a+c", "a+c", "b", "d"]), ({"rank": ""}, ["a", "b", "c", "d"])],
)
def test_engines_are_one_replica_as_far_as_their_ranks_differ(
    overrides: Mapping[str, str], expected: list[str]
) -> None:
    ranks = {"a": "0", "b": "0", "c": "1", "d": "0"}
    shown = [
        series_id(
            "vllm:num_requests_running",
            {"model_name": MODEL, "instance": each, "engine": rank, "role": "decode" if each == "d" else ""},
        )
        for each, rank in ranks.items()
    ]
    series = ModelSeries(preset("vllm", PresetSettings(**overrides)), MODEL)
    assert sorted(series.replicas(shown).values()) == expected


def test_sglang_shows_prefill_as_first_tokens_less_queueing() -> None:
    labels = {"model_name": MODEL, "instance": "a", "engine_type": "prefill"}
    values = {"time_to_first_token_seconds_sum": 9.0, "time_to_first_token_seconds_count": 30.0}
    values |= {"queue_time_seconds_sum": 4.0, "queue_time_seconds_count": 31.0}
    samples = {series_id(f"sglang:{name}", labels): value for name, value in values.items()}
    totals = EngineTotalsReader(PRESETS["sglang"], MODEL).read(samples)["a"]
    assert (totals.prefills, totals.prefill_s, totals.gaps) == (30.0, 5.0, 0.0)


def loads(
    name: str, shown: Mapping[tuple[str, tuple[tuple[str, str], ...]], float]
) -> Mapping[str, EngineLoad]:
    samples = {
        series_id(series, {"instance": "a", **dict(labels)}): value
        for (series, labels), value in shown.items()
    }
    return EngineTotalsReader(PRESETS[name], MODEL).loads(samples)


def test_ranks_of_vllm_have_caches_of_their_own() -> None:
    """The model's label is not on what vLLM says of its cache."""
    shown: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
    for rank in "01":
        ours = (("model_name", MODEL), ("engine", rank))
        blocks = (("engine", rank), ("block_size", "16"), ("num_gpu_blocks", "2500"))
        shown |= {("vllm:num_requests_running", ours): 30.0, ("vllm:num_requests_waiting", ours): 2.0}
        shown |= {("vllm:kv_cache_usage_perc", ours): 0.4, ("vllm:cache_config_info", blocks): 1.0}
    assert loads("vllm", shown) == {"a": EngineLoad(60.0, 4.0, 0.4, 80_000.0)}


def test_ranks_of_sglang_show_their_engines_cache() -> None:
    shown: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
    for rank in "01":
        ours = (("model_name", MODEL), ("tp_rank", rank))
        shown |= {("sglang:num_running_reqs", ours): 30.0, ("sglang:max_total_num_tokens", ours): 80_000.0}
    (found,) = loads("sglang", shown).values()
    assert (found.running, found.kv_tokens) == (30.0, 80_000.0)
    assert np.isnan(found.waiting)


def test_a_cache_whose_size_is_not_said_does_not_show() -> None:
    blocks = (("engine", "0"), ("block_size", "16"), ("num_gpu_blocks", "None"))
    (found,) = loads("vllm", {("vllm:cache_config_info", blocks): 1.0}).values()
    assert np.isnan(found.kv_tokens)


def test_totals_have_names_of_their_own_in_overrides() -> None:
    changed = {"series": {"prompts": "acme:prompts_total", "itl": {"name": "acme:gap_ms", "unit": "ms"}}}
    names = preset("vllm", PresetSettings.model_validate(changed))
    labels = {"model_name": MODEL, "instance": "a"}
    values = {"acme:prompts_total": 9.0, "acme:gap_ms_sum": 500.0, "acme:gap_ms_count": 25.0}
    samples = {series_id(name, labels): value for name, value in values.items()}
    totals = EngineTotalsReader(names, MODEL).read(samples)["a"]
    assert (totals.asked_tokens, totals.gap_s, totals.gaps) == (9.0, 0.5, 25.0)


def test_engines_behind_a_router_have_names_of_their_own() -> None:
    assert PRESETS["llm-d"].totals == PRESETS["vllm"].totals
    assert not PRESETS["dynamo"].totals


def test_what_lacks_the_models_label_is_asked_for_without_it() -> None:
    chosen = promql.Chosen(labels={"namespace": "llm"}, roles={})
    queries = promql.sample_queries(ModelSeries(PRESETS["vllm"], MODEL), chosen, 60.0, 30.0)
    (cache,) = [each.selector for each in queries if "cache_config_info" in each.selector]
    assert cache == '{__name__=~"vllm[:_]cache_config_info",namespace="llm"}'
