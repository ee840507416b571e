"""CSV rows to records: fast where a piece is usual, line by line where it is not.

The careful way either raises the error of the first faulty line or returns the same values as the fast one.
A quoted field must not contain a line break.
"""

import csv
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from headway.workload.batch import Batch, Columns, Times, to_records
from headway.workload.csv_fast import parse_columns
from headway.workload.errors import at_line
from headway.workload.formats import Layout
from headway.workload.text import Piece
from headway.workload.values import NANOSECONDS, BadValueError, datetime_ns, number, seconds, tokens

Number = TypeVar("Number", int, float)


class CsvReader:
    """Parses the pieces of one file in order; raises TraceError with the line of the first faulty row."""

    def __init__(self, path: Path, layout: Layout) -> None:
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
            records["arrival_s"] = self._since_first(columns.times)
        return Batch(records=records, lines=lines)

    def _since_first(self, nanoseconds: Times) -> npt.NDArray[np.float64]:
        """Seconds after the first row of the file, subtracted as integers since a float would round them."""
        if self._origin_ns is None:
            self._origin_ns = int(nanoseconds[0])
        since: npt.NDArray[np.float64] = np.subtract(nanoseconds, self._origin_ns) / NANOSECONDS
        return since

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
