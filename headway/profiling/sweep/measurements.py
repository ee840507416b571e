"""Measured points: kept on disk as they come, summarised, checked against each other, made into tables.

One JSON object a line, so that a sweep can be taken up again:

    {"question": {...}}                                          the first line: engine and settings
    {"phase": "prefill", "tokens": 128, "batch": 1, "runs_s": [0.011, 0.012]}
    {"phase": "decode", "tokens": 4096, "batch": 300, "unmeasurable": "why"}

A point that comes again was measured again: its runs add up. A last line that was cut off by the end of a
process is dropped.

A point's latency is the median of its runs that are no outliers:

    spread     1.4826 · median(|x - median|) / median      (MAD: equals the standard deviation for normal x)
    outlier    |x - median| > max(3 · 1.4826 · MAD, 5 % of the median)

The 5 % keep runs that agree to a few per cent from calling each other outliers; with three runs, one that
went wrong is left out. Source: Iglewicz and Hoaglin, How to Detect and Handle Outliers (1993), with 3 for
their 3.5.

Two points contradict each other when more work takes less time: on the prefill line with more tokens, on the
line of a decode context with a larger batch. Where a latency is more than STEADY below that of its smaller
neighbour, the machine was slower for one of the two, and runs that followed each other cannot show it. So
both are measured again, later, up to MOST_VISITS times in all; their values are the medians over all visits.
An engine that really is faster there comes out as it is.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from headway.profiling import IncompleteError, MeasurementsError, Phase
from headway.profiling.sweep.points import SweepPoint
from interp import DecodeSamples, PrefillSamples

MAD_TO_DEVIATION = 1.4826
OUTLIER_DEVIATIONS = 3.0
OUTLIER_SHARE = 0.05
STEADY = 0.05
"""Spread up to which runs are taken to agree."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The median in seconds of the `runs` that are no outliers, and their relative spread."""

    value_s: float
    spread: float
    runs: int
    outliers: int

    @property
    def steady(self) -> bool:
        """True if the runs agree well enough."""
        return self.spread <= STEADY


def summarise(values_s: Sequence[float]) -> Summary:
    """The summary of at least one latency, each above zero."""
    middle = median(values_s)
    allowed = max(OUTLIER_DEVIATIONS * _deviation(values_s), OUTLIER_SHARE * middle)
    kept = [value for value in values_s if abs(value - middle) <= allowed]
    value_s = median(kept)
    return Summary(
        value_s=value_s,
        spread=_deviation(kept) / value_s,
        runs=len(kept),
        outliers=len(values_s) - len(kept),
    )


def _deviation(values: Sequence[float]) -> float:
    middle = median(values)
    return MAD_TO_DEVIATION * median([abs(value - middle) for value in values])


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A measured point: its runs in seconds, over so many visits, or the reason that there are none."""

    runs_s: tuple[float, ...] = ()
    unmeasurable: str | None = None
    visits: int = 1

    @property
    def summary(self) -> Summary | None:
        """Median and spread of the runs; None where there are none."""
        return summarise(self.runs_s) if self.runs_s else None

    def and_then(self, later: "Measured") -> "Measured":
        """With a later visit, which cannot take back what was measured before."""
        runs_s = (*self.runs_s, *later.runs_s)
        unmeasurable = None if runs_s else self.unmeasurable
        return Measured(runs_s=runs_s, unmeasurable=unmeasurable, visits=self.visits + later.visits)


def add_measured(points: dict[SweepPoint, Measured], point: SweepPoint, measured: Measured) -> None:
    """Add a visit to a point after those that `points` has of it."""
    points[point] = points[point].and_then(measured) if point in points else measured


@dataclass(slots=True, kw_only=True)
class Measurements:
    """The points measured so far, of one engine; `keep` writes each to `path` at once."""

    path: Path
    question: Mapping[str, Any]
    points: dict[SweepPoint, Measured] = field(default_factory=dict)

    def keep(self, point: SweepPoint, measured: Measured) -> None:
        """Add a visit to a point, here and on disk."""
        row: dict[str, Any] = {"phase": point.phase, "tokens": point.tokens, "batch": point.batch}
        if measured.unmeasurable is None:
            row["runs_s"] = list(measured.runs_s)
        else:
            row["unmeasurable"] = measured.unmeasurable
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        add_measured(self.points, point, measured)

    def latencies_s(self) -> Mapping[SweepPoint, float | None]:
        """Every point that is done: its median latency, or None if it could not be measured."""
        found = ((point, measured.summary) for point, measured in self.points.items())
        return {point: summary.value_s if summary else None for point, summary in found}


def open_measurements(path: Path, question: Mapping[str, Any]) -> Measurements:
    """The measurements in `path`, which is made if it is not there.

    Raises MeasurementsError when the file answers another question than `question` (JSON values), naming the
    first key that differs, or cannot be read.
    """
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"question": dict(question)}) + "\n", encoding="utf-8")
    found = read_measurements(path)
    asked = json.loads(json.dumps(dict(question)))
    for key in (*asked, *found.question):
        before, now = found.question.get(key), asked.get(key)
        if before != now:
            raise MeasurementsError(
                f"{path}: begun with {key} {before!r}, now it is {now!r}; that needs another --output"
            )
    return found


def read_measurements(path: Path) -> Measurements:
    """The measurements in a file. Raises MeasurementsError naming the line."""
    try:
        text = path.read_text(encoding="utf-8")
        # A process may end in the middle of a line; the rest of the file is sound.
        whole = text[: text.rfind("\n") + 1]
        if whole != text:
            path.write_text(whole, encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise MeasurementsError(f"{path}: cannot be read ({error})") from error
    first, *rest = whole.splitlines() or [""]
    found = Measurements(path=path, question=_question(path, first))
    for number, line in enumerate(rest, start=2):
        try:
            point, measured = _point(json.loads(line))
        except (ValueError, KeyError, TypeError) as error:
            raise MeasurementsError(f"{path}: line {number} is no measured point") from error
        add_measured(found.points, point, measured)
    return found


def _question(path: Path, line: str) -> Mapping[str, Any]:
    try:
        question: Mapping[str, Any] = dict(json.loads(line)["question"])
    except (ValueError, KeyError, TypeError) as error:
        raise MeasurementsError(f"{path}: line 1 does not say what is measured") from error
    return question


def _point(row: Mapping[str, Any]) -> tuple[SweepPoint, Measured]:
    point = SweepPoint(phase=Phase(row["phase"]), tokens=int(row["tokens"]), batch=int(row["batch"]))
    if "unmeasurable" in row:
        return point, Measured(unmeasurable=str(row["unmeasurable"]))
    runs: Sequence[float] = [float(run) for run in row["runs_s"]]
    if not runs or not all(0.0 < run < float("inf") for run in runs) or min(point.tokens, point.batch) < 1:
        raise ValueError(row)
    return point, Measured(runs_s=tuple(runs))


MOST_VISITS = 3
"""Visits to a point at most: the majority decides."""


def contradicting(measured: Mapping[SweepPoint, Measured]) -> list[SweepPoint]:
    """The points to measure again, those with the fewest visits first."""
    found = {point for pair in _falls(measured) for point in pair if measured[point].visits < MOST_VISITS}
    return sorted(found, key=lambda point: (measured[point].visits, point))


def _falls(measured: Mapping[SweepPoint, Measured]) -> Iterator[tuple[SweepPoint, SweepPoint]]:
    known = {point: found.summary.value_s for point, found in measured.items() if found.summary}
    for _, line in groupby(sorted(known, key=_along), key=lambda point: _along(point)[:2]):
        for less, more in pairwise(line):
            if known[more] < (1.0 - STEADY) * known[less]:
                yield less, more


def _along(point: SweepPoint) -> tuple[Phase, int, int]:
    """A line's phase and context, and the place on it."""
    if point.phase is Phase.PREFILL:
        return point.phase, 0, point.tokens
    return point.phase, point.tokens, point.batch


