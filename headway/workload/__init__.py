"""Workloads: request traces in the formats that people have, and generated load, in chunks of columns."""

from headway.workload.formats import CsvFormat, known_formats
from headway.workload.generators import known_generators
from headway.workload.json_lines import JsonLinesFormat
from headway.workload.text import BLOCK_TOKENS, TraceError
from headway.workload.trace import (
    IntervalSeries,
    RequestChunk,
    Trace,
    TraceOptions,
    TraceStats,
    interval_series,
    open_trace,
    spooled,
    whole_file,
    write_trace,
)

__all__ = [
    "BLOCK_TOKENS",
    "CsvFormat",
    "IntervalSeries",
    "JsonLinesFormat",
    "RequestChunk",
    "Trace",
    "TraceError",
    "TraceOptions",
    "TraceStats",
    "interval_series",
    "known_formats",
    "known_generators",
    "open_trace",
    "spooled",
    "whole_file",
    "write_trace",
]
