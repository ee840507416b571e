import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.profiling import Phase, RequestError
from headway.profiling.sweep.points import (
    WINDOW_TOKENS,
    Limits,
    largest_batch,
    log_spaced,
    prefill_grid,
    sweep_points,
)

LIMITS = st.builds(
    Limits,
    max_request_tokens=st.integers(512, 200_000),
    max_kv_tokens=st.integers(512, 2_000_000),
    max_batch=st.integers(1, 1024),
    isl_points=st.integers(2, 20),
    kv_points=st.integers(2, 8),
    context_points=st.integers(2, 8),
)


@given(LIMITS)
def test_every_point_fits_the_engine(limits: Limits) -> None:
    points = sweep_points(limits)
    assert len(set(points)) == len(points)
    for point in points:
        assert 1 <= point.batch <= limits.max_batch
        if point.phase is Phase.PREFILL:
            assert point.tokens + point.output_tokens <= limits.longest_tokens
            continue
        prompt_tokens = point.tokens - point.output_tokens // 2
        assert prompt_tokens >= 1
        assert prompt_tokens + point.output_tokens <= limits.longest_tokens
        longest = prompt_tokens + point.output_tokens
        assert point.batch == 1 or point.batch * (longest + 16) <= limits.max_kv_tokens


@given(LIMITS)
def test_lines_run_from_one_request_to_the_most_that_fit(limits: Limits) -> None:
    decode = [point for point in sweep_points(limits) if point.phase is Phase.DECODE]
    assert max(point.tokens for point in decode) == limits.longest_tokens - WINDOW_TOKENS
    for context in {point.tokens for point in decode}:
        batches = [point.batch for point in decode if point.tokens == context]
        assert min(batches) == 1
        assert max(batches) == largest_batch(context, limits)
        assert len(batches) <= limits.kv_points


def test_the_default_granularity_is_that_of_the_documents() -> None:
    points = sweep_points(Limits(max_request_tokens=131_072, max_kv_tokens=1_000_000))
    assert sum(point.phase is Phase.PREFILL for point in points) == 16
    assert len({point.tokens for point in points if point.phase is Phase.DECODE}) == 6


@pytest.mark.parametrize(
    ("field", "value"),
    [("max_request_tokens", 100), ("max_kv_tokens", 0), ("max_batch", 0), ("isl_points", 1)],
)
def test_limits_that_make_no_sweep_are_refused_by_name(field: str, value: int) -> None:
    with pytest.raises(RequestError, match=f"^{field}: expected at least"):
        Limits(**{"max_request_tokens": 4096, "max_kv_tokens": 4096, field: value})


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
