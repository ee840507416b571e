"""The requests of late, one by one, for our own collector: a ring of rows, the oldest of which go first."""

import time
from collections.abc import Callable
from math import nan

import numpy as np

from actors.collector.interval import SET_BACK_S
from actors.collector.request_list import ARRIVAL, LOST, REPEAT, ROW, UNKNOWN, RequestList
from serve_apps.gateway.slo_targets import SloTargets

MOST_ROWS = 200_000
PLAIN = SloTargets()

Took = tuple[float, float, float]
"""Seconds since the request arrived, its TTFT, and its mean ITL; NaN for what there is not."""


class RequestLog:
    """Takes down what happens, some 0.3 µs each. `clock` gives Unix seconds."""

    def __init__(self, clock: Callable[[], float] = time.time, most_rows: int = MOST_ROWS) -> None:
        self._clock = clock
        self._rows = np.zeros(most_rows, ROW)
        self._written = 0
        self._began_s = clock()

    def arrived(self, input_tokens: int, targets: SloTargets = PLAIN) -> int:
        """A valid request is here. The number of its row."""
        self._write((input_tokens, ARRIVAL, UNKNOWN, *_promised(targets), nan, nan, nan))
        return self._written - 1

    def repeated(self, number: int) -> None:
        """What arrived with that number is another request tried again."""
        if number >= self._written - len(self._rows):
            self._rows["output_tokens"][number % len(self._rows)] = REPEAT

    def completed(
        self,
        input_tokens: int,
        output_tokens: int,
        cached_tokens: int | None = None,
        *,
        took: Took = (nan, nan, nan),
        targets: SloTargets = PLAIN,
    ) -> None:
        """A request has ended well."""
        cached = UNKNOWN if cached_tokens is None else cached_tokens
        self._write((input_tokens, output_tokens, cached, *_promised(targets), *took))

    def lost(self, targets: SloTargets) -> None:
        """A request has missed its SLO without ending well."""
        self._write((0, LOST, UNKNOWN, *_promised(targets), nan, nan, nan))

    def recent(self, seconds: float) -> RequestList:
        """The rows of the last `seconds`, as far as they are still here."""
        now_s, whole_since_s = self._clock(), self._began_s
        older, newer = self._rows[:0], self._rows[: self._written]
        if self._written > len(self._rows):
            oldest = self._written % len(self._rows)
            older, newer = self._rows[oldest:], self._rows[:oldest]
            whole_since_s = float(older["at_s"][0])
        rows = np.concatenate([part[part["at_s"] > now_s - seconds] for part in (older, newer)])
        # Written before the clock was set back, they would come again when it is as late once more.
        if len(back := np.flatnonzero(np.diff(rows["at_s"]) < -SET_BACK_S)):
            rows = rows[back[-1] + 1 :]
        return RequestList(now_s, whole_since_s, rows, self._began_s)

    def _write(self, row: tuple[int | float, ...]) -> None:
        self._rows[self._written % len(self._rows)] = (self._clock(), *row)
        self._written += 1


def _promised(targets: SloTargets) -> tuple[float, float, int]:
    own = targets.slo
    slo = (nan, nan) if own is None else (own.ttft_s, own.tpot_s)
    return (*slo, targets.class_place)
