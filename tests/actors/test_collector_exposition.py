"""From exposition to increases, means and quantiles."""

from contextlib import suppress
from itertools import accumulate, pairwise
from math import inf, isnan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.collector.exposition import LineReader, SeriesId, SourceDownError, parse
from actors.collector.increase import Counters, change_in_flight, summed
from actors.collector.interval import Increase, Quantity, latency, quantile
from actors.collector.presets import PRESETS
from actors.collector.promql import Chosen, sample_queries, selector
from actors.collector.series import ModelSeries
from headway.planning import Role

DYNAMO = PRESETS["dynamo"]
HEADWAY = PRESETS["headway"]
LLM_D = PRESETS["llm-d"]
VLLM = PRESETS["vllm"]

SERIES = ModelSeries(HEADWAY, "tiny")
ARRIVALS = SeriesId("headway_request_arrivals_total", (("model", "tiny"),))
REQUESTS = ("requests", "count")
OTHER_MODEL = SeriesId("headway_request_arrivals_total", (("model", "other"),))


def ttft(part: str, le: str | None = None) -> SeriesId:
    labels = (("le", le), ("model", "tiny")) if le else (("model", "tiny"),)
    return SeriesId(f"headway_time_to_first_token_seconds_{part}", labels)


def gained(old, new, series=SERIES):
    """As by two reads a second apart."""
    counters = Counters()
    counters.begin(series.counters(old), 0.0)
    found = summed(counters.add(series.counters(new), 1.0).by_group)
    if change := change_in_flight(series.in_flight(old), series.in_flight(new)):
        found[REQUESTS] = found.get(REQUESTS, 0.0) + sum(change.values())
    return found


def test_the_difference_of_this_model_alone():
    old = {ARRIVALS: 5.0, OTHER_MODEL: 100.0}
    assert gained(old, {ARRIVALS: 8.0, OTHER_MODEL: 900.0}) == {REQUESTS: 3.0}


def test_a_counter_that_fell_began_anew():
    assert gained({ARRIVALS: 5.0}, {ARRIVALS: 2.0}) == {REQUESTS: 2.0}


def test_a_new_series_began_at_zero():
    assert gained({}, {ARRIVALS: 4.0}) == {REQUESTS: 4.0}


def test_several_label_sets_add_up():
    replicas = [SeriesId(ARRIVALS.name, (*ARRIVALS.labels, ("pod", pod))) for pod in "ab"]
    assert gained(dict.fromkeys(replicas, 1.0), dict.fromkeys(replicas, 3.0)) == {REQUESTS: 4.0}


def test_a_histogram_is_reset_as_a_whole():
    old = {ttft("count"): 5.0, ttft("sum"): 0.5, ttft("bucket", "0.1"): 5.0, ttft("bucket", "+Inf"): 5.0}
    new = {ttft("count"): 2.0, ttft("sum"): 9.0, ttft("bucket", "0.1"): 0.0, ttft("bucket", "+Inf"): 2.0}
    assert gained(old, new) == {
        ("ttft", "count"): 2.0,
        ("ttft", "sum"): 9.0,
        ("ttft", "0.1"): 0.0,
        ("ttft", "+Inf"): 2.0,
    }


def test_arrivals_follow_from_what_ended_and_what_is_in_flight():
    series = ModelSeries(DYNAMO, "Tiny")
    ended = SeriesId("dynamo_frontend_requests_total", (("model", "tiny"), ("status", "success")))
    flying = SeriesId("dynamo_frontend_inflight_requests", (("model", "tiny"),))
    found = gained({ended: 10.0, flying: 6.0}, {ended: 14.0, flying: 3.0}, series)
    assert found[REQUESTS] == 1.0
    assert found["completed", "count"] == 4.0
    assert gained({ended: 10.0, flying: 6.0}, {ended: 16.0}, series)[REQUESTS] == 0.0


