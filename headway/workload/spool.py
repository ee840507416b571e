"""Fixed records on disk: what a trace is turned into once, so that nothing is parsed twice.

One file of `RECORD`s sorted by arrival, one of int64 prefix block ids, both in a temporary directory that
goes with the spool. Slices are read with ordinary reads rather than through a map of the whole file, so
that resident memory stays that of a slice. A `Batch` holds parsed rows on their way there.
"""

import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

import numpy as np
import numpy.typing as npt

from headway.workload.text import TraceError

RECORD = np.dtype(
    [
        ("arrival_s", np.float64),
        ("input_tokens", np.int64),
        ("output_tokens", np.int64),
        ("block_start", np.int64),
        ("block_count", np.int32),
        ("copy", np.int32),
    ]
)
"""One request; 40 bytes without padding, so equal requests are equal bytes."""

Records = npt.NDArray[np.void]


class Spool:
    """A finished, read-only spool of `len()` records."""

    def __init__(self, directory: Path, length: int, block_count: int) -> None:
        self._path = directory / "requests"
        self._length = length
        self._remove = weakref.finalize(self, _remove_directory, directory, os.getpid())
        self.blocks: npt.NDArray[np.int64] = np.empty(0, np.int64)
        if block_count:
            self.blocks = np.memmap(directory / "blocks", np.int64, mode="c", shape=(block_count,))

    def __len__(self) -> int:
        return self._length

    def read(self, low: int, high: int) -> Records:
        """Records `low` up to `high` (exclusive), as an array of its own."""
        if not self._remove.alive:
            raise TraceError("the trace has been closed")
        count = max(0, min(high, self._length) - low)
        return np.fromfile(self._path, RECORD, count=count, offset=low * RECORD.itemsize)

    def first_row(self, at_least: float, time_of: Callable[[float], float]) -> int:
        """The first row whose arrival, mapped by the non-decreasing `time_of`, reaches `at_least`."""
        low, high = 0, self._length
        while low < high:
            middle = (low + high) // 2
            reached = time_of(float(self.read(middle, middle + 1)["arrival_s"][0])) >= at_least
            low, high = (low, middle) if reached else (middle + 1, high)
        return low

    def close(self) -> None:
        """Remove the files; reading afterwards raises TraceError."""
        self._remove()


class SpoolWriter:
    """Fills a spool with sorted records; leaving its context removes the files unless `finish()` was reached.

    Raises TraceError where the disk refuses.
    """

    def __init__(self) -> None:
        try:
            self._directory = Path(tempfile.mkdtemp(prefix="headway-trace-"))
        except OSError as error:
            raise TraceError(f"no temporary directory to spool the trace in: {error.strerror}") from error
        self._requests = (self._directory / "requests").open("wb")
        self._blocks = (self._directory / "blocks").open("wb")
        self._length = 0
        self._block_count = 0
        self._finished = False

    def append(self, records: Records) -> None:
        """Add requests, none earlier than those before."""
        with self._translated():
            self._requests.write(records.tobytes())
        self._length += len(records)

    def append_blocks(self, blocks: npt.NDArray[np.int64]) -> None:
        """Add prefix block ids; `block_start` of a record counts them from the first."""
        with self._translated():
            self._blocks.write(blocks.tobytes())
        self._block_count += len(blocks)

    def finish(self) -> Spool:
        """Close the files and return the spool that owns them from now on."""
        with self._translated():
            self._requests.close()
            self._blocks.close()
        self._finished = True
        return Spool(self._directory, self._length, self._block_count)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise TraceError(f"{self._directory}: cannot spool the trace: {error.strerror}") from error

    def __enter__(self) -> "SpoolWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trail: TracebackType | None
    ) -> None:
        if self._finished:
            return
        for file in (self._requests, self._blocks):
            with suppress(OSError):  # a full disk refuses the last bytes once more
                file.close()
        shutil.rmtree(self._directory, ignore_errors=True)


def _remove_directory(directory: Path, owner: int) -> None:
    """Remove the spool, but not from a forked child that merely inherited the object."""
    if os.getpid() == owner:
        shutil.rmtree(directory, ignore_errors=True)


Columns = tuple[npt.NDArray[np.float64 | np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]
"""Times (seconds, or nanoseconds as integers), input tokens and output tokens of consecutive rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Rows of one piece: `records` (times not yet rebased), `lines` (1-based in the file), new `blocks`."""

    records: Records
    lines: npt.NDArray[np.int64]
    blocks: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))


def to_records(
    times: npt.NDArray[np.float64 | np.int64], inputs: npt.NDArray[np.int64], outputs: npt.NDArray[np.int64]
) -> Records:
    """Records without prefix blocks."""
    records = np.zeros(len(times), RECORD)
    records["arrival_s"], records["input_tokens"], records["output_tokens"] = times, inputs, outputs
    return records
