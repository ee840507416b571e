"""Measured points on disk: one JSON object a line, written as they come, so that a sweep can be taken up
again.

    {"question": {...}}                                          the first line: what is being measured, of
                                                                 what
    {"phase": "prefill", "tokens": 128, "batch": 1, "runs_s": [0.011, 0.012]}
    {"phase": "decode", "tokens": 4096, "batch": 300, "unmeasurable": "why"}

Points are looked up by (phase, tokens, batch). A point that comes again was looked at again: its runs add up.
A last line that was cut off by the end of a process is dropped.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headway.profiling.errors import MeasurementsError
from headway.profiling.sweep.points import Phase, SweepPoint
from headway.profiling.sweep.robust import Summary, summarise


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What is known of a point: the runs in seconds, over so many looks, or why there are none."""

    runs_s: tuple[float, ...] = ()
    unmeasurable: str | None = None
    looks: int = 1

    @property
    def summary(self) -> Summary | None:
        """Median and spread of the runs; None where there are none."""
        return summarise(self.runs_s) if self.runs_s else None

    def and_then(self, later: "Measured") -> "Measured":
        """With a later look, which can't take back what was measured before."""
        runs_s = (*self.runs_s, *later.runs_s)
        unmeasurable = None if runs_s else self.unmeasurable
        return Measured(runs_s=runs_s, unmeasurable=unmeasurable, looks=self.looks + later.looks)


def add_look(points: dict[SweepPoint, Measured], point: SweepPoint, measured: Measured) -> None:
    """A look at a point, after those that `points` has of it."""
    points[point] = points[point].and_then(measured) if point in points else measured


@dataclass(slots=True, kw_only=True)
class Measurements:
    """The points measured so far, of one engine; `keep` writes each to `path` at once."""

    path: Path
    question: Mapping[str, Any]
    points: dict[SweepPoint, Measured] = field(default_factory=dict)

    def keep(self, point: SweepPoint, measured: Measured) -> None:
        """Add a look at a point, here and on disk."""
        row: dict[str, Any] = {"phase": point.phase, "tokens": point.tokens, "batch": point.batch}
        if measured.unmeasurable is None:
            row["runs_s"] = list(measured.runs_s)
        else:
            row["unmeasurable"] = measured.unmeasurable
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        add_look(self.points, point, measured)

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
        add_look(found.points, point, measured)
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
