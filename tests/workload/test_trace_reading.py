"""A trace is re-iterable, ordered, cut as asked, and cleans up after itself."""

import gc
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trace_files import as_bytes, plain, whole

from headway.workload import TraceError, TraceOptions, open_trace
from headway.workload.ingest import Reorderer, TooLateError
from headway.workload.spool import RECORD


def test_iterating_again_yields_the_same_bytes(tmp_path: Path) -> None:
    with open_trace(plain(tmp_path / "t.csv", np.arange(1000) * 0.7), TraceOptions(rate_scale=2.5)) as trace:
        first = as_bytes(trace, 64)
        half_read = next(trace.chunks(64))
        assert len(half_read) == 64
        assert as_bytes(trace, 64) == first


def test_chunks_are_full_except_the_last(tmp_path: Path) -> None:
    with open_trace(plain(tmp_path / "t.csv", np.arange(1000.0)), TraceOptions(rate_scale=3)) as trace:
        assert [len(chunk) for chunk in trace.chunks(700)] == [700, 700, 700, 700, 200]
        with pytest.raises(TraceError, match="at least 1"):
            next(trace.chunks(0))


def test_rows_out_of_order_are_sorted_stably_and_counted(tmp_path: Path) -> None:
    with open_trace(plain(tmp_path / "t.csv", [5, 3, 9, 5, 3, 70, 11])) as trace:
        chunk = whole(trace)
        assert chunk.arrival_s.tolist() == [0, 0, 2, 2, 6, 8, 67]
        assert chunk.output_tokens.tolist() == [2, 5, 1, 4, 3, 7, 6]
        assert trace.stats.reordered == 4


def test_disorder_beyond_the_window_is_an_error(tmp_path: Path) -> None:
    path = plain(tmp_path / "t.csv", [0, 100, 40, 39])
    with pytest.raises(TraceError, match=r"line 5: timestamp_s: 61 s before an earlier row"):
        open_trace(path)
    with open_trace(path, TraceOptions(reorder_window_s=61)) as trace:
        assert trace.stats.reordered == 2


@given(
    times=st.lists(st.integers(0, 40), max_size=60),
    cuts=st.lists(st.integers(0, 60), max_size=5),
    window_s=st.integers(0, 50),
)
def test_reordering_sorts_stably_whatever_the_pieces(
    times: list[int], cuts: list[int], window_s: int
) -> None:
    records = np.zeros(len(times), RECORD)
    records["arrival_s"] = times
    records["input_tokens"] = np.arange(len(times))
    reorderer = Reorderer(window_s)
    lags = np.maximum.accumulate(np.array(times, float)) - times if times else np.zeros(0)
    parts = np.split(records, sorted(cuts))
    if (lags > window_s).any():
        with pytest.raises(TooLateError) as late:
            [reorderer.push(part) for part in parts]
        assert late.value.lag_s == lags[lags > window_s][0]
        return
    out = [reorderer.push(part) for part in parts] + [reorderer.flush()]
    assert np.concatenate(out).tolist() == records[np.argsort(records["arrival_s"], kind="stable")].tolist()
    assert reorderer.reordered == (lags > 0).sum()


def test_a_cut_is_rebased_to_its_start(tmp_path: Path) -> None:
    path = plain(tmp_path / "t.csv", [7, 8, 9, 10, 11])
    with open_trace(path, TraceOptions(start_s=0.5, duration_s=2.5)) as trace:
        assert whole(trace).arrival_s.tolist() == [0.5, 1.5]
        assert (trace.duration_s, trace.request_count, trace.stats.requests) == (2.5, 2, 2)
        assert (trace.stats.rows_read, trace.stats.isl_max) == (5, 12)
    with open_trace(path, TraceOptions(start_s=2)) as trace:
        assert (trace.duration_s, whole(trace).arrival_s.tolist()) == (2.0, [0, 1, 2])


@pytest.mark.parametrize("start_s", [0.0, 1.5])
def test_a_duration_beyond_the_end_goes_to_the_end(tmp_path: Path, start_s: float) -> None:
    path = plain(tmp_path / "t.csv", [7, 8, 9, 10, 11])
    with open_trace(path, TraceOptions(start_s=start_s, duration_s=100)) as trace:
        assert trace.duration_s == 4 - start_s
    with open_trace("steady:duration_s=60", TraceOptions(start_s=start_s, duration_s=100)) as trace:
        assert trace.duration_s == 60 - start_s


@pytest.mark.parametrize(
    ("start_s", "duration_s", "problem"),
    [
        (100.0001, None, r"start_s 100\.0001 is beyond"),
        (100.5, None, "beyond the end"),
        (20.0, 5.0, "no requests from start_s 20 for 5 s"),
    ],
)
def test_a_cut_without_requests_says_how_long_the_trace_is(
    tmp_path: Path, start_s: float, duration_s: float | None, problem: str
) -> None:
    path = plain(tmp_path / "t.csv", [0, 10, 100])
    with pytest.raises(TraceError, match=rf"{problem}.*the trace is 100 s long"):
        open_trace(path, TraceOptions(start_s=start_s, duration_s=duration_s))


def test_files_go_when_the_trace_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spools = tmp_path / "spools"
    spools.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(spools))
    path = plain(tmp_path / "t.csv", [0, 1, 2])
    kept = open_trace(path)
    dropped = open_trace(path)
    assert len(list(spools.iterdir())) == 2
    del dropped
    gc.collect()
    assert len(list(spools.iterdir())) == 1
    kept.close()
    kept.close()
    assert not list(spools.iterdir())
    with pytest.raises(TraceError, match="has been closed"):
        next(kept.chunks())
