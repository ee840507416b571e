"""Generated load: shapes, lengths, seeds, specifications; and what is made of a trace: files and series."""

import os
import re
import threading
import tracemalloc
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from trace_files import plain, whole, write

from headway.workload import (
    TraceError,
    TraceOptions,
    interval_series,
    known_generators,
    open_trace,
    write_trace,
)
from tests.patience import PATIENCE_S


def counts(spec: str, edges: list[float]) -> npt.NDArray[np.int64]:
    with open_trace(spec) as trace:
        return np.histogram(whole(trace).arrival_s, bins=edges)[0]


@pytest.mark.parametrize(
    ("spec", "edges", "wanted"),
    [
        ("steady:rate_rps=20,duration_s=1000", [0, 500, 1000], [10_000, 10_000]),
        ("ramp:rate_rps=0,peak_rps=20,duration_s=1000", [0, 500, 1000], [2500, 7500]),
        (
            "step:rate_rps=2,peak_rps=10,at_s=400,back_at_s=600,duration_s=1000",
            [0, 400, 600, 1000],
            [800, 2000, 800],
        ),
        ("step:rate_rps=2,peak_rps=10,at_s=400,duration_s=1000", [0, 400, 1000], [800, 6000]),
        (
            "diurnal:rate_rps=10,amplitude=1,period_s=1000,duration_s=1000",
            [0, 250, 750, 1000],
            [2500 * (1 - 2 / np.pi), 5000 * (1 + 2 / np.pi), 2500 * (1 - 2 / np.pi)],
        ),
        (
            "rhythm:rate_rps=10,amplitude=1,crest_s=0,period_s=1000,burst_cv=0,duration_s=1000",
            [0, 250, 750, 1000],
            [2500 * (1 + 2 / np.pi), 5000 * (1 - 2 / np.pi), 2500 * (1 + 2 / np.pi)],
        ),
        (
            "burst:rate_rps=1,peak_rps=50,burst_s=20,every_s=100,duration_s=200",
            [0, 80, 100, 180, 200],
            [80, 1000] * 2,
        ),
        (
            # The second burst begins at 100 + 0.618 · 80 s.
            "onoff:rate_rps=1,peak_rps=50,on_s=20,every_s=100,duration_s=200",
            [0, 20, 149.44, 169.44, 200],
            [1000, 129.44, 1000, 30.56],
        ),
    ],
)
def test_arrivals_follow_the_shape(spec: str, edges: list[float], wanted: list[float]) -> None:
    assert (abs(counts(spec, edges) - wanted) < 5 * np.sqrt(wanted)).all()


def test_a_rhythm_keeps_its_mean_and_varies_as_asked() -> None:
    spec = "rhythm:rate_rps=20,amplitude=0,burst_s=100,burst_cv=0.5,duration_s=100000"
    each = counts(f"{spec},seed=1", [*range(0, 100_001, 100)])
    assert each.mean() == pytest.approx(2000, rel=0.01)
    assert each.std() / each.mean() == pytest.approx(0.5, rel=0.1)
    assert (counts(f"{spec},seed=2", [*range(0, 100_001, 100)]) != each).mean() > 0.9


def test_steady_arrivals_are_poisson() -> None:
    with open_trace("steady:rate_rps=50,duration_s=2000,seed=4") as trace:
        gaps = np.diff(whole(trace).arrival_s)
        series = interval_series(trace, 1.0)
    assert gaps.mean() == pytest.approx(1 / 50, rel=0.02)
    assert gaps.std() / gaps.mean() == pytest.approx(1, rel=0.02)
    assert series.requests.var() / series.requests.mean() == pytest.approx(1, rel=0.15)


def test_lengths_have_the_mean_and_variation_asked_for() -> None:
    spec = "steady:rate_rps=100,duration_s=1000,input_tokens=2000,input_cv=0.8,output_tokens=300,output_cv=0"
    with open_trace(spec) as trace:
        chunk = whole(trace)
    assert chunk.input_tokens.mean() == pytest.approx(2000, rel=0.02)
    assert chunk.input_tokens.std() / chunk.input_tokens.mean() == pytest.approx(0.8, rel=0.03)
    assert set(chunk.output_tokens) == {300}


