"""The trace formats: built in or brought by an installed package, and which one a file has.

| format   | lines                                                         | time                     |
|----------|---------------------------------------------------------------|--------------------------|
| plain    | `timestamp_s,input_tokens,output_tokens[,…]`                  | seconds                  |
| azure    | `TIMESTAMP,ContextTokens,GeneratedTokens` (AzurePublicDataset) | date and time, 7 digits |
| burstgpt | `Timestamp,…,Request tokens,Response tokens,…` (BurstGPT)     | seconds                  |
| mooncake | JSON objects `timestamp, input_length, output_length, hash_ids` | milliseconds           |

A format whose rows are CSV or JSON objects is a `CsvFormat` or a `JsonLinesFormat` that names its columns or
keys: one value, and one line in `FORMATS` or in the entry points of any installed package. Any other format
is a class of the shape of `TraceFormat`. Further columns and keys are ignored, their order does not matter.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from headway.extensions import ExtensionError, ExtensionPoint
from headway.workload.csv_format import header_names
from headway.workload.spool import Batch
from headway.workload.text import Piece, TraceError, at_line

FORMATS = ExtensionPoint(
    "headway.trace_formats",
    "trace format",
    {
        "plain": "headway.workload.csv_format:PLAIN",
        "azure": "headway.workload.csv_format:AZURE",
        "burstgpt": "headway.workload.csv_format:BURSTGPT",
        "mooncake": "headway.workload.json_lines:MOONCAKE",
    },
)
"""In the order in which formats are tried: of two that fit a first line equally well the earlier wins."""


class RecordReader(Protocol):
    """Parses the pieces of one file in order."""

    time_field: str
    """The field that holds the time, for error messages."""

    def parse(self, piece: Piece) -> Batch:
        """The rows of a piece; raises TraceError with the line of the first faulty row."""
        ...


class TraceFormat(Protocol):
    """A trace format."""

    @property
    def has_header(self) -> bool:
        """True if the first line names the columns and holds no request."""
        ...

    def match(self, first_line: str) -> float:
        """The share of the format's columns or keys in a first line, in [0, 1]; 0: not this format."""
        ...

    def reader(self, path: Path, line: int, first_line: str) -> RecordReader:
        """The reader of a file with that first line; raises TraceError where the line does not suffice."""
        ...


def known_formats() -> tuple[str, ...]:
    """The names that `TraceOptions.format` takes."""
    return tuple(_names())


def check_format(name: str | None) -> None:
    """Raise TraceError unless `name` is a known format or None."""
    if name is not None and name not in FORMATS:
        raise TraceError(f"unknown trace format {name!r}; known: {', '.join(known_formats())}")


def format_of(path: Path, line: int, first_line: str, name: str | None) -> TraceFormat:
    """The format `name`, or the one that fits the first line best; raises TraceError where none fits."""
    if name is not None:
        return _load(name)
    best, share = None, 0.0
    for candidate in _names():
        # A perfect fit ends the search, so that packages beside this one are only asked about unknown lines.
        if share >= 1.0:
            break
        found = _load(candidate)
        if (fit := found.match(first_line)) > share:
            best, share = found, fit
    if best is None:
        header_names(path, line, first_line)  # a line that is no CSV at all has its own error
        known = ", ".join(known_formats())
        raise at_line(path, line, "header", f"no trace format has these columns; known formats: {known}")
    return best


def _names() -> Iterator[str]:
    yield from FORMATS.builtin
    yield from (name for name in FORMATS.names() if name not in FORMATS.builtin)


def _load(name: str) -> TraceFormat:
    try:
        found: TraceFormat = FORMATS.load(name)
    except ExtensionError as error:
        raise TraceError(str(error)) from error
    return found