@given(
    st.lists(st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=6), min_size=1, max_size=5),
)
def test_no_count_is_lost_or_doubled_whatever_the_reads_and_restarts(lives):
    """Each process counts from 0; what happens after its last read is lost, and nothing else.

    No process counts past `ALLOWED_FLOOR` here: a restart that shows more is a doubt, not a gain.
    """
    read: dict[SeriesId, float] = {}
    counted = total = 0.0
    for life in lives:
        value = seen = 0.0
        for added, is_read in [*life, (1, True)]:
            value += added
            if is_read:
                new = {ARRIVALS: value}
                hidden = read.get(ARRIVALS, 0.0) if not seen and value >= read.get(ARRIVALS, 0.0) else 0.0
                counted += gained(read, new)[REQUESTS] + hidden
                total += value - seen
                read, seen = new, value
    assert counted == pytest.approx(total)


NAMES = frozenset({"headway_request_arrivals_total"})


def test_the_format_with_all_that_it_allows():
    text = (
        "# HELP headway_request_arrivals_total Valid requests\n# TYPE x counter\n\n"
        'headway_request_arrivals_total{model="a b \\"{}\\" c",} 1.5e3 1700000000000\n'
        'headway_request_arrivals_total{model="tiny"} NaN\nother{a="b"} 3\n'
    )
    found = parse(text, NAMES)
    assert found[SeriesId("headway_request_arrivals_total", (("model", 'a b "{}" c'),))] == 1500.0
    assert isnan(found[ARRIVALS])
    assert len(found) == 2
    assert parse("", NAMES) == {}


@pytest.mark.parametrize(
    "text",
    [
        "<html><body>502</body></html>",
        "no metrics here, sorry",
        'headway_request_arrivals_total{model="x"} many',
    ],
)
def test_what_is_not_the_format_is_refused(text):
    with pytest.raises(SourceDownError, match="text format"):
        parse(text, NAMES)


@given(st.text() | st.text(alphabet='headway_request_arrivals_total{}"=,\\ 1.eNa#\n', max_size=80))
def test_no_text_raises_anything_else(text):
    with suppress(SourceDownError):
        parse(f"headway_request_arrivals_total{text}", NAMES)


@pytest.mark.parametrize("preset", PRESETS.values(), ids=PRESETS)
def test_a_preset_follows_every_quantity(preset):
    series = ModelSeries(preset, "m")
    followed = {channel.quantity for channel in series.channels}
    without_slo = {"requests", "completed", "isl", "osl", "duration", "ttft", "itl"}
    more = {"headway": {"met", "missed", "repeats"}, "dynamo": {"cached"}, "nim": set()}
    assert followed == without_slo | more.get(preset.name, {"queue", "cached"})
    assert bool(series.gauges) == (preset.load is not None)


BOUNDS = (0.1, 0.2, 0.4, 0.8, inf)
counts = st.lists(st.integers(0, 50), min_size=len(BOUNDS), max_size=len(BOUNDS))


def cumulative(per_bucket: list[int]) -> tuple[tuple[float, float], ...]:
    return tuple(zip(BOUNDS, map(float, accumulate(per_bucket)), strict=True))


def test_a_quantile_is_linear_in_its_bucket():
    assert quantile(0.5, cumulative([0, 10, 0, 0, 0])) == pytest.approx(0.15)
    assert quantile(0.5, cumulative([10, 10, 0, 0, 0])) == pytest.approx(0.1)
    assert quantile(0.75, cumulative([10, 10, 0, 0, 0])) == pytest.approx(0.15)


def test_a_quantile_beyond_the_last_bound_is_that_bound():
    assert quantile(0.99, cumulative([1, 0, 0, 0, 10])) == 0.8


@pytest.mark.parametrize(
    "buckets",
    [(), ((inf, 5.0),), ((0.1, 5.0),), ((0.1, 0.0), (inf, 0.0)), ((0.1, float("nan")), (inf, float("nan")))],
)
def test_without_observations_or_without_all_of_them_there_is_no_quantile(buckets):
    assert isnan(quantile(0.5, buckets))


def test_nothing_added_is_a_count_of_zero_and_no_latency():
    found = latency(Increase(count=0.0, total=0.0, buckets=cumulative([0] * 5)))
    assert found.count == 0.0
    assert all(isnan(value) for value in (found.mean, found.p50, found.p95, found.p99))


@given(counts, st.integers(1, 99))
def test_a_quantile_lies_in_the_bucket_of_its_rank(per_bucket, percent):
    if not sum(per_bucket):
        return
    q = percent / 100
    observed = np.repeat(np.arange(len(BOUNDS)), per_bucket)
    bucket = int(observed[int(np.ceil(q * len(observed))) - 1])
    lower = BOUNDS[bucket - 1] if bucket else 0.0
    upper = BOUNDS[min(bucket, len(BOUNDS) - 2)]
    assert min(lower, upper) - 1e-12 <= quantile(q, cumulative(per_bucket)) <= upper + 1e-12


