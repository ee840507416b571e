"""Means and quantiles from buckets."""

from itertools import accumulate, pairwise
from math import inf, isnan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.collector.measured import Increase, latency, quantile

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
