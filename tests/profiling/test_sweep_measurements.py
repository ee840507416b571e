import pathlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.profiling import IncompleteError, MeasurementsError, Phase
from headway.profiling.sweep.measurements import (
    MOST_VISITS,
    Measured,
    contradicting,
    open_measurements,
    read_measurements,
    swept_tables,
)
from headway.profiling.sweep.points import SweepPoint

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


def test_a_point_that_comes_again_has_the_runs_of_all_visits(path: pathlib.Path) -> None:
    measurements = open_measurements(path, QUESTION)
    for visit in (Measured(runs_s=(0.3, 0.2)), Measured(runs_s=(0.1,)), Measured(unmeasurable="refused")):
        measurements.keep(PREFILL, visit)
    added = Measured(runs_s=(0.3, 0.2, 0.1), visits=3)
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


def prefill(tokens: int) -> SweepPoint:
    return SweepPoint(phase=Phase.PREFILL, tokens=tokens)


def decode(batch: int, tokens: int) -> SweepPoint:
    return SweepPoint(phase=Phase.DECODE, tokens=tokens, batch=batch)


def test_both_sides_of_a_fall_contradict_and_no_others():
    latencies_s = {100: 0.010, 200: 0.012, 400: 0.020, 800: 0.015, 1600: 0.040}
    measured = {prefill(tokens): Measured(runs_s=(value,)) for tokens, value in latencies_s.items()}
    assert contradicting(measured) == [prefill(400), prefill(800)]


def test_a_batch_is_compared_on_its_own_context_alone():
    slow, fast = Measured(runs_s=(0.02,)), Measured(runs_s=(0.01,))
    assert contradicting({decode(1, 100): slow, decode(2, 200): fast, prefill(300): fast}) == []
    assert contradicting({decode(1, 100): slow, decode(2, 100): fast}) == [decode(1, 100), decode(2, 100)]


def test_a_few_per_cent_are_no_contradiction_and_gaps_are_bridged():
    few = {prefill(1): Measured(runs_s=(1.0,)), prefill(2): Measured(runs_s=(0.96,))}
    assert contradicting(few) == []
    gap = {prefill(2): Measured(unmeasurable="no"), prefill(3): Measured(runs_s=(0.5,))}
    assert contradicting(few | gap) == [prefill(1), prefill(3)]


def test_the_least_visited_come_first_and_a_third_visit_is_the_last():
    visited = {
        prefill(1): Measured(runs_s=(3.0,), visits=2),
        prefill(2): Measured(runs_s=(2.0,), visits=MOST_VISITS),
        prefill(3): Measured(runs_s=(1.0,), visits=1),
    }
    assert contradicting(visited) == [prefill(3), prefill(1)]


@given(st.lists(st.floats(1e-4, 10.0), min_size=1, max_size=9))
def test_what_rises_never_contradicts(latencies_s: list[float]):
    rising = enumerate(sorted(latencies_s), start=1)
    assert contradicting({prefill(tokens): Measured(runs_s=(value,)) for tokens, value in rising}) == []
