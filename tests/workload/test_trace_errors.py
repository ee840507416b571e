"""Bad input gives one line that names file, line and field, and leaves nothing behind."""

import gzip
import io
import json
import tempfile
from pathlib import Path

import pytest
from trace_files import PLAIN_HEADER, plain, write

from headway.workload import TraceError, TraceOptions, open_trace

DEEP = 50_000  # rows; several pieces of text
FILLER = "-" * 100

BAD_ROWS = [
    ("1,2", r"row: has 2 fields, the header has 3"),
    ("1,2,3,4", r"row: has 4 fields"),
    ("x,2,3", r"timestamp_s: 'x' is not a number"),
    ("nan,2,3", r"timestamp_s: nan is not a finite number"),
    ("-1,2,3", r"timestamp_s: -1 is negative|timestamp_s: -1\.0 is negative"),
    ("1,-2,3", r"input_tokens: -2 is negative"),
    ("1,2,-3", r"output_tokens: -3 is negative"),
    ("1,NaN,3", r"input_tokens: NaN is not a finite number"),
    ("1,inf,3", r"input_tokens: inf is not a finite number"),
    ("1,,3", r"input_tokens: empty is not a finite number"),
    ("1,2.5,3", r"input_tokens: 2\.5 is not a whole number"),
    ("1,2,true", r"output_tokens: 'true' is not a number"),
    ("1,1_0,3", r"input_tokens: '1_0' is not a number"),
    ("1,2,99999999999999999999", r"output_tokens: 1e\+20 is above"),
    ("1,1e400,3", r"input_tokens: inf is not a finite number"),
]


@pytest.mark.parametrize(("row", "problem"), BAD_ROWS)
def test_a_bad_row_is_named(tmp_path: Path, row: str, problem: str) -> None:
    path = write(tmp_path / "t.csv", PLAIN_HEADER, "0,1,1", row, "2,1,1")
    with pytest.raises(TraceError, match=rf"t\.csv: line 3: ({problem})") as caught:
        open_trace(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz"])
@pytest.mark.parametrize("blank_line", [False, True])
def test_the_line_is_right_deep_inside(tmp_path: Path, name: str, blank_line: bool) -> None:
    rows = [f"{i},9,9,{FILLER}" for i in range(DEEP)]
    rows[DEEP - 10] = "0.5,1,oops,"
    rows[1000:1000] = [""] * blank_line
    path = write(tmp_path / name, PLAIN_HEADER + ",filler", *rows)
    with pytest.raises(TraceError, match=rf"line {DEEP - 10 + 2 + blank_line}: output_tokens: 'oops'"):
        open_trace(path)


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz"])
def test_the_line_of_a_late_row_is_right_deep_inside(tmp_path: Path, name: str) -> None:
    rows = [f"{i},9,9,{FILLER}" for i in range(DEEP)]
    rows[DEEP - 7] = f"{DEEP - 107},1,1,"
    rows[5] = "5,1,0,"
    path = write(tmp_path / name, PLAIN_HEADER + ",filler", *rows)
    with pytest.raises(TraceError, match=rf"line {DEEP - 5}: timestamp_s: 99 s before an earlier row.* 60 s"):
        open_trace(path)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('{"timestamp": 1', r"JSON: broken"),
        ("[1, 2]", r"JSON: is not an object"),
        ('{"input_length": 1, "output_length": 1}', r"timestamp: missing"),
        ('{"timestamp": 1, "input_length": "9", "output_length": 1}', r"input_length: '9' is not a number"),
        (
            '{"timestamp": 1, "input_length": true, "output_length": 1}',
            r"input_length: 'True' is not a number",
        ),
        ('{"timestamp": 1, "input_length": 1, "output_length": NaN}', r"output_length: nan is not a finite"),
        ('{"timestamp": -1, "input_length": 1, "output_length": 1}', r"timestamp: -1\.0 is negative"),
        ('{"timestamp": 1, "input_length": 1.5, "output_length": 1}', r"input_length: 1\.5 is not a whole"),
    ],
)
def test_a_bad_json_line_is_named(tmp_path: Path, line: str, problem: str) -> None:
    good = json.dumps({"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": []})
    with pytest.raises(TraceError, match=rf"t\.jsonl: line 2: {problem}"):
        open_trace(write(tmp_path / "t.jsonl", good, line))


@pytest.mark.parametrize("ids", ["abc", [1.5], [True], {"a": 1}, 7])
def test_ids_that_are_no_list_are_ignored_and_said(tmp_path: Path, ids: object) -> None:
    line = json.dumps({"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": ids})
    with open_trace(write(tmp_path / "t.jsonl", line)) as trace:
        assert (trace.request_count, len(trace.blocks)) == (1, 0)
        assert trace.notes == ("hash_ids of 1 rows are no lists of numbers or texts: ignored",)


