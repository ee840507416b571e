"""The trace formats: built in or brought by an installed package, and which one a file has.

CSV. A format names its columns; rows are parsed fast where they are usual, line by line elsewhere. Usual
means: no quotes, each line has the header's number of separators, the columns parse as numbers (or dates),
tokens are whole and in range. Pandas reads such pieces. All others are read line by line, which names the
first faulty line. A quoted field must not contain a line break.

One JSON object a line, read by `headway.workload.json_lines`.

| format   | lines                                                          | time                    |
|----------|----------------------------------------------------------------|-------------------------|
| plain    | `timestamp_s,input_tokens,output_tokens[,…]`                   | seconds                 |
| azure    | `TIMESTAMP,ContextTokens,GeneratedTokens` (AzurePublicDataset) | date and time, 7 digits |
| burstgpt | `Timestamp,…,Request tokens,Response tokens,…` (BurstGPT)      | seconds                 |
| mooncake | JSON objects `timestamp, input_length, output_length, hash_ids`, | ms (Mooncake, AIPerf) |
|          | also `session_id` and `delay`                                  | or s (Bailian, GuideLLM) |
| dynamo   | JSON objects of schema `dynamo.request.trace.v1`               | ms since 1970           |

`NAME:UNIT`, as in `mooncake:s`, reads the times of a format in s, ms, us or ns. Without it the unit of
`mooncake` is the one that is plausible (`headway.workload.time_units`): its keys are written with both.

An output of 0 tokens is a request that ends with its prefill (embeddings, rerank, scoring), and becomes one
of 1 token; in BurstGPT it is a failure and is skipped.

A format whose rows are CSV or JSON objects is a `CsvFormat` or a `JsonLinesFormat` that names its columns or
keys: one value, and one line in `FORMATS` or in the entry points of any installed package. Any other format
is a class of the shape of `TraceFormat`. Further columns and keys are ignored, their order does not matter.
"""

import csv
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from sys import float_info
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from headway.extensions import ExtensionError, ExtensionPoint
from headway.workload.json_lines import JsonLinesFormat
from headway.workload.spool import Batch, Columns, to_records
from headway.workload.text import (
    MAX_TOKENS,
    NANOSECONDS,
    BadValueError,
    Piece,
    TraceError,
    at_line,
    datetime_ns,
    number,
    seconds,
    tokens,
)
from headway.workload.time_units import UNITS, in_unit

if TYPE_CHECKING:
    import pandas as pd


SHORTEST_DATETIME = len("2023-11-16 18:17:03")
NEWLINE, COMMA = ord("\n"), ord(",")
MAX_TIME = float_info.max


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvFormat:
    """A CSV trace format by its columns.

    `datetimes`: the time is written as date and time, else as `units_per_s`. `zero_output_fails`: a request
    without output tokens has failed, and is not one that ends with its prefill.
    """

    time: str
    input_tokens: str
    output_tokens: str
    datetimes: bool = False
    units_per_s: float = 1.0
    zero_output_fails: bool = False
    unit_in_doubt: ClassVar[bool] = False
    has_header: ClassVar[bool] = True

    def columns(self) -> tuple[str, str, str]:
        """Time, input tokens, output tokens."""
        return (self.time, self.input_tokens, self.output_tokens)

    def match(self, first_line: str) -> float:
        """The share of the columns that a header has."""
        try:
            names = _split_header(first_line)
        except csv.Error:
            return 0.0
        return len(set(self.columns()) & set(names)) / len(self.columns())

    def reader(self, path: Path, line: int, first_line: str) -> "CsvReader":
        """The reader of a file with that header; raises TraceError naming a column missing or there twice."""
        names = header_names(path, line, first_line)
        for column in self.columns():
            if column not in names:
                raise at_line(path, line, column, f"missing column; the header is {first_line[:200]!r}")
            if names.count(column) > 1:
                raise at_line(path, line, column, "the header has this column twice")
        return CsvReader(path, self, names)


PLAIN = CsvFormat(time="timestamp_s", input_tokens="input_tokens", output_tokens="output_tokens")
AZURE = CsvFormat(
    time="TIMESTAMP", input_tokens="ContextTokens", output_tokens="GeneratedTokens", datetimes=True
)
BURSTGPT = CsvFormat(
    time="Timestamp", input_tokens="Request tokens", output_tokens="Response tokens", zero_output_fails=True
)


