"""Parsed rows on their way to the spool, in file order, each still knowing its line."""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from headway.workload.spool import RECORD, Records

Times = npt.NDArray[np.float64 | np.int64]
"""Seconds, or nanoseconds as integers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Rows of one piece: `records` (times not yet rebased), `lines` (1-based in the file), new `blocks`."""

    records: Records
    lines: npt.NDArray[np.int64]
    blocks: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Times (seconds, or nanoseconds as int64) and token counts of consecutive rows."""

    times: Times
    input_tokens: npt.NDArray[np.int64]
    output_tokens: npt.NDArray[np.int64]


def to_records(columns: Columns) -> Records:
    """Records without prefix blocks."""
    records = np.zeros(len(columns.times), RECORD)
    records["arrival_s"] = columns.times
    records["input_tokens"] = columns.input_tokens
    records["output_tokens"] = columns.output_tokens
    return records