def test_the_seed_decides_and_lengths_leave_arrivals_alone() -> None:
    def arrivals(spec: str, seed: int = 0) -> bytes:
        with open_trace(spec, TraceOptions(seed=seed)) as trace:
            return whole(trace).arrival_s.tobytes()

    base = arrivals("burst:seed=1")
    assert arrivals("burst:seed=1,input_cv=0,output_tokens=9") == base
    assert arrivals("burst", seed=1) == base
    assert arrivals("burst:seed=1", seed=2) == base
    assert arrivals("burst:seed=2") != base


def test_a_generated_trace_lasts_as_asked_and_can_be_cut_and_scaled() -> None:
    with open_trace("steady:rate_rps=1,duration_s=600") as trace:
        assert trace.duration_s == 600
        assert whole(trace).arrival_s[0] > 0
    with open_trace("steady:rate_rps=1,duration_s=600", TraceOptions(start_s=100, rate_scale=3)) as trace:
        assert trace.duration_s == 500
        assert trace.request_count == 3 * trace.stats.requests


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        (
            "stedy:rate_rps=1",
            r"unknown generator 'stedy'; known: steady, ramp, step, diurnal, rhythm, burst, onoff",
        ),
        ("steady:peak_rps=1", r"unknown key 'peak_rps' of steady; known: duration_s, input_cv, .*seed"),
        ("steady:rate_rps=fast", r"rate_rps: 'fast' is not a number"),
        ("steady:rate_rps", r"rate_rps: '' is not a number"),
        ("steady:rate_rps=-1", r"rate_rps: must be at least 0"),
        ("steady:rate_rps=nan", r"rate_rps: must be at least 0"),
        ("steady:duration_s=inf", r"duration_s: must be above 0"),
        ("steady:duration_s=0", r"duration_s: must be above 0"),
        ("steady:seed=1.5", r"seed: '1\.5' is not a whole number"),
        ("diurnal:amplitude=1.5", r"amplitude: must be at least 0 and at most 1, got 1\.5"),
        ("steady:input_cv=11", r"input_cv: must be at least 0 and at most 10, got 11"),
        ("steady:output_cv=1e200", r"output_cv: must be at least 0 and at most 10"),
        ("steady:rate_rps=5,seed=1,rate_rps=7", r"rate_rps: given twice"),
        ("steady:rate_rps=1e300,duration_s=1", r"rate_rps: 1e\+300 requests/s for 1 s \(duration_s\)"),
        ("steady:rate_rps=1e9,duration_s=1000", r"rate_rps: .* at most 1,000,000,000 requests"),
        ("burst:peak_rps=1e9", r"peak_rps: 1e\+09 requests/s for 3600 s"),
        ("diurnal:rate_rps=1e308,amplitude=1", r"rate_rps: inf requests/s"),
        ("steady:rate_rps=0", r"empty trace: no request arrives in 3600 s"),
    ],
)
def test_bad_specifications_are_named(spec: str, problem: str) -> None:
    with pytest.raises(TraceError, match=rf"^{re.escape(spec)}: {problem}"):
        open_trace(spec)


def test_generated_load_has_no_format() -> None:
    with pytest.raises(TraceError, match="steady: format azure: generated load has no format"):
        open_trace("steady", TraceOptions(format="azure"))


def test_every_generator_works_with_defaults_and_a_file_wins_over_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in known_generators():
        with open_trace(name) as trace:
            assert trace.request_count > 1000
            assert trace.name == name
    monkeypatch.chdir(tmp_path)
    plain(Path("steady"), [0, 1])
    with open_trace("steady") as trace:
        assert trace.request_count == 2


