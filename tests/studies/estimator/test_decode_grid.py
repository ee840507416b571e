import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway_studies.estimator.estimate import DecodePoint, decode_contexts, decode_grid


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
