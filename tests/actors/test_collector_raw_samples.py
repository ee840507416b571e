"""Raw samples of several targets: each at its own times, with gaps, and with ends within an interval."""

import pytest

from actors.collector.exposition import series_id
from actors.collector.interval import Measured
from actors.collector.presets import PRESETS
from actors.collector.raw_samples import RawSeries, measured_of, reads
from actors.collector.series import ModelSeries

VLLM = PRESETS["vllm"]

FRESH_S, GAP_S, BEGINS_S = 30.0, 15.0, 10_000.0
SERIES = ModelSeries(VLLM, "tiny")
FINE = "no data for osl, duration, ttft, itl"
"""What these engines do not show."""


def engine(name: str, phase_s: float, at: list[tuple[float, float, float]]) -> list[RawSeries]:
    """An engine that was sampled at these times with so many requests ended and running."""
    figures = {
        "vllm:request_success_total": [(at_s + phase_s, ended) for at_s, ended, _ in at],
        "vllm:num_requests_running": [(at_s + phase_s, running) for at_s, _, running in at],
        "vllm:num_requests_waiting": [(at_s + phase_s, 0.0) for at_s, _, _ in at],
        "vllm:request_prompt_tokens_count": [(at_s + phase_s, ended) for at_s, ended, _ in at],
        "vllm:request_prompt_tokens_sum": [(at_s + phase_s, 100.0 * ended) for at_s, ended, _ in at],
        "vllm:request_prompt_tokens_bucket": [(at_s + phase_s, ended) for at_s, ended, _ in at],
    }
    labels = {"model_name": "tiny", "instance": name, "job": "vllm"}
    return [
        RawSeries(
            ("vllm", name), series_id(each, labels | ({"le": "+Inf"} if "bucket" in each else {})), samples
        )
        for each, samples in figures.items()
    ]


def steady(
    first: int, last: int, before: float = 1_000.0, running: float = 2.0
) -> list[tuple[float, float, float]]:
    """One request a second, sampled every GAP_S."""
    return [(BEGINS_S + k * GAP_S, before + k * GAP_S, running) for k in range(first, last + 1)]


def measured(raw: list[RawSeries], end_s: float, interval_s: float = 60.0) -> Measured:
    return measured_of(SERIES, raw, (end_s - interval_s, end_s), FRESH_S, {})


@pytest.mark.parametrize("interval_s", [60.0, 50.0, 37.0, 20.0])
def test_intervals_tile_though_targets_are_sampled_at_times_of_their_own(interval_s):
    raw = [
        each for n, phase in enumerate((0.0, 4.0, 9.5)) for each in engine(f"e{n}:1", phase, steady(-30, 40))
    ]
    ends_s = [BEGINS_S + interval_s * n for n in range(8)]
    found = [measured(raw, end_s, interval_s) for end_s in ends_s]
    assert {each.health.detail for each in found} == {FINE}
    # Of what was counted between two samples each interval has its part.
    assert [each.requests for each in found] == pytest.approx([3 * interval_s] * len(ends_s))
    assert [each.completed for each in found] == pytest.approx([3 * interval_s] * len(ends_s))


def test_a_target_is_in_a_read_once_and_a_read_ends_where_the_interval_begins():
    raw = [each for n, phase in enumerate((0.0, 5.0)) for each in engine(f"e{n}:1", phase, steady(0, 3))]
    found = list(reads(raw, (BEGINS_S + 16.0, BEGINS_S + 51.0), FRESH_S))
    engines = [sorted({dict(s.labels)["instance"] for s in read.samples}) for read in found]
    assert (
        engines == [["e0:1", "e1:1"], ["e0:1"], ["e0:1", "e1:1"], ["e0:1", "e1:1"], ["e1:1"]][: len(engines)]
    )
    assert [read.at_s - BEGINS_S for read in found][1] == 16.0
    assert found[-1].at_s == BEGINS_S + 51.0
    assert {dict(s.labels)["instance"] for s in found[1].unread} == {"e1:1"}


def test_series_of_a_target_that_are_sampled_a_little_apart_are_one_read():
    rows = engine("a:1", 2.0, steady(-30, 5))
    apart = [
        each._replace(samples=[(at_s + 0.02 * n, value) for at_s, value in each.samples])
        for n, each in enumerate(rows)
    ]
    found = measured(apart, BEGINS_S + 63.0)
    assert (found.requests, found.completed) == pytest.approx((60.0, 60.0))
    assert found.health.detail == FINE


def test_an_engine_that_begins_anew_counts_on_and_takes_nothing_back():
    before, after = (
        steady(-30, 1, running=8.0),
        [(BEGINS_S + k * GAP_S, (k - 2) * GAP_S + 5.0, 3.0) for k in (2, 3, 4, 5)],
    )
    raw = [*engine("a:1", 0.0, [*before, *after]), *engine("b:1", 3.0, steady(-30, 5))]
    found = measured(raw, BEGINS_S + 64.0)
    # Of `a` 11 until it ended, then 39 and the 3 that run; of `b` 60.
    assert (found.requests, found.completed) == pytest.approx((11 + 39 + 3 + 60, 110))
    assert found.health.detail == FINE
    assert found.counted is not None
    assert sum(gain for _, gain in found.counted.steps) == pytest.approx(found.requests)
    assert found.isl_tokens == pytest.approx(100.0)


def test_an_engine_that_is_gone_stands_until_its_samples_are_stale():
    raw = [*engine("a:1", 0.0, steady(-30, 0, running=8.0)), *engine("b:1", 3.0, steady(-30, 8))]
    assert measured(raw, BEGINS_S + 20.0).load["mixed"].running == pytest.approx(10.0)
    gone = measured(raw, BEGINS_S + 120.0)
    assert (gone.requests, gone.health.detail) == (60.0, FINE)
    assert gone.load["mixed"].running == pytest.approx(2.0)


def test_a_new_engine_counts_from_its_start_and_one_with_a_past_from_where_it_is_seen():
    new = engine("new:1", 2.0, [(BEGINS_S + k * GAP_S, 10.0 * (k - 1), 1.0) for k in (2, 3, 4, 5)])
    old = engine("old:1", 4.0, steady(2, 5, before=90_000.0, running=50.0))
    raw = [*engine("a:1", 0.0, steady(-30, 5)), *new, *old]
    found = measured(raw, BEGINS_S + 66.0)
    assert found.requests == pytest.approx(60 + 30 + 10 * 4 / 15 + 1 + 32)
    assert found.health.detail == FINE


def test_a_scrape_that_is_missed_costs_nothing():
    rows = steady(-30, 5)
    raw = [*engine("a:1", 0.0, [r for r in rows if r[0] != BEGINS_S + 2 * GAP_S]), *engine("b:1", 3.0, rows)]
    found = measured(raw, BEGINS_S + 63.0)
    assert found.requests == pytest.approx(120.0)
    assert found.health.detail == FINE
