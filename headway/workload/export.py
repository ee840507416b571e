"""Uses of a trace: a series per interval, or a file in the plain form; and files written whole."""

import gzip
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from io import TextIOWrapper
from math import isfinite
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from headway.workload.csv_format import PLAIN
from headway.workload.text import TraceError
from headway.workload.trace import RequestChunk, Trace

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