@pytest.mark.parametrize("name", ["out.csv", "out.csv.gz"])
def test_a_written_trace_reads_back(tmp_path: Path, name: str) -> None:
    source = plain(tmp_path / "t.csv", np.linspace(0, 50, 333))
    with open_trace(source, TraceOptions(rate_scale=2)) as trace:
        write_trace(trace, tmp_path / name)
        first = (tmp_path / name).read_bytes()
        write_trace(trace, tmp_path / name)
        assert (tmp_path / name).read_bytes() == first
        wanted = whole(trace)
    assert first.startswith(b"\x1f\x8b") == name.endswith(".gz")
    with open_trace(tmp_path / name) as trace:
        chunk = whole(trace)
    assert chunk.arrival_s.tolist() == wanted.arrival_s.tolist()
    assert chunk.input_tokens.tolist() == wanted.input_tokens.tolist()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["t.csv", name])


def test_writing_follows_a_link_and_leaves_other_files_alone(tmp_path: Path) -> None:
    target, link = tmp_path / "there" / "t.csv", tmp_path / "link.csv"
    target.parent.mkdir()
    link.symlink_to(target)
    beside = plain(tmp_path / "link.csv.part", [0.0])
    before = beside.read_bytes()
    for _ in range(2):
        with open_trace("steady:duration_s=10") as trace:
            write_trace(trace, link)
    assert link.is_symlink()
    assert target.read_text().startswith("timestamp_s,")
    assert beside.read_bytes() == before
    assert [path.name for path in target.parent.iterdir()] == ["t.csv"]


@pytest.mark.parametrize("name", ["pipe.csv", "pipe.csv.gz"])
def test_a_pipe_is_written_and_stays_one(tmp_path: Path, name: str) -> None:
    pipe, received = tmp_path / name, list[bytes]()
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: received.append(pipe.read_bytes()), daemon=True)
    reader.start()
    with open_trace("steady:duration_s=10") as trace:
        write_trace(trace, pipe)
        reader.join(PATIENCE_S)
        write_trace(trace, tmp_path / f"plain-{name}")
    assert pipe.is_fifo()
    assert received == [(tmp_path / f"plain-{name}").read_bytes()]


def test_a_failing_write_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("old")
    trace = open_trace("steady:duration_s=10")
    trace.close()
    with pytest.raises(TraceError, match="closed"):
        write_trace(trace, path)
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["t.csv"]


def test_a_trace_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    with open_trace("steady:duration_s=10") as trace, pytest.raises(TraceError, match="cannot be written"):
        write_trace(trace, tmp_path / "missing" / "out.csv")


def test_interval_series_counts_whole_intervals(tmp_path: Path) -> None:
    rows = ["0,10,1", "9.9,30,3", "30,5,7", "39,7,7", "45,1,1"]
    path = write(tmp_path / "t.csv", "timestamp_s,input_tokens,output_tokens", *rows)
    with open_trace(path) as trace:
        series = interval_series(trace, 10.0)
        assert series.requests.tolist() == [2, 0, 0, 2]
        np.testing.assert_array_equal(series.isl_tokens, [20, np.nan, np.nan, 6])
        np.testing.assert_array_equal(series.osl_tokens, [2, np.nan, np.nan, 7])
        with pytest.raises(TraceError, match="45 s long, less than one interval of 60 s"):
            interval_series(trace, 60.0)
        with pytest.raises(TraceError, match="more than 1,000,000 intervals"):
            interval_series(trace, 1e-6)
        with pytest.raises(TraceError, match="interval_s must be above 0"):
            interval_series(trace, 0.0)


def test_memory_does_not_grow_with_the_length_of_the_trace() -> None:
    def peak_bytes(duration_s: int) -> int:
        tracemalloc.start()
        with open_trace(f"steady:rate_rps=100,duration_s={duration_s}", TraceOptions(rate_scale=3)) as trace:
            for _ in trace.chunks(8192):
                pass
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    assert peak_bytes(10_000) < 1.2 * peak_bytes(2000)
