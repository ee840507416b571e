"""From a file to a spool: read pieces, parse, drop requests without tokens, put in order, rebase to 0, write.

Everything happens piece by piece; memory holds one piece and one re-ordering window.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from headway.workload.batch import Batch
from headway.workload.csv_reader import CsvReader
from headway.workload.errors import TraceError, at_line
from headway.workload.formats import JSON_LINES, csv_layout
from headway.workload.jsonl_reader import JsonLinesReader
from headway.workload.reorder import Reorderer, TooLateError
from headway.workload.spool import Records, Spool, SpoolWriter
from headway.workload.text import Piece, pieces


class Reader(Protocol):
    """Parses the pieces of one file in order."""

    time_field: str

    def parse(self, piece: Piece) -> Batch:
        """The rows of a piece; raises TraceError with the line of the first faulty row."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What ingestion met: rows, rows that came after a later one, requests without output or input."""

    rows_read: int = 0
    reordered: int = 0
    skipped_zero_output: int = 0
    skipped_zero_input: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ingested:
    """A spool, how long it lasts (last arrival, or the duration that was generated), and the counts."""

    spool: Spool
    span_s: float
    counts: Counts


def ingest_file(path: Path, format_name: str | None, window_s: float) -> Ingested:
    """Read a trace file into a spool; raises TraceError for whatever is wrong with it."""
    with SpoolWriter() as writer:
        funnel = _Funnel(path, window_s, writer)
        for reader, piece in _parsed_by(path, format_name):
            funnel.push(reader.parse(piece), reader.time_field)
        last_s, counts = funnel.finish()
        return Ingested(spool=writer.finish(), span_s=last_s, counts=counts)


def _parsed_by(path: Path, format_name: str | None) -> Iterator[tuple[Reader, Piece]]:
    """The pieces of data, each with the reader that the first line of the file asks for."""
    reader: Reader | None = None
    for piece in pieces(path):
        rest = piece
        if reader is None:
            line, first, after = piece.split_header()
            if not first:
                continue
            if format_name == JSON_LINES or (format_name is None and first.startswith("{")):
                reader = JsonLinesReader(path)
            else:
                reader, rest = CsvReader(path, csv_layout(path, line, first, format_name)), after
        yield reader, rest


class _Funnel:
    """Batches in, sorted and rebased records out to the writer."""

    def __init__(self, path: Path, window_s: float, writer: SpoolWriter) -> None:
        self._path = path
        self._window_s = window_s
        self._writer = writer
        self._reorderer = Reorderer(window_s)
        self._rows = self._zero_output = self._zero_input = 0
        self._first_s: float | None = None
        self._last_s = 0.0

    def push(self, batch: Batch, time_field: str) -> None:
        self._rows += len(batch.records)
        no_output = batch.records["output_tokens"] == 0
        no_input = (batch.records["input_tokens"] == 0) & ~no_output
        self._zero_output += int(no_output.sum())
        self._zero_input += int(no_input.sum())
        kept = ~(no_output | no_input)
        self._writer.append_blocks(batch.blocks)
        try:
            self._write(self._reorderer.push(batch.records[kept]))
        except TooLateError as late:
            line = int(batch.lines[kept][late.index])
            problem = (
                f"{late.lag_s:g} s before an earlier row, beyond the reorder window of {self._window_s:g} s"
            )
            raise at_line(self._path, line, time_field, problem) from None

    def finish(self) -> tuple[float, Counts]:
        """The last arrival and the counts; raises TraceError when nothing was kept."""
        self._write(self._reorderer.flush())
        if self._first_s is None:
            skipped = self._zero_output + self._zero_input
            raise TraceError(
                f"{self._path}: empty trace: {self._rows} rows, {skipped} of them without tokens"
            )
        counts = Counts(
            rows_read=self._rows,
            reordered=self._reorderer.reordered,
            skipped_zero_output=self._zero_output,
            skipped_zero_input=self._zero_input,
        )
        return self._last_s, counts

    def _write(self, records: Records) -> None:
        if not len(records):
            return
        if self._first_s is None:
            self._first_s = float(records["arrival_s"][0])
        rebased = records.copy()
        rebased["arrival_s"] -= self._first_s
        self._last_s = float(rebased["arrival_s"][-1])
        self._writer.append(rebased)
