"""Intervals from reads, on a clock of the test's."""

import json
from math import isnan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.collector.increase import Ring, between
from actors.collector.interval import HealthStatus, PoolLoad
from actors.collector.presets import PRESETS
from headway.planning import Role
from tests.actors.collector_cases import Pages, Process

SGLANG = PRESETS["sglang"]
VLLM = PRESETS["vllm"]


@pytest.mark.parametrize(
    ("reads", "detail"), [([], "nothing"), ([100.0], "no whole"), ([107.0, 110.0], "no whole")]
)
def test_until_a_whole_interval_was_read_it_is_starting(reads, detail):
    process, pages = Process(), Pages()
    for at_s in reads:
        pages.read(process, at_s)
    health = pages.measure(100.0, 110.0).health
    assert health.status is HealthStatus.STARTING
    assert detail in health.detail


def test_what_was_counted_in_an_outage_is_not_charged_to_the_interval_after_it():
    process, pages = Process(), Pages()
    pages.read(process, 0.0)
    process.serve([0.1] * 1000)
    pages.read(process, 300.0)
    pages.read(process, 310.0)
    assert "no read within" in pages.measure(250.0, 310.0).health.detail
    assert pages.measure(300.0, 310.0).requests == 0.0


def test_load_is_a_mean_over_time_by_role():
    process, pages = Process(), Pages()
    pages.read(process, 0.0)
    process.load("decode", "a", running=4, waiting=2, kv_usage=0.5)
    process.load("decode", "b", running=2, waiting=0, kv_usage=0.1)
    process.load("prefill", "p", running=1, waiting=0, kv_usage=0.0)
    pages.read(process, 5.0)
    process.load("decode", "a", running=0, waiting=0, kv_usage=0.1)
    pages.read(process, 20.0)
    load = pages.measure(0.0, 20.0).load
    assert set(load) == {Role.DECODE, Role.PREFILL}
    assert load[Role.DECODE].running == pytest.approx((6 * 5 + 2 * 15) / 20)
    assert load[Role.DECODE].waiting == pytest.approx(2 * 5 / 20)
    assert load[Role.DECODE].kv_usage == pytest.approx((0.3 * 5 + 0.1 * 15) / 20)


def test_the_state_measures_an_interval_over_a_restart_of_the_collector():
    process, pages = Process(), Pages()
    pages.read(process, 0.0)
    process.serve([0.1] * 3)
    pages.read(process, 10.0)
    pages.measure(0.0, 10.0)
    process.serve([0.1] * 4)
    pages.read(process, 12.0)
    again = Pages()
    again.tracker.restore(json.loads(json.dumps(pages.tracker.state())))
    process.serve([0.1] * 5)
    again.read(process, 20.0)
    found = again.measure(10.0, 20.0)
    assert (found.requests, found.start_s, found.ttft_s.count) == (9.0, 10.0, 9.0)


@pytest.mark.parametrize(("reads", "length_s"), [((0.0, 10.0, 23.0), 13.0), ((0.0, 10.0, 17.0, 24.0), 7.0)])
def test_reads_that_are_not_an_interval_apart_are_scaled_to_it(reads, length_s):
    """The collector was away: 3 s late at a tick, or 3 s before the next."""
    process, pages = Process(), Pages()
    for at_s in reads:
        process.serve([0.1] * round(at_s - (pages.tracker.newest_s or 0.0)))
        pages.read(process, at_s)
    found = pages.measure(reads[-1] - 10.0, reads[-1])
    assert (found.health.status, found.end_s - found.start_s) == (HealthStatus.PARTIAL, 10.0)
    assert f"counted over {length_s} s" in found.health.detail
    assert found.requests == pytest.approx(10.0)
    assert found.ttft_s.mean == pytest.approx(0.1)


@pytest.mark.parametrize("state", [None, {}, [], {"of": ["headway", "tiny"], "samples": 3}])
def test_a_state_that_cannot_be_read_is_a_value_error(state):
    with pytest.raises(ValueError, match="cannot be read"):
        Pages().tracker.restore(state)


