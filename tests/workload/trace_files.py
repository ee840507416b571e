"""Traces that the tests of headway.workload write and read."""

import gzip
from pathlib import Path

import numpy as np
import numpy.typing as npt

from headway.workload import RequestChunk, Trace

PLAIN_HEADER = "timestamp_s,input_tokens,output_tokens"


def write(path: Path, *lines: str) -> Path:
    """A text file, gzip if its name ends in .gz."""
    data = "".join(line + "\n" for line in lines).encode()
    path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
    return path


def plain(path: Path, times: "list[float] | npt.NDArray[np.float64]") -> Path:
    """A plain trace; row i has 10 + i input and 1 + i output tokens, which tells rows apart."""
    return write(path, PLAIN_HEADER, *(f"{float(time)!r},{10 + i},{1 + i}" for i, time in enumerate(times)))


def whole(trace: Trace, rows: int = 65536) -> RequestChunk:
    """All chunks as one."""
    chunks = list(trace.chunks(rows))
    return RequestChunk(
        **{
            name: np.concatenate([getattr(chunk, name) for chunk in chunks])
            for name in RequestChunk.__slots__
        }
    )


def as_bytes(trace: Trace, rows: int = 65536) -> bytes:
    """Everything that a trace yields."""
    chunk = whole(trace, rows)
    return b"".join(getattr(chunk, name).tobytes() for name in RequestChunk.__slots__)
