"""Workloads: request traces in the formats that people have, and generated load, in chunks of columns."""

from headway.workload.errors import TraceError
from headway.workload.formats import known_formats
from headway.workload.generators import known_generators
from headway.workload.opening import open_trace
from headway.workload.series import IntervalSeries, interval_series
from headway.workload.trace import BLOCK_TOKENS, RequestChunk, Trace, TraceOptions, TraceStats
from headway.workload.whole_file import whole_file
from headway.workload.writing import write_trace

__all__ = [
    "BLOCK_TOKENS",
    "IntervalSeries",
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
