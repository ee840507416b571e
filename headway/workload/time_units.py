"""The unit of a trace's times: the one that its format says, that the user chose, or that is plausible.

The rows of the first piece of the file are judged in each unit by `interp.plausibility`: how many requests
are under way, and how long the recording is. Whoever writes ms writes whole numbers, whoever writes s writes
decimals (`WHOLE`). Times since 1970 are told by their calendar year instead.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from headway.words import duration
from headway.workload.spool import Records
from headway.workload.text import TraceError, at_line
from interp.plausibility import plainly_best, service_s, strangeness

UNITS = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}
"""Units of a time, by how many of them are a second."""
CALENDAR_S = (1.3e9, 2.2e9)
"""Seconds since 1970 of 2011 to 2039."""
WHOLE = 5.0
FEWEST = 10
"""Requests below which rates say too little to ask about them."""
ORDINARY = 10.0
"""Strangeness below which the unit that a format declares needs no other to be ruled out."""


def has_unit(trace_format: object) -> bool:
    """False for a format whose times are dates, or that is read by code of its own."""
    per_s = getattr(trace_format, "units_per_s", None)
    return per_s in UNITS.values() and not getattr(trace_format, "datetimes", False)


def in_unit(trace_format: Any, unit: str) -> Any:  # noqa: ANN401 - a CsvFormat or JsonLinesFormat, and again one
    """The format with times in `unit`; TraceError where they have none."""
    if not has_unit(trace_format):
        raise TraceError(f"trace format with times in {unit!r}: its times have no unit to choose")
    return replace(trace_format, units_per_s=UNITS[unit])


def plausible_unit(trace_format: Any, name: str, records: Records, at: tuple[Path, int]) -> tuple[str, str]:  # noqa: ANN401
    """The unit of the times in `records`, which were read by the unit of the format, and a note or "".

    A unit in doubt is replaced by the one that is plainly best. Without one it stays if it is ordinary and
    the least strange, else TraceError asks for it. A unit that the format is sure of stays. A note names what
    was chosen and the flag that chooses otherwise.
    """
    said = next(unit for unit, per_s in UNITS.items() if per_s == trace_format.units_per_s)
    times = records["arrival_s"] * trace_format.units_per_s
    if len(times) < 2 or times.min() == times.max():
        return said, ""
    readings = dict(_readings(times, records))
    best, in_doubt = plainly_best(readings), trace_format.unit_in_doubt
    if best == said or (best is None and not in_doubt):
        return said, ""
    field, rows = trace_format.time, f"{len(times):,} requests in "
    in_units = {unit: rows + duration(float(np.ptp(times)) / per_s) for unit, per_s in UNITS.items()}
    judged = best is None and len(times) >= FEWEST
    if judged and (readings[said] > ORDINARY or readings[said] > min(readings.values())):
        raise at_line(
            *at,
            field,
            f"can be s ({in_units['s']}) or ms ({in_units['ms']}), both are plausible: "
            f"choose by --format {name}:s or --format {name}:ms",
        )
    likelier = best or said
    read_as = likelier if in_doubt else said
    other = next(unit for unit in (said, likelier, "s", "ms") if unit != read_as)
    return read_as, (
        f"{field} is read as {read_as}: {in_units[read_as]}; as {other} these were {in_units[other]} "
        f"({'less' if read_as == likelier else 'more'} plausible; --format {name}:{other} reads them so)"
    )


def _readings(times: np.ndarray, records: Records) -> Iterator[tuple[str, float]]:
    """The units that the times may have, and how strange each is."""
    low, high = CALENDAR_S
    dated = [unit for unit, per_s in UNITS.items() if low <= times.min() / per_s <= high]
    if dated:
        yield dated[0], 1.0
        return
    whole = bool(np.allclose(times, np.rint(times), rtol=1e-9, atol=1e-6))
    each_s = service_s(float(records["input_tokens"].mean()), float(records["output_tokens"].mean()))
    for unit, unusual in (("s", whole), ("ms", not whole)):
        span_s = float(np.ptp(times)) / UNITS[unit]
        busy = len(times) / span_s * each_s
        yield unit, strangeness(busy=busy, span_s=span_s) * (WHOLE if unusual else 1.0)
