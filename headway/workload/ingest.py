"""From a file to a spool: read pieces, parse, drop failed requests, put in order, rebase to 0, write.

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
from headway.workload.known_files import recorded_requests
from headway.workload.spool import RECORD, Batch, Records, Spool, SpoolWriter
from headway.workload.text import Piece, TraceError, at_line, pieces
from headway.workload.time_units import has_unit, in_unit, plausible_unit


class TooLateError(Exception):
    """Row `index` of the pushed records is `lag_s` earlier than a row before it, beyond the window.

    `_Ingestion` adds file and line and raises the TraceError.
    """

    def __init__(self, index: int, lag_s: float) -> None:
        super().__init__(f"row {index} is {lag_s:g} s late")
        self.index = index
        self.lag_s = lag_s


class Reorderer:
    """Sorts a stream of records; `reordered` counts those that came after a later one.

    `window_s` may grow between two pushes.
    """

    def __init__(self, window_s: float) -> None:
        self.reordered = 0
        self.window_s = window_s
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
        return self._split(self._latest - self.window_s)

    def flush(self) -> Records:
        """The rest, sorted."""
        return self._split(inf)

    def _lag_s(self, arrival: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """The lag of each row behind the latest up to and including it."""
        latest = np.maximum.accumulate(np.concatenate([[self._latest], arrival]))[1:]
        lag_s: npt.NDArray[np.float64] = latest - arrival
        beyond = np.flatnonzero(lag_s > self.window_s)
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
    """Rows of a source: all, those that came after a later one, failed ones, those without input.

    `prefill_only` are kept: they end with their prefill, and have an output of one token from here on.
    """

    rows_read: int = 0
    reordered: int = 0
    skipped_zero_output: int = 0
    skipped_zero_input: int = 0
    prefill_only: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ingested:
    """A spool, how long it lasts (last arrival, or the duration that was generated), and the counts.

    `shared_blocks`: leading blocks of a prompt that its application puts before each; the next one tells
    conversations apart. One is what Mooncake's traces show. `notes` are how the source was read, for people.
    """

    spool: Spool
    span_s: float
    counts: RowCounts
    shared_blocks: int = 1
    notes: tuple[str, ...] = ()


def ingest_file(path: Path, format_name: str | None, window_s: float) -> Ingested:
    """Read a trace file into a spool; raises TraceError for whatever is wrong with it."""
    with SpoolWriter() as writer:
        ingestion = _Ingestion(path, window_s, writer)
        source = _Source(path, format_name)
        for reader, piece in source.parsed_by():
            ingestion.push(reader, reader.parse(piece), zero_output_fails=source.zero_output_fails)
        last_s, counts = ingestion.finish()
        return Ingested(spool=writer.finish(), span_s=last_s, counts=counts, notes=source.notes())


class _Source:
    """A file, and how it is read: by the format that was chosen, or that its first lines ask for."""

    def __init__(self, path: Path, format_name: str | None) -> None:
        self.zero_output_fails = False
        self._path, self._format_name = path, format_name
        self._reader: RecordReader | None = None
        self._notes: list[str] = []

    def parsed_by(self) -> Iterator[tuple[RecordReader, Piece]]:
        """The pieces of data, each with the reader for it."""
        recorded = None if self._format_name else recorded_requests(self._path)
        if recorded:
            kind, listed = recorded
            self._notes.append(f"taken for {kind}: the requests that it lists are the trace")
        for piece in (listed,) if recorded else pieces(self._path):
            rest = piece
            if self._reader is None:
                line, first, after = piece.split_header()
                if not first:
                    continue
                name, trace_format = format_of(self._path, line, first, self._format_name)
                rest = after if trace_format.has_header else piece
                if ":" not in (self._format_name or "") and has_unit(trace_format):
                    trial = trace_format.reader(self._path, line, first).parse(rest)
                    unit, note = plausible_unit(trace_format, name, trial.records, (self._path, line))
                    trace_format = in_unit(trace_format, unit)
                    self._notes += filter(None, [note])
                self._reader = trace_format.reader(self._path, line, first)
                self.zero_output_fails = getattr(trace_format, "zero_output_fails", False)
            yield self._reader, rest

    def notes(self) -> tuple[str, ...]:
        """How it was read, a line each."""
        return (*self._notes, *getattr(self._reader, "notes", tuple)())


class _Ingestion:
    """Batches in, sorted and rebased records out to the writer."""

    def __init__(self, path: Path, window_s: float, writer: SpoolWriter) -> None:
        self._path = path
        self._window_s = window_s
        self._writer = writer
        self._reorderer = Reorderer(window_s)
        self._rows = self._zero_output = self._zero_input = self._prefill_only = 0
        self._first_s: float | None = None
        self._last_s = 0.0

    def push(self, reader: RecordReader, batch: Batch, *, zero_output_fails: bool) -> None:
        self._rows += len(batch.records)
        no_output = batch.records["output_tokens"] == 0
        failed = no_output & (zero_output_fails | (batch.records["input_tokens"] == 0))
        no_input = (batch.records["input_tokens"] == 0) & ~failed
        self._zero_output += int(failed.sum())
        self._zero_input += int(no_input.sum())
        kept = ~(failed | no_input)
        self._prefill_only += int((no_output & kept).sum())
        np.maximum(batch.records["output_tokens"], 1, out=batch.records["output_tokens"])
        self._reorderer.window_s = max(self._window_s, getattr(reader, "reorder_window_s", 0.0))
        # Blocks of dropped requests are kept: the records count them from the first of the file.
        self._writer.append_blocks(batch.blocks)
        try:
            self._write(self._reorderer.push(batch.records[kept]))
        except TooLateError as late:
            line = int(batch.lines[kept][late.index])
            window_s = self._reorderer.window_s
            problem = f"{late.lag_s:g} s before an earlier row, beyond the reorder window of {window_s:g} s"
            raise at_line(self._path, line, reader.time_field, problem) from None

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
            prefill_only=self._prefill_only,
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
