"""From a file to a spool: read pieces, parse, drop requests without tokens, put in order, rebase to 0, write.

Memory holds one piece and one re-ordering window. With window w and the latest arrival so far L, a row
earlier than L − w is refused; every row up to L − w can therefore no longer be overtaken and is passed on.
Rows of the same instant keep their order in the file.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from pathlib import Path

import numpy as np
import numpy.typing as npt

from headway.workload.formats import RecordReader, format_of
from headway.workload.spool import RECORD, Batch, Records, Spool, SpoolWriter
from headway.workload.text import Piece, TraceError, at_line, pieces


class TooLateError(Exception):
    """Row `index` of the pushed records is `lag_s` earlier than a row before it, beyond the window.

    `_Ingestion` adds file and line and raises the TraceError.
    """

    def __init__(self, index: int, lag_s: float) -> None:
        super().__init__(f"row {index} is {lag_s:g} s late")
        self.index = index
        self.lag_s = lag_s


class Reorderer:
    """Sorts a stream of records; `reordered` counts those that came after a later one."""

    def __init__(self, window_s: float) -> None:
        self.reordered = 0
        self._window_s = window_s
        self._latest = -inf
        self._pending: Records = np.empty(0, RECORD)

    def push(self, records: Records) -> Records:
        """Add records in file order, return those that are final, sorted; raises TooLateError."""
        if not len(records):
            return records
        lag_s = self._lag_s(np.ascontiguousarray(records["arrival_s"]))
        late = int(np.count_nonzero(lag_s > 0))
        self.reordered += late
        self._pending = np.concatenate([self._pending, records])
        if late:
            self._pending = self._pending[np.argsort(self._pending["arrival_s"], kind="stable")]
        return self._split(self._latest - self._window_s)

    def flush(self) -> Records:
        """The rest, sorted."""
        return self._split(inf)

    def _lag_s(self, arrival: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """The lag of each row behind the latest up to and including it."""
        latest = np.maximum.accumulate(np.concatenate([[self._latest], arrival]))[1:]
        lag_s: npt.NDArray[np.float64] = latest - arrival
        beyond = np.flatnonzero(lag_s > self._window_s)
        if len(beyond):
            raise TooLateError(index=int(beyond[0]), lag_s=float(lag_s[beyond[0]]))
        self._latest = float(latest[-1])
        return lag_s

    def _split(self, final_s: float) -> Records:
        arrival = np.ascontiguousarray(self._pending["arrival_s"])
        cut = int(np.searchsorted(arrival, final_s, side="right"))
        final, self._pending = self._pending[:cut], self._pending[cut:].copy()
        return final


@dataclass(frozen=True, slots=True, kw_only=True)
class RowCounts:
    """Rows of a source: all, those that came after a later one, requests without output or input."""

    rows_read: int = 0
    reordered: int = 0
    skipped_zero_output: int = 0
    skipped_zero_input: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ingested:
    """A spool, how long it lasts (last arrival, or the duration that was generated), and the counts.

    `shared_blocks`: leading blocks of a prompt that its application puts before each; the next one tells
    conversations apart. One is what Mooncake's traces show.
    """

    spool: Spool
    span_s: float
    counts: RowCounts
    shared_blocks: int = 1


def ingest_file(path: Path, format_name: str | None, window_s: float) -> Ingested:
    """Read a trace file into a spool; raises TraceError for whatever is wrong with it."""
    with SpoolWriter() as writer:
        ingestion = _Ingestion(path, window_s, writer)
        for reader, piece in _parsed_by(path, format_name):
            ingestion.push(reader.parse(piece), reader.time_field)
        last_s, counts = ingestion.finish()
        return Ingested(spool=writer.finish(), span_s=last_s, counts=counts)


def _parsed_by(path: Path, format_name: str | None) -> Iterator[tuple[RecordReader, Piece]]:
    """The pieces of data, each with the reader that the first line of the file asks for."""
    reader: RecordReader | None = None
    for piece in pieces(path):
        rest = piece
        if reader is None:
            line, first, after = piece.split_header()
            if not first:
                continue
            trace_format = format_of(path, line, first, format_name)
            reader = trace_format.reader(path, line, first)
            rest = after if trace_format.has_header else piece
        yield reader, rest


class _Ingestion:
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
        # Blocks of dropped requests are kept: the records count them from the first of the file.
        self._writer.append_blocks(batch.blocks)
        try:
            self._write(self._reorderer.push(batch.records[kept]))
        except TooLateError as late:
            line = int(batch.lines[kept][late.index])
            problem = (
                f"{late.lag_s:g} s before an earlier row, beyond the reorder window of {self._window_s:g} s"
            )
            raise at_line(self._path, line, time_field, problem) from None

    def finish(self) -> tuple[float, RowCounts]:
        """The last arrival and the counts; raises TraceError when nothing was kept."""
        self._write(self._reorderer.flush())
        if self._first_s is None:
            skipped = self._zero_output + self._zero_input
            raise TraceError(
                f"{self._path}: empty trace: {self._rows} rows, {skipped} of them without tokens"
            )
        counts = RowCounts(
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