@given(counts)
def test_quantiles_rise(per_bucket):
    if sum(per_bucket):
        found = [quantile(q / 20, cumulative(per_bucket)) for q in range(1, 20)]
        assert all(a <= b + 1e-12 for a, b in pairwise(found))


def test_summed_series_with_different_bounds_are_repaired():
    assert quantile(0.5, ((0.1, 8.0), (0.15, 3.0), (0.2, 9.0), (inf, 10.0))) == pytest.approx(0.0625)


ROLES = (Role.PREFILL, Role.DECODE)


def test_each_quantity_is_read_from_the_engines_that_have_all_of_it():
    series = ModelSeries(VLLM, "tiny", ROLES)
    roles: dict[Quantity, set[Role | None]] = {}
    for channel in series.channels:
        if not channel.gauge:
            roles.setdefault(channel.quantity, set()).add(channel.role)
    prefill = {Quantity.TTFT, Quantity.QUEUE, Quantity.CACHED}
    assert roles == {each: {Role.PREFILL if each in prefill else Role.DECODE} for each in roles}
    assert (
        {c.role for c in series.channels if c.gauge} == {gauge.role for gauge in series.gauges} == set(ROLES)
    )


def test_a_router_in_front_counts_each_request_itself():
    found = {c.quantity: c for c in ModelSeries(LLM_D, "tiny", ROLES).channels}
    assert dict(found[Quantity.REQUESTS].where) == {"model_name": "tiny"}
    assert dict(found[Quantity.QUEUE].where) == {"model_name": "tiny", "role": "prefill"}


def test_the_queries_are_narrowed_by_model_labels_and_role():
    chosen = Chosen(labels={"namespace": "llm"}, roles={Role.PREFILL: {"pod": "~p-.*"}})
    series = ModelSeries(VLLM, "tiny", (Role.PREFILL,))
    queries = sample_queries(series, chosen, 60.0, 30.0)
    counts, buckets = sorted(
        (each for each in queries if "model_name" in each.selector), key=lambda each: -each.before_s
    )
    labels = ',model_name="tiny",namespace="llm",pod=~"p-.*"}'
    assert counts.text(60.0).endswith(f"{labels}[360000ms]")
    assert buckets.text(60.0).endswith(f"{labels}[90000ms]")
    assert "_bucket" not in counts.selector
    assert {counts.role, buckets.role} == {Role.PREFILL}


def test_names_and_labels_in_promql():
    assert selector(["vllm:x"], (("pod", '~p-"x"'),)) == '{__name__=~"vllm[:_]x",pod=~"p-\\"x\\""}'
    names = ModelSeries(VLLM, "tiny").spelt(["vllm:kv_cache_usage_perc"])
    assert "vllm[:_]gpu_cache_usage_perc|vllm[:_]kv_cache" in selector(names, ())


def test_lines_are_parsed_once_and_mean_the_same():
    lines = LineReader(SERIES.names)
    for count in (1, 2):
        text = f'# HELP x y\nheadway_request_arrivals_total{{model="tiny"}} {count}\nother 3\n'
        assert lines.read(text) == parse(text, frozenset(SERIES.names)) == {ARRIVALS: float(count)}
    assert lines.read('headway_request_arrivals_total{model="tiny"} 3.0 1700000000000\n') == {ARRIVALS: 3.0}


@pytest.mark.parametrize("today", ["inter_token_latency_seconds_sum", "kv_cache_usage_perc"])
def test_older_and_other_spellings_are_names_of_today(today):
    before = {"inter_token_latency_seconds_sum": "time_per_output_token_seconds_sum"}
    names = (f"vllm:{today}", f"vllm_{today}", f"vllm:{before.get(today, 'gpu_cache_usage_perc')}")
    for name in names:
        found = LineReader(ModelSeries(VLLM, "tiny").names).read(f'{name}{{model_name="tiny"}} 3.5\n')
        assert found == {SeriesId(f"vllm:{today}", (("model_name", "tiny"),)): 3.5}
