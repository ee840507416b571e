"""Each format is read, detected and rebased; what is unusual about a file does not matter."""

import contextlib
import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trace_files import PLAIN_HEADER, as_bytes, plain, whole, write

from headway.workload import RequestChunk, TraceError, TraceOptions, known_formats, open_trace
from headway.workload.formats import PLAIN
from headway.workload.text import Piece


def test_plain_is_read_and_rebased(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", PLAIN_HEADER + ",client", "5.25,10,3,a", "6.5,20,1,b")
    with open_trace(path) as trace:
        chunk = whole(trace)
        assert chunk.arrival_s.tolist() == [0.0, 1.25]
        assert chunk.input_tokens.tolist() == [10, 20]
        assert chunk.output_tokens.tolist() == [3, 1]
        assert (chunk.copy.tolist(), chunk.block_count.tolist()) == ([0, 0], [0, 0])
        assert (trace.request_count, trace.duration_s, len(trace.blocks)) == (2, 1.25, 0)
        assert (trace.stats.isl_mean, trace.stats.isl_max) == (15.0, 20)
        assert (trace.stats.osl_mean, trace.stats.osl_max) == (2.0, 3)


def test_columns_have_the_documented_types(tmp_path: Path) -> None:
    with open_trace(plain(tmp_path / "t.csv", [0, 1])) as trace:
        chunk = whole(trace)
    columns = [getattr(chunk, name) for name in RequestChunk.__slots__]
    assert [column.dtype for column in columns] == [np.float64, *[np.int64] * 3, *[np.int32] * 2]
    assert all(column.flags.c_contiguous for column in columns)


@pytest.mark.parametrize("zone", ["", "+00:00"])
def test_azure_keeps_every_digit(tmp_path: Path, zone: str) -> None:
    path = write(
        tmp_path / "t.csv",
        "TIMESTAMP,ContextTokens,GeneratedTokens",
        f"2023-11-16 18:17:03.9799600{zone},4808,10",
        f"2023-11-16 18:17:04{zone},110,27",
        f"2023-11-17 18:17:04.0318601{zone},8,1",
    )
    with open_trace(path) as trace:
        assert whole(trace).arrival_s.tolist() == [0.0, 0.02004, 86400.0519001]


def test_azure_reads_the_same_line_by_line(tmp_path: Path) -> None:
    times = ["2023-11-16T18:18:00.123456789+02:00", "2023-11-16 18:17:04", "2023-11-16 18:17:03.9799600"]
    rows = [f"{time},4808,10" for time in times]
    header = "TIMESTAMP,ContextTokens,GeneratedTokens"
    day = TraceOptions(reorder_window_s=86400)
    with (
        open_trace(write(tmp_path / "fast.csv", header, *rows), day) as fast,
        open_trace(write(tmp_path / "careful.csv", header, rows[0], "", *rows[1:]), day) as careful,
    ):
        assert as_bytes(fast) == as_bytes(careful)


@pytest.mark.parametrize(
    ("header", "row"),
    [
        ("Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type", "{},GPT-4,{},{},0,API log"),
        (
            "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type",
            "{},7,1.5,GPT-4,{},{},0,Conversation log",
        ),
    ],
)
def test_burstgpt_skips_and_counts_failed_requests(tmp_path: Path, header: str, row: str) -> None:
    rows = [row.format(5, 472, 18), row.format(45, 1087, 0), row.format(118, 417, 276), row.format(119, 0, 9)]
    with open_trace(write(tmp_path / "t.csv", header, *rows)) as trace:
        assert whole(trace).arrival_s.tolist() == [0.0, 113.0]
        assert (trace.stats.rows_read, trace.stats.requests) == (4, 2)
        assert (trace.stats.skipped_zero_output, trace.stats.skipped_zero_input) == (1, 1)


def mooncake(time: object, ids: object, inputs: object = 900) -> str:
    return json.dumps({"timestamp": time, "input_length": inputs, "output_length": 5, "hash_ids": ids})


def test_mooncake_blocks_belong_to_their_requests(tmp_path: Path) -> None:
    rows = [mooncake(2000, [0, 1]), mooncake(1000, [7]), mooncake(2500, []), mooncake(3000, [0, 9, 8])]
    with open_trace(write(tmp_path / "t.jsonl.gz", *rows)) as trace:
        chunk = whole(trace)
        blocks = [
            trace.blocks[start : start + count].tolist()
            for start, count in zip(chunk.block_start, chunk.block_count, strict=True)
        ]
        assert blocks == [[7], [0, 1], [], [0, 9, 8]]
        assert chunk.arrival_s.tolist() == [0.0, 1.0, 1.5, 2.0]
        assert (trace.block_tokens, trace.stats.blocks, trace.stats.reordered) == (512, 6, 1)


def test_gzip_is_told_by_content_not_by_name(tmp_path: Path) -> None:
    path = plain(tmp_path / "t.gz", [0, 1, 2]).rename(tmp_path / "t.csv")
    with open_trace(path) as trace:
        assert trace.request_count == 3


def test_windows_line_ends_marks_quotes_and_blank_lines_do_not_matter(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(
        b"\xef\xbb\xbf\r\n" + PLAIN_HEADER.encode() + b'\r\n\r\n0,"1",2\r\n 1.5 , 3,4.0\r\n\r\n2,5,6'
    )
    with open_trace(path) as trace:
        chunk = whole(trace)
    assert chunk.arrival_s.tolist() == [0.0, 1.5, 2.0]
    assert chunk.output_tokens.tolist() == [2, 4, 6]


def test_a_named_format_is_not_guessed(tmp_path: Path) -> None:
    path = plain(tmp_path / "t.csv", [0, 1])
    with open_trace(path, TraceOptions(format="plain")) as trace:
        assert trace.request_count == 2
    with pytest.raises(TraceError, match=r"line 1: Timestamp: missing column"):
        open_trace(path, TraceOptions(format="burstgpt"))
    with pytest.raises(TraceError, match=r"line 1: JSON: broken"):
        open_trace(path, TraceOptions(format="mooncake"))


def test_an_unknown_format_lists_the_known(tmp_path: Path) -> None:
    assert known_formats() == ("plain", "azure", "burstgpt", "mooncake", "dynamo")
    with pytest.raises(TraceError, match=r"'sharegpt'; known: plain, azure, burstgpt, mooncake, dynamo"):
        TraceOptions(format="sharegpt")
    with pytest.raises(TraceError, match=r"line 2: header: .*known formats: plain, azure"):
        open_trace(write(tmp_path / "t.csv", "", "when,how much", "1,2"))


def test_multi_member_gzip_is_one_trace(tmp_path: Path) -> None:
    path = tmp_path / "t.csv.gz"
    path.write_bytes(gzip.compress(f"{PLAIN_HEADER}\n0,1,1\n".encode()) + gzip.compress(b"1,1,1\n"))
    with open_trace(path) as trace:
        assert trace.request_count == 2


NUMBERS = st.one_of(
    st.floats(0, 1e12).map(repr),
    st.floats(-1e3, 1e3, width=32).map("{:.3f}".format),
    st.integers(-3, 10**6).map(str),
    st.sampled_from(
        [" 7", "+7", "7.0", "1e3", "007", "", "nan", "NA", "inf", "x", "True", "1_0", "0x1", "9" * 30]
    ),
)


@given(rows=st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS), min_size=1, max_size=4))
def test_what_the_fast_parse_takes_the_careful_one_reads_alike(rows: list[tuple[str, str, str]]) -> None:
    data = "".join(",".join(row) + "\n" for row in rows).encode()
    reader = PLAIN.reader(Path("t.csv"), 1, PLAIN_HEADER)
    usual = reader.parse_usual(data)
    if usual is None:
        with contextlib.suppress(TraceError):
            reader.parse(Piece(data=data, first_line=2))
        return
    careful = reader.parse(Piece(data=data + b"\n", first_line=2))  # a blank line is not for the fast parse
    for name, values in zip(("arrival_s", "input_tokens", "output_tokens"), usual, strict=True):
        assert careful.records[name].tolist() == values.tolist()
