"""When ticks are due: a steady grid without drift, which a restart continues.

    due(k + n) = due(k) + n * interval        n = the first whole number that is not in the past, at least 1

Each tick has a number that only rises; the numbers of ticks that were missed are skipped, so that whoever
counts intervals sees the gap. Times are Unix seconds. A clock that was set back would leave the next tick far
in the future: then the grid begins anew.
"""

from dataclasses import dataclass
from math import ceil, floor

SLACK_S = 1e-6
"""Rounding of Unix times."""

LATE_SHARE, LATE_S = 0.1, 1.0
"""A tick that begins later than this share of an interval, or this many seconds, after it was due is late."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """One tick: its number and when it is due."""

    tick: int
    due_s: float

    def late(self, now_s: float, interval_s: float) -> bool:
        """Whether a tick that begins now is late."""
        return now_s - self.due_s > min(LATE_S, LATE_SHARE * interval_s)


def first_beat(now_s: float, interval_s: float) -> Beat:
    """A new grid: the first tick is due when there is one whole interval to look back on."""
    due_s = now_s + interval_s
    return Beat(tick=floor(due_s / interval_s), due_s=due_s)


def next_beat(last: Beat, now_s: float, interval_s: float) -> tuple[Beat, int]:
    """The beat after `last`, and how many were missed in between."""
    if now_s < last.due_s - interval_s:
        return Beat(tick=last.tick + 1, due_s=now_s + interval_s), 0
    steps = max(1, ceil((now_s - last.due_s - SLACK_S) / interval_s))
    return Beat(tick=last.tick + steps, due_s=last.due_s + steps * interval_s), steps - 1
