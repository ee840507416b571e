"""Buckets and patterns."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.routing import RouteRequest, RoutingError
from headway.routing.capacity import DEFAULT_BUCKETS, Buckets, RequestPattern, pattern_of

FINER = Buckets(tuple(sorted({round(2.0 ** (step / 4)) for step in range(81)})))
TOKENS = st.integers(1, 1 << 20)


@given(TOKENS, TOKENS)
def test_buckets_keep_the_order_of_lengths(one, other):
    low, high = sorted((one, other))
    assert DEFAULT_BUCKETS.bucket(low) <= DEFAULT_BUCKETS.bucket(high)


@given(TOKENS)
def test_a_bucket_stands_for_lengths_within_the_root_of_its_width(tokens):
    for buckets, width in ((DEFAULT_BUCKETS, 2.0), (FINER, 2.0**0.5)):
        middle = buckets.tokens(buckets.bucket(tokens))
        assert middle / width**0.5 <= tokens * 1.001
        assert tokens <= middle * width**0.5 * 1.5
        assert buckets.bucket(middle) == buckets.bucket(tokens)


@pytest.mark.parametrize(("tokens", "bucket"), [(0, 0), (1, 0), (1.9, 0), (2, 1), (3, 1), (4, 2), (1024, 10)])
def test_edges_belong_to_the_bucket_that_they_begin(tokens, bucket):
    assert DEFAULT_BUCKETS.bucket(tokens) == bucket


def test_what_buckets_stand_for():
    buckets = Buckets((1, 2, 5, 100))
    assert [buckets.tokens(place) for place in range(len(buckets))] == [
        1.0,
        pytest.approx(8**0.5),
        pytest.approx(495**0.5),
        100.0,
    ]


def test_beyond_the_last_edge_all_is_one_bucket():
    assert Buckets((1, 10)).bucket(10**9) == 1
    assert DEFAULT_BUCKETS.bucket(1 << 40) == len(DEFAULT_BUCKETS) - 1


@pytest.mark.parametrize("edges", [[], [0, 1], [2, 2], [4, 2], [-1]])
def test_edges_that_do_not_ascend_are_an_error(edges):
    with pytest.raises(RoutingError, match="bucket edges must ascend"):
        Buckets(tuple(edges))


def test_a_pattern_is_model_and_two_buckets():
    request = RouteRequest(request_id="a", arrival_s=0.0, input_tokens=1000, max_tokens=5000, model="m")
    assert pattern_of(request, 130.5) == RequestPattern("m", 9, 7)
    assert pattern_of(request, 130.5, Buckets((1, 100))) == RequestPattern("m", 1, 1)
