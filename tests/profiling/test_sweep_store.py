import pathlib

import pytest

from headway.profiling.errors import IncompleteError, MeasurementsError
from headway.profiling.sweep import (
    Measured,
    Phase,
    SweepPoint,
    open_measurements,
    read_measurements,
    swept_tables,
)

PREFILL = SweepPoint(phase=Phase.PREFILL, tokens=128)
DECODE = SweepPoint(phase=Phase.DECODE, tokens=1000, batch=4)
QUESTION = {"engine": "simulated", "limits": {"max_kv_tokens": 8000}}


@pytest.fixture
def path(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "measurements" / "tp1.jsonl"


def test_points_are_on_disk_as_they_come(path: pathlib.Path) -> None:
    measurements = open_measurements(path, QUESTION)
    measurements.keep(PREFILL, Measured(runs_s=(0.1, 0.2)))
    measurements.keep(DECODE, Measured(unmeasurable="too many"))
    found = open_measurements(path, QUESTION)
    assert found.points == {PREFILL: Measured(runs_s=(0.1, 0.2)), DECODE: Measured(unmeasurable="too many")}
    assert found.latencies_s() == {PREFILL: pytest.approx(0.15), DECODE: None}


def test_a_point_that_comes_again_has_the_runs_of_all_looks(path: pathlib.Path) -> None:
    measurements = open_measurements(path, QUESTION)
    for look in (Measured(runs_s=(0.3, 0.2)), Measured(runs_s=(0.1,)), Measured(unmeasurable="refused")):
        measurements.keep(PREFILL, look)
    added = Measured(runs_s=(0.3, 0.2, 0.1), looks=3)
    assert measurements.points == open_measurements(path, QUESTION).points == {PREFILL: added}


def test_another_question_is_refused_by_the_key_that_differs(path: pathlib.Path) -> None:
    open_measurements(path, QUESTION)
    with pytest.raises(
        MeasurementsError, match=r"tp1.jsonl: begun with engine 'simulated', now it is 'vllm'"
    ):
        open_measurements(path, QUESTION | {"engine": "vllm"})
    with pytest.raises(MeasurementsError, match=r"begun with repeats None, now it is 3"):
        open_measurements(path, QUESTION | {"repeats": 3})


def test_a_last_line_that_was_cut_off_is_dropped_and_the_next_one_is_whole(path: pathlib.Path) -> None:
    open_measurements(path, QUESTION).keep(PREFILL, Measured(runs_s=(0.1,)))
    with path.open("a") as file:
        file.write('{"phase": "decode", "tok')
    found = open_measurements(path, QUESTION)
    assert list(found.points) == [PREFILL]
    found.keep(DECODE, Measured(runs_s=(0.01,)))
    assert list(read_measurements(path).points) == [PREFILL, DECODE]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "line 1 does not say what is measured"),
        ("[]\n", "line 1 does not say"),
        ('{"question": {}}\nnot json\n', "line 2 is no measured point"),
        ('{"question": {}}\n{"phase": "prefill", "tokens": 1, "batch": 1, "runs_s": []}\n', "line 2"),
        ('{"question": {}}\n{"phase": "prefill", "tokens": 1, "batch": 1, "runs_s": [-1]}\n', "line 2"),
        ('{"question": {}}\n{"phase": "lunch", "tokens": 1, "batch": 1, "runs_s": [1]}\n', "line 2"),
    ],
)
def test_what_cannot_be_read_is_named_by_its_line(tmp_path: pathlib.Path, text: str, complaint: str) -> None:
    path = tmp_path / "tp1.jsonl"
    path.write_text(text)
    with pytest.raises(MeasurementsError, match=complaint):
        read_measurements(path)


def test_tables_hold_medians_and_say_what_is_odd() -> None:
    longer = SweepPoint(phase=Phase.PREFILL, tokens=256)
    tables = swept_tables(
        {
            PREFILL: Measured(runs_s=(0.1, 0.1, 0.9)),
            longer: Measured(runs_s=(0.2, 0.3, 0.4)),
            DECODE: Measured(runs_s=(0.02,)),
            SweepPoint(phase=Phase.DECODE, tokens=2000, batch=9): Measured(unmeasurable="full"),
        },
        gpus=2,
        max_kv_tokens=8000,
    )
    assert tables.prefill.ttft_s.tolist() == [0.1, 0.3]
    assert tables.prefill.throughput_per_gpu.tolist() == pytest.approx([640.0, 256 / 0.3 / 2])
    assert tables.decode.kv_usage.tolist() == [0.5]
    assert tables.decode.throughput_per_gpu.tolist() == [100.0]
    said = "\n".join(tables.notes)
    assert "prefill of 128 tokens: 1 of 3 runs left out" in said
    assert "prefill of 256 tokens: 3 runs spread by" in said
    assert "decode of 9 × 2,000 tokens: not measured, full" in said


def test_too_few_points_are_no_profile() -> None:
    with pytest.raises(IncompleteError, match="1 prefill points measured, at least 2"):
        swept_tables({PREFILL: Measured(runs_s=(1.0,))}, gpus=1, max_kv_tokens=10)
