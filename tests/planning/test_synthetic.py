"""Requests made of counts: as many as were counted, when and as long as the counts say."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.planning.synthetic import CountedTraffic, LengthHistogram, made_of

LENGTHS = LengthHistogram(bounds=(100.0, 1_000.0, 10_000.0), counts=(900.0, 0.0, 100.0, 0.0), mean=800.0)


def counted(*steps, **changes):
    ends = [(60.0 + 5.0 * (place + 1), float(count)) for place, count in enumerate(steps)]
    given_counts = {"start_s": 60.0, "steps": tuple(ends), "input_tokens": LENGTHS}
    return CountedTraffic(**(given_counts | changes))


def test_arrivals_lie_in_the_steps_that_counted_them():
    made = made_of(counted(3, 0, 500, 7))
    assert np.histogram(made.arrival_s, [60.0, 65.0, 70.0, 75.0, 80.0])[0].tolist() == [3, 0, 500, 7]
    assert (np.diff(made.arrival_s) >= 0).all()
    assert made.arrival_s[0] > 60.0


def test_a_tenth_of_the_requests_has_nearly_all_tokens_where_the_histogram_says_so():
    made = made_of(counted(*[100] * 12))
    assert made.input_tokens.mean() == pytest.approx(800.0, rel=1e-4)
    long = made.input_tokens > 1_000.0
    assert long.mean() == pytest.approx(0.1, abs=0.01)
    assert made.input_tokens[long].sum() > 0.9 * made.input_tokens.sum()


def test_long_ones_come_in_runs_as_they_would_by_chance():
    """Of 12 hundreds with 10 long ones each in the mean, the spread is that of draws, not of even mixing."""
    long = made_of(counted(*[100] * 120)).input_tokens > 1_000.0
    each = np.array([part.sum() for part in np.split(long, 120)])
    assert each.sum() == pytest.approx(1_200, abs=1)
    assert each.std() == pytest.approx(3.0, abs=0.6)


def test_outputs_are_those_of_what_completed():
    outputs = LengthHistogram(bounds=(50.0, 200.0), counts=(10.0, 10.0, 0.0), mean=80.0)
    made = made_of(counted(100, output_tokens=outputs, completed=2_000.0))
    assert len(made.completed_input_tokens) == len(made.completed_output_tokens) == 2_000
    assert made.completed_output_tokens.mean() == pytest.approx(80.0, rel=1e-4)
    # Inputs and outputs are independent: nothing says that long prompts have long answers.
    both = np.corrcoef(made.completed_input_tokens, made.completed_output_tokens)[0, 1]
    assert abs(both) < 0.1
    assert len(made_of(counted(100)).completed_output_tokens) == 0


def test_the_bucket_above_all_bounds_ends_where_the_mean_puts_it():
    lengths = LengthHistogram(bounds=(100.0,), counts=(50.0, 50.0), mean=2_025.0)
    made = made_of(counted(1_000, input_tokens=lengths)).input_tokens
    assert made.mean() == pytest.approx(2_025.0, rel=1e-4)
    assert made.max() == pytest.approx(7_900.0, rel=0.02)


def test_without_buckets_all_have_the_mean():
    lengths = LengthHistogram(bounds=(), counts=(1.0,), mean=300.0)
    assert set(made_of(counted(50, input_tokens=lengths)).input_tokens) == {300.0}


def test_the_same_counts_make_the_same_requests_and_other_intervals_others():
    one, same = made_of(counted(50, 20)), made_of(counted(50, 20))
    assert one.arrival_s.tobytes() == same.arrival_s.tobytes()
    assert one.input_tokens.tobytes() == same.input_tokens.tobytes()
    later = made_of(counted(50, 20, start_s=55.0))
    assert later.input_tokens.tobytes() != one.input_tokens.tobytes()


@given(st.lists(st.floats(-50.0, 300.0), min_size=1, max_size=20))
def test_whatever_was_counted_the_requests_are_in_order_and_as_many(steps):
    """A step may be negative where arrivals follow from requests in flight."""
    made = made_of(counted(*steps))
    assert len(made.arrival_s) == round(sum(max(0.0, step) for step in steps))
    assert (made.input_tokens >= 1.0).all()


def test_the_share_that_was_cached_is_that_of_every_input():
    made = made_of(counted(50, 20, cached_share=0.25, output_tokens=LENGTHS, completed=40.0))
    assert len(made.completed_cached_tokens) == 40
    assert (made.completed_cached_tokens == 0.25 * made.completed_input_tokens).all()
    assert made_of(counted(50, 20)).completed_cached_tokens is None


def test_as_many_are_late_as_the_buckets_say_and_the_longest_prompts_are():
    outputs = LengthHistogram(bounds=(), counts=(1.0,), mean=80.0)
    waits = LengthHistogram(bounds=(0.25, 0.5, 1.0), counts=(900.0, 0.0, 100.0, 0.0), mean=0.3)
    made = made_of(counted(500, 500, output_tokens=outputs, completed=1_000.0, ttft_s=waits))
    late = made.completed_ttft_s > 0.5
    assert late.sum() == pytest.approx(100, abs=1)
    assert made.completed_input_tokens[late].min() >= made.completed_input_tokens[~late].max()
    assert set(made.completed_arrival_s) == {70.0}
    assert np.isnan(made.completed_itl_s).all()
    assert made_of(counted(500, output_tokens=outputs, completed=500.0)).completed_ttft_s is None
