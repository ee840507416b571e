"""Sweep an engine: prefill over ISLs, decode over KV usage and context length.

    measurements = open_measurements(path, question)
    done = await sweep(target, sweep_points(limits), measurements, options)
    tables = swept_tables(measurements.points, gpus=1, max_kv_tokens=limits.max_kv_tokens)

`points` says where to measure, `order` in which order, `doubts` what to measure again, `streams` and `robust`
what the times of tokens mean: all pure. `measure` runs one point on a `Target`, `sweeping` all of them,
`store` keeps them. `endpoint` is the target behind HTTP.
"""

from headway.profiling.sweep.points import Limits, Phase, SweepPoint, sweep_points
from headway.profiling.sweep.store import (
    Measured,
    Measurements,
    add_look,
    open_measurements,
    read_measurements,
)
from headway.profiling.sweep.streams import Arrival, StreamTimes
from headway.profiling.sweep.sweeping import SweepOptions, sweep
from headway.profiling.sweep.tables import SweptTables, swept_tables
from headway.profiling.sweep.target import Target

__all__ = [
    "Arrival",
    "Limits",
    "Measured",
    "Measurements",
    "Phase",
    "StreamTimes",
    "SweepOptions",
    "SweepPoint",
    "SweptTables",
    "Target",
    "add_look",
    "open_measurements",
    "read_measurements",
    "sweep",
    "sweep_points",
    "swept_tables",
]
