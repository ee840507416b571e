"""A vectorised parse of CSV pieces about which nothing is unusual.

Usual means: no quotes, each line has the header's number of separators, the columns parse as numbers (or
dates), tokens are whole and in range. Any doubt returns None, and `csv_reader` takes the careful way, so
that this module needs no error messages.
"""

from io import BytesIO
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from headway.workload.batch import Columns
from headway.workload.formats import Layout
from headway.workload.values import MAX_TOKENS

if TYPE_CHECKING:
    import pandas as pd

SHORTEST_DATETIME = len("2023-11-16 18:17:03")
NEWLINE, COMMA = ord("\n"), ord(",")


def parse_columns(data: bytes, layout: Layout) -> Columns | None:
    """The columns of whole lines, None in any doubt; times in seconds, of dates in nanoseconds since 1970."""
    if not _is_regular(data, layout.fields):
        return None
    frame = _read(data, layout)
    if frame is None:
        return None
    time, tokens_in, tokens_out = (frame[position] for position in layout.positions)
    times = _nanoseconds(time) if layout.format.datetimes else _seconds(time)
    inputs, outputs = _tokens(tokens_in), _tokens(tokens_out)
    if times is None or inputs is None or outputs is None:
        return None
    return Columns(times=times, input_tokens=inputs, output_tokens=outputs)


def _is_regular(data: bytes, fields: int) -> bool:
    """Whether every line has as many separators as the header, and no quote changes their meaning."""
    if b'"' in data:
        return False
    letters = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(letters == NEWLINE)
    if data[-1:] != b"\n":
        ends = np.append(ends, len(data))
    separators = np.searchsorted(np.flatnonzero(letters == COMMA), ends)
    return bool(np.all(np.diff(separators, prepend=0) == fields - 1))


def _read(data: bytes, layout: Layout) -> "pd.DataFrame | None":
    import pandas as pd

    try:
        return pd.read_csv(
            BytesIO(data),
            header=None,
            usecols=list(layout.positions),
            dtype={layout.positions[0]: str} if layout.format.datetimes else None,
            low_memory=False,
        )
    except (ValueError, OverflowError):  # all parser errors of pandas are ValueErrors
        return None


def _seconds(column: "pd.Series[float]") -> npt.NDArray[np.float64] | None:
    if column.dtype.kind not in "iuf":
        return None
    times: npt.NDArray[np.float64] = np.asarray(column, np.float64)
    return times if bool(np.all(np.isfinite(times) & (times >= 0))) else None


def _nanoseconds(column: "pd.Series[str]") -> npt.NDArray[np.int64] | None:
    import pandas as pd

    try:
        moments = pd.to_datetime(column, format="ISO8601", utc=True)
        if bool(moments.isna().any()) or bool((column.str.len() < SHORTEST_DATETIME).any()):
            return None
        nanoseconds: npt.NDArray[np.int64] = np.asarray(moments.dt.as_unit("ns").astype("int64"), np.int64)
    except (ValueError, OverflowError):  # text that is no date, a date that nanoseconds cannot count
        return None
    return nanoseconds if bool((nanoseconds >= 0).all()) else None


def _tokens(column: "pd.Series[float]") -> npt.NDArray[np.int64] | None:
    values = column.to_numpy()
    if values.dtype.kind not in "iuf":
        return None
    if not bool(np.all((values >= 0) & (values <= MAX_TOKENS) & (values == np.floor(values)))):
        return None
    return values.astype(np.int64)