def test_a_bad_date_is_named(tmp_path: Path) -> None:
    rows = ["2023-11-16 18:17:03.97,1,1", "2023-13-16 18:17:03.97,1,1"]
    path = write(tmp_path / "t.csv", "TIMESTAMP,ContextTokens,GeneratedTokens", *rows)
    with pytest.raises(TraceError, match=r"line 3: TIMESTAMP: '2023-13-16 18:17:03.97' is not a date"):
        open_trace(path)


@pytest.mark.parametrize("date", ["9999-01-01 00:00:00.0", "2300-01-01 00:00:00.0", "1969-12-31 23:59:59.0"])
@pytest.mark.parametrize("quote", ["", '"'])
def test_a_date_out_of_range_is_named(tmp_path: Path, date: str, quote: str) -> None:
    rows = ["2023-11-16 18:17:03.97,1,1", f"{quote}{date}{quote},1,1"]
    path = write(tmp_path / "t.csv", "TIMESTAMP,ContextTokens,GeneratedTokens", *rows)
    with pytest.raises(TraceError, match=rf"line 3: TIMESTAMP: '{date}' is outside the years 1970 to 2262"):
        open_trace(path)


def test_a_repeated_column_is_named(tmp_path: Path) -> None:
    header = "timestamp_s,input_tokens,output_tokens,input_tokens"
    with pytest.raises(TraceError, match=r"line 1: input_tokens: the header has this column twice"):
        open_trace(write(tmp_path / "t.csv", header, "0,1,1,2"))
    with open_trace(write(tmp_path / "t.csv", f"{PLAIN_HEADER},note,note", "0,1,1,a,b")) as trace:
        assert trace.request_count == 1


def test_a_file_that_cannot_be_read_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(io.BytesIO):
        def read(self, _: int | None = -1) -> bytes:
            raise OSError(5, "Input/output error")

    path = plain(tmp_path / "t.csv", [0, 1])
    monkeypatch.setattr(Path, "open", lambda *_: Broken())
    with pytest.raises(TraceError, match=r"t\.csv: cannot be read: Input/output error"):
        open_trace(path)


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"line 1: output_tokens: missing column"):
        open_trace(write(tmp_path / "t.csv", "timestamp_s,input_tokens", "0,1"))


@pytest.mark.parametrize("lines", [[], [PLAIN_HEADER], [PLAIN_HEADER, "0,0,0", "1,0,1"], ["", ""]])
def test_an_empty_trace_is_said(tmp_path: Path, lines: list[str]) -> None:
    with pytest.raises(TraceError, match=r"t\.csv: empty trace"):
        open_trace(write(tmp_path / "t.csv", *lines))


def test_what_is_no_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no such file"):
        open_trace(tmp_path / "missing.csv")
    with pytest.raises(TraceError, match="not a file"):
        open_trace(tmp_path)
    (tmp_path / "binary").write_bytes(bytes(range(256)) * 100)
    with pytest.raises(TraceError, match="line 1: text: binary data"):
        open_trace(tmp_path / "binary")


@pytest.mark.parametrize("kept", [2, 9, 0.5, 0.99])
def test_truncated_gzip_is_said(tmp_path: Path, kept: float) -> None:
    whole = gzip.compress("".join(f"{i},{i * 7919 % 1000 + 1},1\n" for i in range(20_000)).encode())
    data = gzip.compress(f"{PLAIN_HEADER}\n".encode()) + whole
    size = kept if kept >= 1 else int(len(data) * kept)
    (tmp_path / "t.csv.gz").write_bytes(data[: int(size)])
    with pytest.raises(TraceError, match=r"t\.csv\.gz: the gzip data ends early, after line \d+$"):
        open_trace(tmp_path / "t.csv.gz")


def test_damaged_gzip_is_said(tmp_path: Path) -> None:
    data = bytearray(gzip.compress(f"{PLAIN_HEADER}\n0,1,1\n".encode()))
    data[-6] ^= 0xFF
    (tmp_path / "t.csv.gz").write_bytes(data)
    with pytest.raises(TraceError, match=r"t\.csv\.gz: cannot be read: CRC"):
        open_trace(tmp_path / "t.csv.gz")


@pytest.mark.parametrize(
    "options",
    [
        {"start_s": -1},
        {"duration_s": 0},
        {"duration_s": float("inf")},
        {"rate_scale": 0},
        {"rate_scale": float("nan")},
        {"rate_scale": 1e9},
        {"seed": -1},
        {"reorder_window_s": -1},
        {"shift_window_s": -1},
    ],
)
def test_options_without_meaning_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(TraceError, match=next(iter(options))):
        TraceOptions(**options)


def test_an_error_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spools = tmp_path / "spools"
    spools.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(spools))
    path = plain(tmp_path / "t.csv", [0, 1, 2])
    bad = write(tmp_path / "bad.csv", PLAIN_HEADER, "0,1,1", "x")
    for source, options in [
        (bad, TraceOptions()),
        (path, TraceOptions(start_s=9)),
        ("steady:rate_rps=0", None),
    ]:
        with pytest.raises(TraceError):
            open_trace(source, options)
    assert not list(spools.iterdir())