LEAST_POINTS = {Phase.PREFILL: 2, Phase.DECODE: 1}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SweptTables:
    """The tables, the relative spread of each of their samples, and remarks on what was measured."""

    prefill: PrefillSamples
    decode: DecodeSamples
    prefill_spread: tuple[float, ...]
    decode_spread: tuple[float, ...]
    notes: tuple[str, ...]


def swept_tables(measured: Mapping[SweepPoint, Measured], *, gpus: int, max_kv_tokens: int) -> SweptTables:
    """The tables of one engine on `gpus` GPUs. Raises IncompleteError where too little was measured."""
    prefill, decode = _rows(measured, Phase.PREFILL), _rows(measured, Phase.DECODE)
    isl, ttft_s, _ = _columns(prefill)
    context, itl_s, batch = _columns(decode)
    return SweptTables(
        prefill=PrefillSamples.timed(isl, ttft_s, gpus),
        decode=DecodeSamples.timed(batch, context, itl_s, max_kv_tokens=max_kv_tokens, gpus=gpus),
        prefill_spread=tuple(_spreads(prefill)),
        decode_spread=tuple(_spreads(decode)),
        notes=tuple(_notes(measured)),
    )


Rows = list[tuple[SweepPoint, Measured]]


def _rows(measured: Mapping[SweepPoint, Measured], phase: Phase) -> Rows:
    rows = [
        (point, found) for point, found in sorted(measured.items()) if point.phase is phase and found.runs_s
    ]
    if len(rows) < LEAST_POINTS[phase]:
        reasons = sorted({found.unmeasurable for found in measured.values() if found.unmeasurable})
        because = f" ({reasons[0]})" if reasons else "; start again to go on from here"
        raise IncompleteError(
            f"{len(rows)} {phase} points measured, at least {LEAST_POINTS[phase]} make a profile{because}"
        )
    return rows


def _columns(rows: Rows) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Tokens, seconds and batch of each row: f8[N]."""
    seconds = [found.summary.value_s for _, found in rows if found.summary]
    return (
        np.array([point.tokens for point, _ in rows], np.float64),
        np.array(seconds, np.float64),
        np.array([point.batch for point, _ in rows], np.float64),
    )


def _spreads(rows: Rows) -> list[float]:
    return [found.summary.spread for _, found in rows if found.summary]


def _notes(measured: Mapping[SweepPoint, Measured]) -> list[str]:
    remarks = ((point, _remark(found)) for point, found in sorted(measured.items()))
    return [f"{point}: {remark}" for point, remark in remarks if remark]


def _remark(found: Measured) -> str:
    summary = found.summary
    if summary is None:
        return f"not measured, {found.unmeasurable}"
    parts = (
        [f"{summary.outliers} of {len(found.runs_s)} runs left out as outliers"] if summary.outliers else []
    )
    if not summary.steady:
        parts.append(f"{summary.runs} runs spread by {100.0 * summary.spread:.0f} %")
    return ", ".join(parts)