def header_names(path: Path, line: int, header: str) -> list[str]:
    """The column names in a header; raises TraceError for a line that is no CSV."""
    try:
        return _split_header(header)
    except csv.Error as error:
        raise at_line(path, line, "header", str(error)) from error


def _split_header(header: str) -> list[str]:
    return [field.strip() for field in next(csv.reader([header]))]


class CsvReader:
    """Parses the pieces of one file in order; raises TraceError with the line of the first faulty row."""

    def __init__(self, path: Path, trace_format: CsvFormat, header: Sequence[str]) -> None:
        self.time_field = trace_format.time
        self._path = path
        self._datetimes, self._units_per_s = trace_format.datetimes, trace_format.units_per_s
        self._width = len(header)
        self._places = {name: header.index(name) for name in trace_format.columns()}
        self._origin_ns: int | None = None

    def parse(self, piece: Piece) -> Batch:
        """The rows of a piece."""
        columns = self.parse_usual(piece.data)
        if columns is not None:
            lines = np.arange(piece.first_line, piece.first_line + len(columns[0]))
        else:
            lines, columns = self._line_by_line(piece)
        records = to_records(*columns)
        if not self._datetimes:
            records["arrival_s"] /= self._units_per_s
        elif len(records):
            if self._origin_ns is None:
                self._origin_ns = int(columns[0][0])
            # Subtracted as integers, since a float would round them.
            records["arrival_s"] = np.subtract(columns[0], self._origin_ns) / NANOSECONDS
        return Batch(records=records, lines=lines)

    def parse_usual(self, data: bytes) -> Columns | None:
        """The columns of whole lines; None in any doubt, for errors are found line by line."""
        import pandas as pd

        if not _is_regular(data, self._width):
            return None
        places = list(self._places.values())
        text = {places[0]: str} if self._datetimes else None
        try:
            frame = pd.read_csv(BytesIO(data), header=None, usecols=places, dtype=text, low_memory=False)
            times = _nanoseconds(frame[places[0]]) if self._datetimes else frame[places[0]].to_numpy()
        except (ValueError, OverflowError):  # what pandas can't read; no date, or one beyond nanoseconds
            return None
        inputs, outputs = (frame[place].to_numpy() for place in places[1:])
        if not (_within(times, MAX_TIME) and all(_within(each, MAX_TOKENS) for each in (inputs, outputs))):
            return None
        whole = inputs.astype(np.int64), outputs.astype(np.int64)
        if not (np.array_equal(whole[0], inputs) and np.array_equal(whole[1], outputs)):
            return None
        return times, *whole

    def _line_by_line(self, piece: Piece) -> tuple[npt.NDArray[np.int64], Columns]:
        """The numbers of the lines that are not blank, and their columns."""
        read_time: Callable[[str], float] = datetime_ns if self._datetimes else _read_seconds
        readers = (read_time, _read_tokens, _read_tokens)
        lines: list[int] = []
        rows: list[list[float]] = []
        for line, text in piece.lines():
            fields = self._split(line, text)
            lines.append(line)
            rows.append([])
            for (name, place), read in zip(self._places.items(), readers, strict=True):
                try:
                    rows[-1].append(read(fields[place].strip()))
                except BadValueError as bad:
                    raise at_line(self._path, line, name, str(bad)) from None
        times, inputs, outputs = zip(*rows, strict=True) if rows else ((), (), ())
        moments: npt.NDArray[np.float64 | np.int64] = np.array(
            times, np.dtype(np.int64 if self._datetimes else np.float64)
        )
        return np.array(lines, np.int64), (moments, np.array(inputs, np.int64), np.array(outputs, np.int64))

    def _split(self, line: int, text: str) -> list[str]:
        try:
            fields = next(csv.reader([text]))
        except csv.Error as error:
            raise at_line(self._path, line, "row", str(error)) from error
        if len(fields) != self._width:
            raise at_line(self._path, line, "row", f"has {len(fields)} fields, the header has {self._width}")
        return fields


def _read_seconds(text: str) -> float:
    return seconds(number(text))


def _read_tokens(text: str) -> int:
    return tokens(number(text))


def _is_regular(data: bytes, fields: int) -> bool:
    """True if every line has as many separators as the header, and no quote changes their meaning."""
    if b'"' in data:
        return False
    letters = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(letters == NEWLINE)
    if data[-1:] != b"\n":
        ends = np.append(ends, len(data))
    separators = np.searchsorted(np.flatnonzero(letters == COMMA), ends)
    return bool(np.all(np.diff(separators, prepend=0) == fields - 1))


