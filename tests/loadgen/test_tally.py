"""Requests added up."""

import pytest
from test_records import SLO, record

from headway.loadgen.records import RequestOutcome
from headway.loadgen.tally import MOST, LoadTally, Windows


def tally(*records: object) -> LoadTally:
    made = LoadTally(SLO)
    for item in records:
        made.add(item)  # type: ignore[arg-type]
    return made


def test_failed_and_shed_requests_count_as_missed() -> None:
    made = tally(
        record(10.1, 10.2),
        record(10.9, 11.0),
        record(outcome=RequestOutcome.SHED),
        record(10.1, outcome=RequestOutcome.ERROR_EVENT),
    )
    summary = made.summary()
    assert (summary["requests"], summary["completed"], summary["shed"], summary["failed"]) == (4, 2, 1, 1)
    assert summary["attainment"] == 0.25
    assert summary["outcomes"] == {"error event": 1, "ok": 2, "shed": 1}


def test_a_failed_request_leaves_its_tokens_but_no_e2e() -> None:
    made = tally(record(10.1, 10.2, 10.3, outcome=RequestOutcome.CONNECTION))
    assert made.latencies["ttft_s"].weight == 1
    assert made.latencies["itl_s"].weight == pytest.approx(2)
    assert made.latencies["e2e_s"].weight == 0
    assert made.latencies["tpot_s"].weight == 0


def test_no_send_lag_is_above_the_highest() -> None:
    lags_s = [0.001 * 1.01**step for step in range(40)]
    for lag_s in lags_s:
        made = tally()
        made.lag.add(lag_s)
        found = made.summary()["send_lag_s"]
        assert found["max"] == lag_s
        assert max(found.values()) == lag_s
    assert set(tally().summary()["send_lag_s"].values()) == {None}


def test_goodput_is_over_the_whole_replay() -> None:
    assert tally(record(10.1, 10.2), record(10.9)).summary()["goodput_rps"] == pytest.approx(1 / 10.9)


def test_nothing_happened() -> None:
    summary = tally().summary()
    assert summary["attainment"] is None
    assert summary["goodput_rps"] == 0.0
    assert summary["notes"] == []


@pytest.mark.parametrize(("lag_s", "material"), [(0.04, False), (0.06, True)])
def test_a_late_sender_is_said(lag_s: float, material: bool) -> None:
    made = tally(*(record(11.0, sent_s=10.0 + lag_s) for _ in range(100)))
    assert made.sender_was_late is material
    assert any("load generator itself was late" in note for note in made.notes()) is material


def test_short_outputs_are_said() -> None:
    assert any("--ignore-eos" in note for note in tally(record(10.1, total=2)).notes())
    assert not tally(record(10.1, total=5)).notes()


def test_windows_by_intended_time() -> None:
    made = tally(record(10.1, 10.2), record(10.9, 10.95), record(25.0, intended_s=24.9))
    assert [(row["start_s"], row["requests"], row["attainment"]) for row in made.windows.rows()] == [
        (10.0, 2, 0.5),
        (20.0, 1, 1.0),
    ]


def test_windows_are_bounded() -> None:
    windows = Windows(1.0)
    for at in range(0, 20 * MOST, 7):
        windows.add(record(at + 0.1, intended_s=float(at)), met=True)
    rows = windows.rows()
    assert len(rows) <= MOST
    assert sum(row["requests"] for row in rows) == len(range(0, 20 * MOST, 7))
