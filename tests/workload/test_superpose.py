"""Superposition: counts, order, shifts, and the same bytes for every chunk size."""

import tempfile
from math import floor
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trace_files import as_bytes, plain, whole

from headway.workload import RequestChunk, TraceError, TraceOptions, open_trace
from headway.workload.superpose import GOLDEN

GAPS = st.lists(st.sampled_from([0.0, 0.0, 0.001, 0.3, 1.0, 7.1, 100.0]), min_size=1, max_size=80)
SCALES = st.sampled_from([0.3, 0.9, 1.0, 1.5, 2.0, 3.25, 7.0])


def superposed(gaps: list[float], scale: float, rows: int) -> tuple[RequestChunk, float]:
    with tempfile.TemporaryDirectory() as directory:
        path = plain(Path(directory) / "t.csv", np.cumsum([0.0, *gaps]))
        options = TraceOptions(rate_scale=scale, shift_window_s=13.0)
        try:
            with open_trace(path, options) as trace:
                assert trace.request_count == len(whole(trace))
                return whole(trace, rows), trace.duration_s
        except TraceError:
            assert scale < 1
            return whole(open_trace(path), rows), 0.0


@given(gaps=GAPS, scale=SCALES)
def test_copies_are_whole_shifted_and_in_total_order(gaps: list[float], scale: float) -> None:
    chunk, span_s = superposed(gaps, scale, 65536)
    keys = list(zip(chunk.arrival_s, chunk.copy, chunk.output_tokens, strict=True))
    assert keys == sorted(keys)
    times = np.cumsum([0.0, *gaps])
    if scale < 1 or span_s == 0:
        return
    for copy in range(floor(scale)):
        rows = chunk.output_tokens[chunk.copy == copy] - 1
        assert sorted(rows) == list(range(len(times)))
        shift = chunk.arrival_s[chunk.copy == copy] - times[rows]
        offset = copy * GOLDEN % 1.0 * 13.0 % span_s
        assert np.minimum(abs(shift - offset), abs(shift - offset + span_s)).max() < 1e-9
    assert chunk.arrival_s.min() >= 0
    assert chunk.arrival_s.max() <= span_s


@given(gaps=GAPS, scale=SCALES, rows=st.sampled_from([1, 2, 7, 64, 1000]))
def test_the_chunk_size_does_not_matter(gaps: list[float], scale: float, rows: int) -> None:
    one, _ = superposed(gaps, scale, 65536)
    other, _ = superposed(gaps, scale, rows)
    for name in RequestChunk.__slots__:
        assert getattr(one, name).tobytes() == getattr(other, name).tobytes()


def expected(times: npt.NDArray[np.float64], copies: int, window_s: float) -> npt.NDArray[np.float64]:
    """Superposition written plainly, in memory."""
    span_s = times[-1]
    shifted = [(times + (copy * GOLDEN % 1) * window_s) for copy in range(1, copies)]
    wrapped = [np.where(part >= span_s, part - span_s, part) for part in shifted]
    return np.sort(np.concatenate([times, *wrapped]))


@pytest.mark.parametrize("rows", [100, 4096])
def test_a_long_trace_equals_the_plain_definition(tmp_path: Path, rows: int) -> None:
    times = np.cumsum(np.random.default_rng(3).exponential(0.5, 20_000)).round(6)
    times -= times[0]
    with open_trace(plain(tmp_path / "t.csv", times), TraceOptions(rate_scale=4)) as trace:
        chunk = whole(trace, rows)
        window_s = min(600.0, trace.duration_s / 10)
    np.testing.assert_array_equal(chunk.arrival_s, expected(times, 4, window_s))


def test_more_simultaneous_requests_than_a_step_merge_in_order(tmp_path: Path) -> None:
    times = np.repeat([0.0, 10.0, 20.0], [5, 3000, 5])
    options = TraceOptions(rate_scale=3, shift_window_s=0)
    with open_trace(plain(tmp_path / "t.csv", times), options) as trace:
        chunk = whole(trace, 16)
    keys = list(zip(chunk.arrival_s, chunk.copy, chunk.output_tokens, strict=True))
    assert len(keys) == 3 * 3010
    assert keys == sorted(keys)


def test_a_fraction_thins_at_random_but_the_same_every_time(tmp_path: Path) -> None:
    path = plain(tmp_path / "t.csv", np.arange(20_000) / 10)

    def kept(seed: int, scale: float = 0.25) -> npt.NDArray[np.int64]:
        with open_trace(path, TraceOptions(rate_scale=scale, seed=seed)) as trace:
            return whole(trace).output_tokens

    assert abs(len(kept(1)) - 5000) < 5 * np.sqrt(20_000 * 0.25 * 0.75)
    assert kept(1).tobytes() == kept(1).tobytes()
    assert kept(1).tobytes() != kept(2).tobytes()
    assert set(kept(1)) < set(kept(1, 0.5))
    halves = np.histogram(kept(1), bins=4, range=(0, 20_000))[0]
    assert abs(halves - 1250).max() < 5 * np.sqrt(5000 * 0.25 * 0.75)


def test_scaling_keeps_the_trend_and_the_mean_rate(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    quiet, busy = np.sort(rng.uniform(0, 5000, 1000)), np.sort(rng.uniform(5000, 10_000, 4000))
    path = plain(tmp_path / "t.csv", np.concatenate([quiet, busy]))
    with open_trace(path, TraceOptions(rate_scale=6)) as trace:
        chunk = whole(trace)
        share = (chunk.arrival_s < 5000).mean()
        assert len(chunk) == 6 * 5000
        assert share == pytest.approx(0.2, abs=0.06)


def test_a_cut_is_scaled_within_itself(tmp_path: Path) -> None:
    options = TraceOptions(start_s=100, duration_s=50, rate_scale=5, shift_window_s=40)
    with open_trace(plain(tmp_path / "t.csv", np.arange(0, 300, 0.25)), options) as trace:
        chunk = whole(trace)
        assert (len(chunk), trace.duration_s) == (5 * 200, 50)
        assert chunk.arrival_s.max() < 50
        assert np.histogram(chunk.arrival_s, bins=50, range=(0, 50))[0] == pytest.approx(20, abs=5)


def test_a_single_request_can_be_superposed(tmp_path: Path) -> None:
    with open_trace(plain(tmp_path / "t.csv", [3.0]), TraceOptions(rate_scale=3, shift_window_s=5)) as trace:
        assert whole(trace).arrival_s.tolist() == [0, 0, 0]
        assert whole(trace).copy.tolist() == [0, 1, 2]
        assert as_bytes(trace, 1) == as_bytes(trace)


def test_thinning_to_nothing_is_said(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"rate_scale 1e-09 leaves none of 3 requests"):
        open_trace(plain(tmp_path / "t.csv", [0, 1, 2]), TraceOptions(rate_scale=1e-9))
