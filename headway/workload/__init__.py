"""Workloads: request traces in the formats that people have, and generated load, in chunks of columns."""

from headway.workload.csv_format import CsvFormat
from headway.workload.export import IntervalSeries, interval_series, whole_file, write_trace
from headway.workload.formats import known_formats
from headway.workload.generators import known_generators
from headway.workload.json_lines import JsonLinesFormat
from headway.workload.prompts import BLOCK_TOKENS
from headway.workload.text import TraceError
from headway.workload.trace import RequestChunk, Trace, TraceOptions, TraceStats, open_trace

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
    "whole_file",
    "write_trace",
]