def test_the_state_of_another_model_is_refused():
    with pytest.raises(ValueError, match="another"):
        Pages().tracker.restore(Pages(model="another").tracker.state())


@given(st.lists(st.integers(0, 5), min_size=1, max_size=80), st.integers(2, 12))
def test_the_ring_stays_small_and_keeps_the_borders(added, capacity):
    ring = Ring(capacity=capacity)
    first = ring.add({}, 0.0, {})
    ring.mark_border(first)
    for at_s, count in enumerate(added, start=1):
        last = ring.add({("requests", "count"): float(count)}, float(at_s), {})
        assert len(ring) <= max(capacity, 5)
    assert ring.nearest(0.0) is first
    assert between(first, last)["requests"].count == sum(added)


def test_of_two_snapshots_at_one_time_an_interval_begins_at_the_later():
    ring = Ring()
    for at_s in (0.0, 10.0, 10.0, 20.0):
        last = ring.add({("requests", "count"): 1.0}, at_s, {})
    start = ring.nearest(10.0)
    assert start is not None
    assert between(start, last)["requests"].count == 1.0


@pytest.mark.parametrize(
    ("preset", "label", "role", "names"),
    [
        (
            VLLM,
            'model_name="tiny",engine="0"',
            Role.MIXED,
            ("request_success_total", "num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"),
        ),
        (
            SGLANG,
            'model_name="tiny",engine_type="decode"',
            Role.DECODE,
            ("num_requests_total", "num_running_reqs", "num_queue_reqs", "token_usage"),
        ),
    ],
    ids=["vllm", "sglang"],
)
def test_engines_own_metrics(preset, label, role, names):
    pages = Pages(preset)
    for at_s, values in ((0.0, (10, 3, 1, 0.1)), (10.0, (16, 5, 4, 0.3))):
        lines = [f"{preset.name}:{n}{{{label}}} {v}\n" for n, v in zip(names, values, strict=True)]
        pages.read("".join(lines), at_s)
    found = pages.measure(0.0, 10.0)
    assert (found.requests, found.completed) == (11.0, 6.0)
    assert found.load == {role: PoolLoad(running=5.0, waiting=4.0, kv_usage=pytest.approx(0.3))}
    assert found.health.detail == "no data for isl, osl, duration, ttft, itl"


def test_queue_and_cached_tokens_of_engines():
    """4 prompts of 1,000 tokens, of which 3,000 were cached; 3 waited 2 s together."""
    pages = Pages(VLLM)
    counts = {"request_prompt_tokens_count": 4, "request_prompt_tokens_sum": 4_000}
    counts |= {"prefix_cache_hits_total": 3_000}
    counts |= {"request_queue_time_seconds_count": 3, "request_queue_time_seconds_sum": 2.0}
    for at_s, times in ((0.0, 1), (10.0, 2)):
        text = "".join(f'vllm:{name}{{model_name="tiny"}} {times * n}\n' for name, n in counts.items())
        text += 'vllm:num_requests_running{model_name="tiny"} 0\n'
        pages.read(text, at_s)
    found = pages.measure(0.0, 10.0)
    assert (found.cached_tokens, found.queue_s) == (750.0, pytest.approx(2.0 / 3))
    pages.read(text, 20.0)
    idle = pages.measure(10.0, 20.0)
    assert isnan(idle.cached_tokens)
    assert isnan(idle.queue_s)


def test_after_an_update_that_reads_another_series_the_past_of_engines_is_in_no_interval() -> None:
    """Nothing would be known of the new series: all that it ever counted would come into one interval."""
    state = Pages().tracker.state()
    before = [name for name in state["of"] if name != "headway_slo_requests_total"]
    assert len(before) == len(state["of"]) - 1
    with pytest.raises(ValueError, match="version"):
        Pages().tracker.restore({**state, "of": before})