def _within(values: npt.NDArray[Any], highest: float) -> bool:
    """True if these are finite numbers from 0 to `highest`."""
    return values.dtype.kind in "iuf" and bool(np.all((values >= 0) & (values <= highest)))


def _nanoseconds(column: "pd.Series[str]") -> npt.NDArray[np.int64]:
    """Nanoseconds since 1970, -1 where `column` has none; raises ValueError for text that is no date."""
    import pandas as pd

    moments = pd.to_datetime(column, format="ISO8601", utc=True)
    found: npt.NDArray[np.int64] = np.asarray(moments.dt.as_unit("ns").astype("int64"), np.int64)
    doubtful = moments.isna() | (column.str.len() < SHORTEST_DATETIME)
    return np.where(doubtful, -1, found)


MOONCAKE = JsonLinesFormat(
    of="Mooncake, Bailian, GuideLLM or AIPerf",
    time="timestamp",
    input_tokens="input_length",
    output_tokens="output_length",
    blocks="hash_ids",
    units_per_s=1000.0,
    unit_in_doubt=True,
    session="session_id",
    delay="delay",
)
DYNAMO = JsonLinesFormat(
    of="Dynamo",
    time="request.request_received_ms",
    input_tokens="request.replay.input_length",
    output_tokens="request.output_tokens",
    blocks="request.replay.input_sequence_hashes",
    block_tokens="request.replay.trace_block_size",
    units_per_s=1000.0,
    mark="dynamo.request.trace.v1",
    only=("event_type", "request_end"),
    reorder_window_s=3600.0,
)


FORMATS = ExtensionPoint(
    "headway.trace_formats",
    "trace format",
    {
        "plain": "headway.workload.formats:PLAIN",
        "azure": "headway.workload.formats:AZURE",
        "burstgpt": "headway.workload.formats:BURSTGPT",
        "mooncake": "headway.workload.formats:MOONCAKE",
        "dynamo": "headway.workload.formats:DYNAMO",
    },
)
"""In the order in which formats are tried: of two that fit a first line equally well the earlier wins."""


class RecordReader(Protocol):
    """Parses the pieces of one file in order."""

    time_field: str
    """The field that holds the time, for error messages."""

    def parse(self, piece: Piece) -> Batch:
        """The rows of a piece; raises TraceError with the line of the first faulty row."""
        ...


class TraceFormat(Protocol):
    """A trace format."""

    @property
    def has_header(self) -> bool:
        """True if the first line names the columns and holds no request."""
        ...

    def match(self, first_line: str) -> float:
        """The share of the format's columns or keys in a first line, in [0, 1]; 0: not this format."""
        ...

    def reader(self, path: Path, line: int, first_line: str) -> RecordReader:
        """The reader of a file with that first line; raises TraceError where the line does not suffice."""
        ...


def known_formats() -> tuple[str, ...]:
    """The names that `TraceOptions.format` takes."""
    return tuple(_names())


def check_format(name: str | None) -> None:
    """Raise TraceError unless `name` is a known format, with or without a unit of its times, or None."""
    if name is None:
        return
    base, colon, unit = name.partition(":")
    if base not in FORMATS:
        raise TraceError(f"unknown trace format {base!r}; known: {', '.join(known_formats())}")
    if colon and unit not in UNITS:
        raise TraceError(f"trace format {name!r}: a unit is one of {', '.join(UNITS)}")


def format_of(path: Path, line: int, first_line: str, name: str | None) -> tuple[str, TraceFormat]:
    """The format `name`, or the one that fits the first line best; raises TraceError where none fits."""
    if name is not None:
        return name, _load(name)
    best, share = None, 0.0
    for candidate in _names():
        # A perfect fit ends the search, so that packages beside this one are only asked about unknown lines.
        if share >= 1.0:
            break
        found = _load(candidate)
        if (fit := found.match(first_line)) > share:
            best, share = (candidate, found), fit
    if best is None:
        header_names(path, line, first_line)  # a line that is no CSV at all has its own error
        known = ", ".join(known_formats())
        raise at_line(path, line, "header", f"no trace format has these columns; known formats: {known}")
    return best


def _names() -> Iterator[str]:
    yield from FORMATS.builtin
    yield from (name for name in FORMATS.names() if name not in FORMATS.builtin)


def _load(name: str) -> TraceFormat:
    base, _, unit = name.partition(":")
    try:
        found: TraceFormat = FORMATS.load(base)
    except ExtensionError as error:
        raise TraceError(str(error)) from error
    return in_unit(found, unit) if unit else found
