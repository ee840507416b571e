"""The latest requests, one by one: when each arrived with how many tokens, and the lengths of what completed.

Counters say how many requests came and how long they were on average; a planner that replays its traffic
needs the bursts and the lengths themselves. A ring of rows of 16 bytes, two a request: numbers, no content.
Whoever asks names how far back; nothing is remembered of those who asked.
"""

import time
from collections.abc import Callable

import numpy as np

from actors.collector.single_requests import ARRIVAL, ROW, Told

MOST_ROWS = 200_000


class RequestLog:
    """Takes down what happens, some 0.3 µs each. `clock` gives Unix seconds."""

    def __init__(self, clock: Callable[[], float] = time.time, most_rows: int = MOST_ROWS) -> None:
        self._clock = clock
        self._rows = np.zeros(most_rows, ROW)
        self._written = 0
        self._began_s = clock()

    def arrived(self, input_tokens: int) -> None:
        """A valid request is here."""
        self._write(input_tokens, ARRIVAL)

    def completed(self, input_tokens: int, output_tokens: int) -> None:
        """A request has ended well."""
        self._write(input_tokens, output_tokens)

    def told(self, seconds: float) -> Told:
        """What happened in the last `seconds`, as far as it is still here."""
        now_s, whole_since_s = self._clock(), self._began_s
        older, newer = self._rows[:0], self._rows[: self._written]
        if self._written > len(self._rows):
            oldest = self._written % len(self._rows)
            older, newer = self._rows[oldest:], self._rows[:oldest]
            whole_since_s = float(older["at_s"][0])
        rows = np.concatenate([part[part["at_s"] > now_s - seconds] for part in (older, newer)])
        return Told(now_s, whole_since_s, rows)

    def _write(self, input_tokens: int, output_tokens: int) -> None:
        self._rows[self._written % len(self._rows)] = (self._clock(), input_tokens, output_tokens)
        self._written += 1
