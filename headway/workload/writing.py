"""Keeping a trace: the plain form, `timestamp_s,input_tokens,output_tokens`."""

import gzip
from contextlib import ExitStack
from io import TextIOWrapper
from pathlib import Path
from typing import BinaryIO

from headway.workload.errors import TraceError
from headway.workload.formats import CSV_FORMATS
from headway.workload.trace import RequestChunk, Trace
from headway.workload.whole_file import whole_file


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
        text.write(",".join(CSV_FORMATS["plain"].columns()) + "\n")
        for chunk in trace.chunks():
            text.write(_rows(chunk))


def _rows(chunk: RequestChunk) -> str:
    columns = (chunk.arrival_s.tolist(), chunk.input_tokens.tolist(), chunk.output_tokens.tolist())
    return "".join(f"{time!r},{inputs},{outputs}\n" for time, inputs, outputs in zip(*columns, strict=True))
