"""Higher and lower rates by superposing shifted copies of a trace, never by squeezing its time.

Squeezing time by k keeps the shape but makes bursts k times shorter and trends k times faster. Instead, for
a rate scale k, floor(k) whole copies of the cut of length `span` are laid over each other, and for the
fraction f of k one more copy in which each request is kept with probability f. Copy i is rotated by

    offset_i = frac(i · 0.6180339887…) · window            t' = (t + offset_i) mod span

The golden ratio's multiples spread evenly over the window for any number of copies; the window is small
against the trend and large against bursts, so copies' bursts fall apart while the daily curve stays. Copy 0
stays put. A rotation cuts a copy into two runs of rows, each already in order of time, so the whole is a
merge of sorted runs in the total order (time, copy, row): the same bytes for every chunk size.

Whether row r of a copy is kept depends on (seed, copy, r) alone: draw r of a counter-based generator
(Philox).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from math import floor, inf

import numpy as np
import numpy.typing as npt

from headway.workload.spool import Records, Spool

GOLDEN = 0.6180339887498949
DRAWS_PER_COUNTER = 4
MIN_STEP_ROWS = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """A part of a spool: from `start_s` on, `span_s` long; `span_s` is where rotation wraps around."""

    spool: Spool
    start_s: float
    span_s: float
    first_row: int
    last_row: int

    def rows(self) -> int:
        """Requests in the cut, before scaling."""
        return self.last_row - self.first_row


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """k copies (`rate_scale`), shifted within `window_s`; `seed` decides which rows a thinned copy keeps."""

    rate_scale: float
    window_s: float
    seed: int

    def copies(self) -> list[float]:
        """The share of rows that each copy keeps: 1 for whole copies, then the fraction, if any."""
        whole = floor(self.rate_scale)
        fraction = self.rate_scale - whole
        return [1.0] * whole + ([fraction] if fraction > 0 else [])


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyRun:
    """Rows `low` to `high` of one copy, in order of time: arrival − start_s + offset_s − wrapped_s."""

    cut: Cut
    copy: int
    low: int
    high: int
    offset_s: float
    wrapped_s: float
    keep: float
    seed: int

    def time(self, arrival: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Times in the superposition; each step rounds monotonically, so order survives."""
        return ((arrival - self.cut.start_s) + self.offset_s) - self.wrapped_s

    def read(self, low: int, high: int) -> Records:
        """Rows `low` to `high` with the times of this copy, not thinned."""
        records = self.cut.spool.read(low, min(high, self.high))
        records["arrival_s"] = self.time(records["arrival_s"])
        records["copy"] = self.copy
        return records

    def kept(self, low: int, high: int) -> npt.NDArray[np.bool_]:
        """Which of the rows `low` to `high` survive thinning."""
        if self.keep >= 1:
            return np.ones(high - low, np.bool_)
        return _uniforms((self.seed, self.copy), low, high) < self.keep


class Superposition:
    """The merge of all copies of a cut."""

    def __init__(self, cut: Cut, scaling: Scaling) -> None:
        self._runs = [
            run
            for copy, keep in enumerate(scaling.copies())
            for run in _runs_of_copy(cut, scaling, copy, keep)
            if run.high > run.low
        ]

    def count(self) -> int:
        """Requests in all, exactly: the thinned copy is counted draw by draw."""
        return sum(_count(run) for run in self._runs)

    def chunks(self, rows: int) -> Iterator[Records]:
        """Yield the merged records, `rows` at a time; memory is that of a chunk and of 128 rows a copy.

        Requests of the very same instant are merged in one piece, however many they are.
        """
        held: list[Records] = []
        size = 0
        for piece in self._merged(max(MIN_STEP_ROWS, rows // max(1, len(self._runs)))):
            held.append(piece)
            size += len(piece)
            if size >= rows:
                joined = np.concatenate(held)
                whole = size - size % rows
                yield from (joined[at : at + rows] for at in range(0, whole, rows))
                held, size = [joined[whole:]], size - whole
        if size:
            yield np.concatenate(held)

    def _merged(self, step_rows: int) -> Iterator[Records]:
        """Pieces in total order: each time, the rows before the earliest end of the runs' next rows."""
        cursors = {index: run.low for index, run in enumerate(self._runs)}
        wanted = step_rows
        while cursors:
            heads = {index: self._runs[index].read(at, at + wanted) for index, at in cursors.items()}
            bound = self._bound(cursors, heads)
            counts = {
                index: int(np.searchsorted(_times(head), bound, side="left")) for index, head in heads.items()
            }
            if not any(counts.values()):
                wanted *= 2  # every row in sight arrives at the same instant: look further
                continue
            wanted = step_rows
            yield self._merge(cursors, heads, counts)
            cursors = {i: at + counts[i] for i, at in cursors.items() if at + counts[i] < self._runs[i].high}

    def _bound(self, cursors: dict[int, int], heads: dict[int, Records]) -> float:
        """The time before which the heads are complete; infinite if nothing lies beyond or beside them."""
        ends = [
            float(head["arrival_s"][-1])
            for index, head in heads.items()
            if cursors[index] + len(head) < self._runs[index].high
        ]
        return min(ends) if ends and len(heads) > 1 else inf

    def _merge(self, cursors: dict[int, int], heads: dict[int, Records], counts: dict[int, int]) -> Records:
        """The first `counts` rows of each head, thinned and merged.

        Runs lie in order of (copy, row), so that a stable sort by time gives the total order.
        """
        taken = [
            head[: counts[index]][self._runs[index].kept(cursors[index], cursors[index] + counts[index])]
            for index, head in heads.items()
        ]
        joined: Records = np.concatenate(taken)
        return joined if len(taken) == 1 else joined[np.argsort(_times(joined), kind="stable")]


def _times(records: Records) -> npt.NDArray[np.float64]:
    return np.ascontiguousarray(records["arrival_s"])


def _runs_of_copy(cut: Cut, scaling: Scaling, copy: int, keep: float) -> list[CopyRun]:
    """The two runs of a rotated copy, the one with the lower rows first; the unshifted copy is one run."""
    offset_s = (copy * GOLDEN % 1.0) * scaling.window_s
    offset_s = offset_s % cut.span_s if cut.span_s > 0 else 0.0

    run = partial(CopyRun, cut=cut, copy=copy, offset_s=offset_s, keep=keep, seed=scaling.seed)
    if offset_s == 0:
        return [run(low=cut.first_row, high=cut.last_row, wrapped_s=0.0)]
    wrap_row = cut.spool.first_row(cut.span_s, lambda arrival: (arrival - cut.start_s) + offset_s)
    wrap_row = min(max(wrap_row, cut.first_row), cut.last_row)
    return [
        run(low=cut.first_row, high=wrap_row, wrapped_s=0.0),
        run(low=wrap_row, high=cut.last_row, wrapped_s=cut.span_s),
    ]


def _count(run: CopyRun) -> int:
    if run.keep >= 1:
        return run.high - run.low
    starts = range(run.low, run.high, 65536)
    return sum(int(run.kept(at, min(at + 65536, run.high)).sum()) for at in starts)


def _uniforms(key: tuple[int, int], low: int, high: int) -> npt.NDArray[np.float64]:
    """Draws number `low` to `high` (exclusive) of the uniform sequence of `key`."""
    skipped = low % DRAWS_PER_COUNTER
    state = np.random.SeedSequence(key).generate_state(2, np.uint64)
    bits = np.random.Philox(key=state, counter=low // DRAWS_PER_COUNTER)
    return np.random.Generator(bits).random(high - low + skipped)[skipped:]
