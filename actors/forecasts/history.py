"""The load of past intervals by tick number, bounded, in the store: what the predictors are rebuilt from.

One value under one key, replaced whole. It belongs to one interval length: counts per 10 s say nothing about
counts per 180 s, so a history of another interval is dropped. A tick number that was seen before, or is
older, is not taken again; numbers that were skipped are intervals that nobody measured.
"""

import json
import logging
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from actors.store import Store

logger = logging.getLogger(__name__)

KEY = "predictor/history"
KEEP = 2000
LONGEST_GAP = 100
"""Missing intervals that the predictors are shown in a row; a longer absence is shown as this many."""

NAN = float("nan")


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """The load of one interval as observed; NaN where it was not measured."""

    tick: int
    requests: float
    isl_tokens: float
    osl_tokens: float

    @property
    def values(self) -> tuple[float, float, float]:
        """As a forecaster takes it."""
        return self.requests, self.isl_tokens, self.osl_tokens


class History:
    """The last `keep` intervals."""

    def __init__(self, store: Store, interval_s: float, keep: int = KEEP) -> None:
        self._store = store
        self._interval_s = interval_s
        self._intervals: deque[Interval] = deque(self._restored(), maxlen=keep)

    def __len__(self) -> int:
        return len(self._intervals)

    @property
    def last_tick(self) -> int | None:
        """The newest tick seen."""
        return self._intervals[-1].tick if self._intervals else None

    def add(self, interval: Interval) -> bool:
        """Keep an interval; False when its tick, or a later one, was seen before."""
        if self.last_tick is not None and interval.tick <= self.last_tick:
            return False
        self._intervals.append(interval)
        self._save()
        return True

    def since(self, tick: int | None) -> list[Interval]:
        """What came after a tick, oldest first, with the intervals that were missed in between as NaN."""
        fresh = [item for item in self._intervals if tick is None or item.tick > tick]
        return list(_with_gaps(fresh, tick))

    def _save(self) -> None:
        rows = [(item.tick, *item.values) for item in self._intervals]
        stored = {"interval_s": self._interval_s, "intervals": rows}
        self._store.put(KEY, json.dumps(stored, separators=(",", ":")).encode())

    def _restored(self) -> list[Interval]:
        try:
            stored = json.loads(self._store.get(KEY) or b"{}")
            if stored.get("interval_s") != self._interval_s:
                return []
            return [_interval(row) for row in stored["intervals"]]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            logger.warning("the stored history of the load cannot be read, it begins anew: %s", error)
            return []


def _interval(row: Sequence[float]) -> Interval:
    tick, requests, isl_tokens, osl_tokens = row
    return Interval(tick=int(tick), requests=requests, isl_tokens=isl_tokens, osl_tokens=osl_tokens)


def _with_gaps(intervals: Sequence[Interval], last: int | None) -> Iterator[Interval]:
    for interval in intervals:
        if last is not None:
            first_missing = max(last + 1, interval.tick - LONGEST_GAP)
            for tick in range(first_missing, interval.tick):
                yield Interval(tick=tick, requests=NAN, isl_tokens=NAN, osl_tokens=NAN)
        last = interval.tick
        yield interval
