import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.profiling.grids import DecodePoint, decode_contexts, decode_grid, log_spaced, prefill_grid


@given(st.integers(1, 10_000), st.integers(1, 1_000_000), st.integers(2, 40))
def test_log_spaced_keeps_both_ends_and_ascends(low: int, extra: int, points: int) -> None:
    high = low + extra
    spaced = log_spaced(low, high, points)
    assert spaced[0] == low
    assert spaced[-1] == high
    assert len(spaced) <= points
    assert all(a < b for a, b in itertools.pairwise(spaced))


def test_log_spaced_of_an_empty_range_is_its_upper_end() -> None:
    assert log_spaced(256, 100, 5) == (100,)
    assert log_spaced(256, 256, 5) == (256,)


def test_prefill_grid_has_equal_ratios() -> None:
    grid = prefill_grid(131_072, 11)
    assert grid == (128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)


def test_default_prefill_grid_keeps_a_parabola_within_two_percent_of_its_chords() -> None:
    grid = prefill_grid(131_072, 25)
    ratios = [b / a for a, b in itertools.pairwise(grid)]
    assert max((ratio - 1) ** 2 / (4 * ratio) for ratio in ratios) < 0.022


@given(
    max_context=st.integers(300, 200_000),
    capacity=st.integers(1, 500_000),
    max_batch=st.integers(1, 512),
    batches=st.integers(2, 16),
)
def test_decode_lines_run_from_one_request_to_the_largest_batch_that_fits(
    max_context: int, capacity: int, max_batch: int, batches: int
) -> None:
    contexts = decode_contexts(max_context, 8)
    grid = decode_grid(contexts, max_batch=max_batch, max_kv_tokens=capacity, batches=batches)
    assert len(set(grid)) == len(grid)
    for context in contexts:
        line = [point.batch for point in grid if point.context_tokens == context]
        largest = min(max_batch, capacity // context)
        assert (line[0], line[-1]) == (1, largest) if largest else not line


def test_a_line_with_room_for_one_request_has_one_point() -> None:
    grid = decode_grid((1000, 2000), max_batch=8, max_kv_tokens=1999, batches=5)
    assert grid == (DecodePoint(batch=1, context_tokens=1000),)


@pytest.mark.parametrize(("limit", "expected"), [(256, 256), (4, 4)])
def test_the_batch_limit_ends_a_short_line(limit: int, expected: int) -> None:
    grid = decode_grid((256,), max_batch=limit, max_kv_tokens=1_000_000, batches=6)
    assert grid[-1].batch == expected
