"""A workload: requests in chunks of columns, opened from a file or a generator, cut and scaled by options.

A trace is a finite, time-ordered list of requests. It is never held in memory: it lies in a spool of fixed
records on disk (`spool.py`) and is read, superposed and cut in bounded pieces (`superpose.py`), as often as
one likes. Times are seconds after the start of the trace or of the cut. It is used as chunks, as a series per
interval (`interval_series`), or written as a file in the plain form (`write_trace`).
"""

import gzip
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from io import TextIOWrapper
from math import isfinite
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from headway.workload.formats import PLAIN, check_format
from headway.workload.generators import generate, looks_generated, parse_generator
from headway.workload.ingest import Ingested, RowCounts, ingest_file
from headway.workload.spool import Records, Spool, SpoolWriter
from headway.workload.superpose import Cut, Scaling, Superposition
from headway.workload.text import BLOCK_TOKENS, TraceError

MAX_RATE_SCALE = 10_000
"""Copies that a trace may be superposed from; each needs a little memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceOptions:
    """Options of reading a trace: the part of it, superposition, tolerance of disorder.

    `format` None detects it from the first line; `NAME:UNIT` also says the unit of its times. `start_s`
    counts from the first request; `duration_s` None goes to the end, as does one beyond it. `rate_scale` k
    superposes k shifted copies, a fraction thins one more. `seed` decides the thinning (and a generator's
    draws where its specification names no seed). `reorder_window_s` bounds how far back in time a row may
    jump. `shift_window_s` bounds the shift of a copy, None is min(600 s, a tenth of the span).
    A part without requests is refused, unless it `may_be_empty`; its duration stays.
    """

    format: str | None = None
    start_s: float = 0.0
    duration_s: float | None = None
    rate_scale: float = 1.0
    seed: int = 0
    reorder_window_s: float = 60.0
    shift_window_s: float | None = None
    may_be_empty: bool = False

    def __post_init__(self) -> None:
        """Refuse what has no meaning; raises TraceError naming the option."""
        check_format(self.format)
        _check("start_s", self.start_s)
        _check("duration_s", self.duration_s, above=0)
        _check("rate_scale", self.rate_scale, above=0)
        _check("seed", self.seed)
        _check("reorder_window_s", self.reorder_window_s)
        _check("shift_window_s", self.shift_window_s)
        if self.rate_scale > MAX_RATE_SCALE:
            raise TraceError(f"rate_scale must be at most {MAX_RATE_SCALE}, got {self.rate_scale:g}")


def _check(option: str, value: float | None, above: float | None = None) -> None:
    if value is None:
        return
    if not isfinite(value) or value < 0 or value == above:
        wanted = "at least 0" if above is None else f"above {above:g}"
        raise TraceError(f"{option} must be {wanted} and finite, got {value}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceStats:
    """Rows that were read (of the whole source) and requests that were kept (of the cut, before scaling).

    `reordered` rows came after a later one; failed requests and rows without input are skipped; those of
    `prefill_only` have no output, and count as one token from then on; ISL and OSL are the input and output
    tokens of a request; `blocks` counts prefix block ids.
    """

    rows_read: int
    reordered: int
    skipped_zero_output: int
    skipped_zero_input: int
    prefill_only: int
    requests: int
    isl_mean: float
    isl_max: int
    osl_mean: float
    osl_max: int
    blocks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestChunk:
    """Consecutive requests as columns of equal length, in the order of arrival.

    `arrival_s` float64, ascending; `input_tokens`, `output_tokens` int64, at least 1; the prefix blocks of
    request i are `Trace.blocks[block_start[i] : block_start[i] + block_count[i]]` (int64, int32); `copy`
    int32 says which superposed copy it belongs to: equal block ids of different copies are different users'
    blocks.
    """

    arrival_s: npt.NDArray[np.float64]
    input_tokens: npt.NDArray[np.int64]
    output_tokens: npt.NDArray[np.int64]
    block_start: npt.NDArray[np.int64]
    block_count: npt.NDArray[np.int32]
    copy: npt.NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.arrival_s)


class Trace:
    """A finite workload, to be iterated in chunks any number of times; each pass yields the same bytes.

    It owns files in the temporary directory: use it as a context manager or call `close()`; otherwise they go
    when it is collected or the process ends.
    """

    block_tokens: int = BLOCK_TOKENS

    def __init__(
        self,
        *,
        name: str,
        spool: Spool,
        plan: Superposition,
        duration_s: float,
        stats: TraceStats,
        shared_blocks: int = 1,
        notes: tuple[str, ...] = (),
    ) -> None:
        self.name = name
        self.notes = notes
        self.shared_blocks = shared_blocks
        self.duration_s = duration_s
        self.stats = stats
        self.request_count = plan.count()
        self._spool = spool
        self._plan = plan

    @property
    def blocks(self) -> npt.NDArray[np.int64]:
        """All prefix block ids, below 2**40, one request after the other; empty when the source has none."""
        return self._spool.blocks

    def chunks(self, rows: int = 65536) -> Iterator[RequestChunk]:
        """Yield the requests in order of (time, copy, row), `rows` at a time; the last may have fewer."""
        if rows < 1:
            raise TraceError(f"rows of a chunk must be at least 1, got {rows}")
        for records in self._plan.chunks(rows):
            yield RequestChunk(
                **{name: np.ascontiguousarray(records[name]) for name in RequestChunk.__slots__}
            )

    def close(self) -> None:
        """Remove the files of this trace; it cannot be iterated afterwards. May be called twice."""
        self._spool.close()

    def __enter__(self) -> "Trace":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trail: TracebackType | None
    ) -> None:
        self.close()


MAX_SHIFT_S = 600.0
SHIFT_SHARE = 0.1
STATS_ROWS = 65536


def open_trace(source: str | Path, options: TraceOptions | None = None) -> Trace:
    """Open a trace file (of any format in `formats.py`, gzip or not) or a generator specification.

    Cuts first (`start_s`, `duration_s`), then scales. A path that exists is a file whatever it is called. The
    trace owns temporary files, see `Trace`. Raises TraceError for whatever is wrong with source or options.
    """
    chosen = options or TraceOptions()
    ingested = _ingest(source, chosen)
    try:
        return _trace(str(source), ingested, chosen)
    except TraceError:
        ingested.spool.close()
        raise


def spooled(name: str, records: Records, blocks: npt.NDArray[np.int64], span_s: float) -> Trace:
    """A trace of these requests, in order of arrival, whose blocks point into `blocks`; there may be none."""
    with SpoolWriter() as writer:
        writer.append(records)
        writer.append_blocks(blocks)
        spool = writer.finish()
    cut = Cut(spool=spool, start_s=0.0, span_s=span_s, first_row=0, last_row=len(spool))
    counts = RowCounts(rows_read=len(records))
    return Trace(
        name=name,
        spool=spool,
        plan=Superposition(cut, Scaling(rate_scale=1.0, window_s=0.0, seed=0)),
        duration_s=span_s,
        stats=_stats(counts, cut),
    )


def _ingest(source: str | Path, options: TraceOptions) -> Ingested:
    if isinstance(source, str) and looks_generated(source) and not Path(source).exists():
        if options.format is not None:
            raise TraceError(f"{source}: format {options.format}: generated load has no format")
        return generate(parse_generator(source, options.seed))
    return ingest_file(Path(source), options.format, options.reorder_window_s)


def _trace(name: str, ingested: Ingested, options: TraceOptions) -> Trace:
    cut = _cut(name, ingested, options)
    window_s = min(MAX_SHIFT_S, cut.span_s * SHIFT_SHARE)
    scaling = Scaling(
        rate_scale=options.rate_scale,
        window_s=window_s if options.shift_window_s is None else options.shift_window_s,
        seed=options.seed,
    )
    plan = Superposition(cut, scaling)
    if not (plan.count() or options.may_be_empty):
        raise TraceError(f"{name}: rate_scale {options.rate_scale:g} leaves none of {cut.rows()} requests")
    return Trace(
        name=name,
        spool=ingested.spool,
        plan=plan,
        duration_s=cut.span_s,
        stats=_stats(ingested.counts, cut),
        shared_blocks=ingested.shared_blocks,
        notes=(*ingested.notes, *_prefill_only(ingested.counts)),
    )


def _prefill_only(counts: RowCounts) -> Iterator[str]:
    if counts.prefill_only:
        yield (
            f"{counts.prefill_only:,} of {counts.rows_read:,} rows have no output tokens: "
            "kept as requests that end with their prefill"
        )


def _cut(name: str, ingested: Ingested, options: TraceOptions) -> Cut:
    """The rows from `start_s` to before `start_s + duration_s`; raises TraceError when there are none,
    unless there may be.

    A duration beyond the end is cut to it: time after the last arrival is no part of the workload.
    """
    spool, start_s = ingested.spool, options.start_s
    left_s = ingested.span_s - start_s
    if left_s < 0:
        raise TraceError(
            f"{name}: start_s {start_s:.15g} is beyond the end: the trace is {ingested.span_s:.15g} s long"
        )
    first, last, span_s = spool.first_row(start_s, lambda arrival: arrival), len(spool), left_s
    if options.duration_s is not None and options.duration_s <= left_s:
        span_s = options.duration_s
        last = spool.first_row(span_s, lambda arrival: arrival - start_s)
    if first >= last and not options.may_be_empty:
        if not len(spool):
            raise TraceError(f"{name}: empty trace: no request arrives in {ingested.span_s:g} s")
        part = f"from start_s {start_s:.15g} for {span_s:.15g} s"
        raise TraceError(f"{name}: no requests {part}: the trace is {ingested.span_s:.15g} s long")
    return Cut(spool=spool, start_s=start_s, span_s=span_s, first_row=first, last_row=last)


def _stats(counts: RowCounts, cut: Cut) -> TraceStats:
    totals, highest, blocks = np.zeros(2, np.int64), np.zeros(2, np.int64), 0
    for at in range(cut.first_row, cut.last_row, STATS_ROWS):
        records = cut.spool.read(at, min(at + STATS_ROWS, cut.last_row))
        lengths = np.stack([records["input_tokens"], records["output_tokens"]])
        totals += lengths.sum(axis=1)
        highest = np.maximum(highest, lengths.max(axis=1))
        blocks += int(records["block_count"].sum(dtype=np.int64))
    rows = cut.rows() or 1
    return TraceStats(
        **asdict(counts),
        requests=cut.rows(),
        isl_mean=int(totals[0]) / rows,
        isl_max=int(highest[0]),
        osl_mean=int(totals[1]) / rows,
        osl_max=int(highest[1]),
        blocks=blocks,
    )


Array = npt.NDArray[np.float64]

MAX_INTERVALS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalSeries:
    """Per interval of `interval_s`: arrivals, and their mean input and output tokens (NaN without any)."""

    interval_s: float
    requests: Array
    isl_tokens: Array
    osl_tokens: Array


def interval_series(trace: Trace, interval_s: float) -> IntervalSeries:
    """Counts and mean lengths per whole interval of the trace.

    A last interval that the trace fills only in part is left out, as its count would read as a drop in load.
    Raises TraceError when the trace does not fill a single interval, or has more than a million.
    """
    if not (isfinite(interval_s) and interval_s > 0):
        raise TraceError(f"interval_s must be above 0 and finite, got {interval_s}")
    if trace.duration_s / interval_s > MAX_INTERVALS:
        raise TraceError(
            f"{trace.name}: {trace.duration_s:g} s long, "
            f"more than {MAX_INTERVALS:,} intervals of {interval_s:g} s"
        )
    intervals = int(trace.duration_s // interval_s)
    if intervals < 1:
        raise TraceError(
            f"{trace.name}: {trace.duration_s:g} s long, less than one interval of {interval_s:g} s"
        )
    sums = np.zeros((3, intervals))
    for chunk in trace.chunks():
        sums += _sums(chunk, interval_s, intervals)
    requests, inputs, outputs = sums
    with np.errstate(invalid="ignore"):
        means = inputs / requests, outputs / requests
    return IntervalSeries(interval_s=interval_s, requests=requests, isl_tokens=means[0], osl_tokens=means[1])


def _sums(chunk: RequestChunk, interval_s: float, intervals: int) -> Array:
    """Rows: arrivals, input tokens, output tokens per interval; the rest of the trace is cut off."""
    index = (chunk.arrival_s // interval_s).astype(np.int64)
    whole = index < intervals
    weights = (None, chunk.input_tokens, chunk.output_tokens)
    return np.array(
        [
            np.bincount(index[whole], None if weight is None else weight[whole], minlength=intervals)
            for weight in weights
        ],
        np.float64,
    )


def write_trace(trace: Trace, path: Path) -> None:
    """Write the requests in order, gzip if the suffix is `.gz`; the same trace gives the same bytes.

    Prefix blocks have no place in this form and are left out. The file appears only once it is complete, see
    `whole_file`; raises TraceError when it cannot be written.
    """
    try:
        with whole_file(path) as file:
            _write(trace, file, compressed=path.suffix == ".gz")
    except OSError as error:
        raise TraceError(f"{path}: cannot be written: {error.strerror or error}") from error


def _write(trace: Trace, file: BinaryIO, *, compressed: bool) -> None:
    with ExitStack() as stack:
        target: BinaryIO | gzip.GzipFile = file
        if compressed:
            target = stack.enter_context(gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0))
        text = stack.enter_context(TextIOWrapper(target, encoding="ascii", newline=""))
        text.write(",".join(PLAIN.columns()) + "\n")
        for chunk in trace.chunks():
            text.write(_rows(chunk))


def _rows(chunk: RequestChunk) -> str:
    columns = (chunk.arrival_s.tolist(), chunk.input_tokens.tolist(), chunk.output_tokens.tolist())
    return "".join(f"{time!r},{inputs},{outputs}\n" for time, inputs, outputs in zip(*columns, strict=True))


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A binary file to write, in place at `path` once the block has ended well; raises OSError.

    It is written beside its place and then moved there, so that it appears whole or stays as it was. Links
    are followed. What exists and is no regular file (a pipe, a device) cannot be replaced and is written
    directly.
    """
    if path.exists() and not path.is_file():
        with path.open("wb") as direct:
            yield direct
        return
    place = Path(os.path.realpath(path))
    part = place.with_name(f".{place.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            yield file
        part.replace(place)
    finally:
        part.unlink(missing_ok=True)
