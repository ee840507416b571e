"""CSV traces: a format names its columns; rows are parsed fast where they are usual, line by line elsewhere.

Usual means: no quotes, each line has the header's number of separators, the columns parse as numbers (or
dates), tokens are whole and in range. `parse_columns` returns None in any doubt and needs no error messages.
The careful way then either raises the error of the first faulty line or returns the same values as the fast
one. A quoted field must not contain a line break.
"""

import csv
from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, TypeVar

import numpy as np
import numpy.typing as npt

from headway.workload.spool import Batch, Columns, Times, to_records
from headway.workload.text import (
    MAX_TOKENS,
    NANOSECONDS,
    BadValueError,
    Piece,
    at_line,
    datetime_ns,
    number,
    seconds,
    tokens,
)

if TYPE_CHECKING:
    import pandas as pd

Number = TypeVar("Number", int, float)

SHORTEST_DATETIME = len("2023-11-16 18:17:03")
NEWLINE, COMMA = ord("\n"), ord(",")


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvFormat:
    """A CSV trace format by its columns; `datetimes`: the time is written as date and time, not seconds."""

    time: str
    input_tokens: str
    output_tokens: str
    datetimes: bool = False
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
        return CsvReader(path, self.layout(path, line, first_line))

    def layout(self, path: Path, line: int, header: str) -> "CsvLayout":
        """The places of the columns in a header; raises TraceError as `reader`."""
        names = header_names(path, line, header)
        for column in self.columns():
            if column not in names:
                raise at_line(path, line, column, f"missing column; the header is {header[:200]!r}")
            if names.count(column) > 1:
                raise at_line(path, line, column, "the header has this column twice")
        time, tokens_in, tokens_out = (names.index(column) for column in self.columns())
        return CsvLayout(format=self, positions=(time, tokens_in, tokens_out), fields=len(names))


PLAIN = CsvFormat(time="timestamp_s", input_tokens="input_tokens", output_tokens="output_tokens")
AZURE = CsvFormat(
    time="TIMESTAMP", input_tokens="ContextTokens", output_tokens="GeneratedTokens", datetimes=True
)
BURSTGPT = CsvFormat(time="Timestamp", input_tokens="Request tokens", output_tokens="Response tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvLayout:
    """The positions of a format's columns in a file, and the number of fields of a row."""

    format: CsvFormat
    positions: tuple[int, int, int]
    fields: int


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

    def __init__(self, path: Path, layout: CsvLayout) -> None:
        self.time_field = layout.format.time
        self._path = path
        self._layout = layout
        self._read_time: Callable[[str], float] = datetime_ns if layout.format.datetimes else _read_seconds
        self._origin_ns: int | None = None

    def parse(self, piece: Piece) -> Batch:
        """The rows of a piece."""
        columns = parse_columns(piece.data, self._layout)
        if columns is not None:
            lines = np.arange(piece.first_line, piece.first_line + len(columns.times))
        else:
            columns, lines = self._careful(piece)
        records = to_records(columns)
        if self._layout.format.datetimes and len(records):
            if self._origin_ns is None:
                self._origin_ns = int(columns.times[0])
            # Subtracted as integers, since a float would round them.
            records["arrival_s"] = np.subtract(columns.times, self._origin_ns) / NANOSECONDS
        return Batch(records=records, lines=lines)

    def _careful(self, piece: Piece) -> tuple[Columns, npt.NDArray[np.int64]]:
        rows = [(line, *self._row(line, text)) for line, text in piece.lines()]
        kind = np.dtype(np.int64) if self._layout.format.datetimes else np.dtype(np.float64)
        times: Times = np.array([row[1] for row in rows], kind)
        inputs, outputs = (np.array([row[position] for row in rows], np.int64) for position in (2, 3))
        columns = Columns(times=times, input_tokens=inputs, output_tokens=outputs)
        return columns, np.array([row[0] for row in rows], np.int64)

    def _row(self, line: int, text: str) -> tuple[float, int, int]:
        """Time, input tokens, output tokens of one line."""
        fields = self._split(line, text)
        names, (time, tokens_in, tokens_out) = self._layout.format, self._layout.positions
        return (
            self._value(line, names.time, fields[time], self._read_time),
            self._value(line, names.input_tokens, fields[tokens_in], _read_tokens),
            self._value(line, names.output_tokens, fields[tokens_out], _read_tokens),
        )

    def _split(self, line: int, text: str) -> list[str]:
        try:
            fields = next(csv.reader([text]))
        except csv.Error as error:
            raise at_line(self._path, line, "row", str(error)) from error
        if len(fields) != self._layout.fields:
            problem = f"has {len(fields)} fields, the header has {self._layout.fields}"
            raise at_line(self._path, line, "row", problem)
        return fields

    def _value(self, line: int, field: str, text: str, read: Callable[[str], Number]) -> Number:
        try:
            return read(text.strip())
        except BadValueError as bad:
            raise at_line(self._path, line, field, str(bad)) from None


def _read_seconds(text: str) -> float:
    return seconds(number(text))


def _read_tokens(text: str) -> int:
    return tokens(number(text))


def parse_columns(data: bytes, layout: CsvLayout) -> Columns | None:
    """The columns of whole lines, None in any doubt; times in seconds, of dates in nanoseconds since 1970."""
    if not _is_regular(data, layout.fields):
        return None
    frame = _read(data, layout)
    if frame is None:
        return None
    time, tokens_in, tokens_out = (frame[position] for position in layout.positions)
    times = _nanoseconds(time) if layout.format.datetimes else _seconds(time)
    inputs, outputs = _tokens(tokens_in), _tokens(tokens_out)
    if times is None or inputs is None or outputs is None:
        return None
    return Columns(times=times, input_tokens=inputs, output_tokens=outputs)


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


def _read(data: bytes, layout: CsvLayout) -> "pd.DataFrame | None":
    import pandas as pd

    try:
        return pd.read_csv(
            BytesIO(data),
            header=None,
            usecols=list(layout.positions),
            dtype={layout.positions[0]: str} if layout.format.datetimes else None,
            low_memory=False,
        )
    except (ValueError, OverflowError):  # all parser errors of pandas are ValueErrors
        return None


def _seconds(column: "pd.Series[float]") -> npt.NDArray[np.float64] | None:
    if column.dtype.kind not in "iuf":
        return None
    times: npt.NDArray[np.float64] = np.asarray(column, np.float64)
    return times if bool(np.all(np.isfinite(times) & (times >= 0))) else None


def _nanoseconds(column: "pd.Series[str]") -> npt.NDArray[np.int64] | None:
    import pandas as pd

    try:
        moments = pd.to_datetime(column, format="ISO8601", utc=True)
        if bool(moments.isna().any()) or bool((column.str.len() < SHORTEST_DATETIME).any()):
            return None
        nanoseconds: npt.NDArray[np.int64] = np.asarray(moments.dt.as_unit("ns").astype("int64"), np.int64)
    except (ValueError, OverflowError):  # text that is no date, a date that nanoseconds cannot count
        return None
    return nanoseconds if bool((nanoseconds >= 0).all()) else None


def _tokens(column: "pd.Series[float]") -> npt.NDArray[np.int64] | None:
    values = column.to_numpy()
    if values.dtype.kind not in "iuf":
        return None
    if not bool(np.all((values >= 0) & (values <= MAX_TOKENS) & (values == np.floor(values)))):
        return None
    return values.astype(np.int64)
