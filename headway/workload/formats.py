"""The trace formats that people have, as a table, and how to tell them apart by the first line.

| format   | lines                                                         | time                     |
|----------|---------------------------------------------------------------|--------------------------|
| plain    | `timestamp_s,input_tokens,output_tokens[,…]`                  | seconds                  |
| azure    | `TIMESTAMP,ContextTokens,GeneratedTokens` (AzurePublicDataset) | date and time, 7 digits |
| burstgpt | `Timestamp,…,Request tokens,Response tokens,…` (BurstGPT)     | seconds                  |
| mooncake | JSON objects `timestamp, input_length, output_length, hash_ids` | milliseconds           |

A further CSV format is a further row of `CSV_FORMATS`; other columns are ignored, their order does not
matter.
"""

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from headway.workload.errors import TraceError, at_line

JSON_LINES = "mooncake"


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvFormat:
    """The columns of a CSV format; `datetimes` says that the time is written as date and time."""

    time: str
    input_tokens: str
    output_tokens: str
    datetimes: bool = False

    def columns(self) -> tuple[str, str, str]:
        """Time, input tokens, output tokens."""
        return (self.time, self.input_tokens, self.output_tokens)


CSV_FORMATS: Mapping[str, CsvFormat] = MappingProxyType(
    {
        "plain": CsvFormat(time="timestamp_s", input_tokens="input_tokens", output_tokens="output_tokens"),
        "azure": CsvFormat(
            time="TIMESTAMP", input_tokens="ContextTokens", output_tokens="GeneratedTokens", datetimes=True
        ),
        "burstgpt": CsvFormat(
            time="Timestamp", input_tokens="Request tokens", output_tokens="Response tokens"
        ),
    }
)


def known_formats() -> tuple[str, ...]:
    """The names that `TraceOptions.format` takes."""
    return (*CSV_FORMATS, JSON_LINES)


def check_format(name: str | None) -> None:
    """Raise TraceError unless `name` is a known format or None."""
    if name is not None and name not in known_formats():
        raise TraceError(f"unknown trace format {name!r}; known: {', '.join(known_formats())}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Where a CSV file keeps what we read: field positions, and how many fields a row has."""

    format: CsvFormat
    positions: tuple[int, int, int]
    fields: int


def csv_layout(path: Path, line: int, header: str, name: str | None) -> Layout:
    """Where a CSV header puts the columns of the format `name`, or of the best fit; raises TraceError."""
    names = _header_names(path, line, header)
    chosen = CSV_FORMATS[name] if name else _best_fit(path, line, names)
    for column in chosen.columns():
        if column not in names:
            raise at_line(path, line, column, f"missing column; the header is {header[:200]!r}")
        if names.count(column) > 1:
            raise at_line(path, line, column, "the header has this column twice")
    time, tokens_in, tokens_out = (names.index(column) for column in chosen.columns())
    return Layout(format=chosen, positions=(time, tokens_in, tokens_out), fields=len(names))


def _header_names(path: Path, line: int, header: str) -> list[str]:
    try:
        return [field.strip() for field in next(csv.reader([header]))]
    except csv.Error as error:
        raise at_line(path, line, "header", str(error)) from error


def _best_fit(path: Path, line: int, names: list[str]) -> CsvFormat:
    best = max(CSV_FORMATS.values(), key=lambda candidate: len(set(candidate.columns()) & set(names)))
    if not set(best.columns()) & set(names):
        known = ", ".join(known_formats())
        raise at_line(path, line, "header", f"no trace format has these columns; known formats: {known}")
    return best
