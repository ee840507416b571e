"""Trace formats that an installed package brings are detected, read and named like the built-in ones."""

from pathlib import Path

import pytest
from trace_files import PLAIN_HEADER, whole, write

from headway.workload import TraceError, TraceOptions, known_formats, open_trace
from tests.installed_package import installed_package

PACKAGE = '''
import numpy as np

from headway.workload import CsvFormat, JsonLinesFormat
from headway.workload.spool import RECORD, Batch
from headway.workload.text import at_line

ROWS = CsvFormat(time="at", input_tokens="prompt", output_tokens="completion")
OBJECTS = JsonLinesFormat(time="at", input_tokens="prompt", output_tokens="completion", units_per_s=1e6)


class Words:
    """`AFTER 3 s: 12 in, 4 out`, a line each."""

    has_header = False
    time_field = "AFTER"

    def match(self, first_line):
        return float(first_line.startswith("AFTER "))

    def reader(self, path, line, first_line):
        self.path = path
        return self

    def parse(self, piece):
        rows, lines = [], []
        for line, text in piece.lines():
            words = text.split()
            if len(words) != 7:
                raise at_line(self.path, line, "row", "has no seven words")
            rows.append((float(words[1]), int(words[3]), int(words[5]), 0, 0, 0))
            lines.append(line)
        return Batch(records=np.array(rows, RECORD), lines=np.array(lines))


WORDS = Words()
'''
ENTRY_POINTS = """[headway.trace_formats]
rows = formats_of_others:ROWS
objects = formats_of_others:OBJECTS
words = formats_of_others:WORDS
"""
FILES = {
    "rows": ("id,completion,prompt,at", "a,4,12,3", "b,5,13,4.5"),
    "objects": (
        '{"at": 3000000, "prompt": 12, "completion": 4}',
        '{"at": 4500000, "prompt": 13, "completion": 5}',
    ),
    "words": ("AFTER 3 s: 12 in, 4 out", "AFTER 4.5 s: 13 in, 5 out"),
}


@pytest.fixture(autouse=True)
def package(tmp_path: Path):
    """A package beside headway that brings three trace formats."""
    with installed_package(tmp_path, "formats_of_others", PACKAGE, ENTRY_POINTS):
        yield tmp_path / "formats_of_others-1.0.dist-info"


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("name", FILES)
def test_an_added_format_is_detected_and_read(tmp_path: Path, name: str, named: bool):
    path = write(tmp_path / "trace", *FILES[name])
    with open_trace(path, TraceOptions(format=name if named else None)) as trace:
        chunk = whole(trace)
    assert chunk.arrival_s.tolist() == [0.0, 1.5]
    assert chunk.input_tokens.tolist() == [12, 13]
    assert chunk.output_tokens.tolist() == [4, 5]


def test_added_formats_are_listed_after_the_built_in_ones():
    assert known_formats() == ("plain", "azure", "burstgpt", "mooncake", "dynamo", "objects", "rows", "words")
    with pytest.raises(TraceError, match=r"unknown trace format 'verse'; known: plain, .*, rows, words"):
        TraceOptions(format="verse")


def test_errors_of_an_added_format_name_the_line(tmp_path: Path):
    path = write(tmp_path / "trace", FILES["words"][0], "AFTER four")
    with pytest.raises(TraceError, match="line 2: row: has no seven words"):
        open_trace(path)


def test_a_format_that_cannot_be_loaded_leaves_the_built_in_ones_alone(tmp_path: Path, package: Path):
    (package / "entry_points.txt").write_text("[headway.trace_formats]\nrows = formats_of_nobody:ROWS\n")
    with open_trace(write(tmp_path / "plain.csv", PLAIN_HEADER, "0,1,1")) as trace:
        assert trace.request_count == 1
    with pytest.raises(TraceError, match="trace format 'rows' of formats_of_nobody:ROWS cannot be loaded"):
        open_trace(write(tmp_path / "other.csv", *FILES["rows"]))
