import itertools

from hypothesis import given
from hypothesis import strategies as st

from headway.profiling.sweep.points import log_spaced, prefill_grid


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
