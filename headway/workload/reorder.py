"""Putting rows in order of time within a bounded window, before they reach the spool.

With window w and the latest arrival so far L, a row earlier than L − w is refused; every row up to L − w
can therefore no longer be overtaken and is passed on. Rows of the same instant keep their order in the
file. Memory holds the rows of one window.
"""

from math import inf

import numpy as np
import numpy.typing as npt

from headway.workload.spool import RECORD, Records


class TooLateError(Exception):
    """Row `index` of the pushed records is `lag_s` earlier than a row before it, beyond the window.

    A signal inside this package: `ingest` knows file and line and raises the TraceError.
    """

    def __init__(self, index: int, lag_s: float) -> None:
        super().__init__(f"row {index} is {lag_s:g} s late")
        self.index = index
        self.lag_s = lag_s


class Reorderer:
    """Sorts a stream of records; `reordered` counts those that came after a later one."""

    def __init__(self, window_s: float) -> None:
        self.reordered = 0
        self._window_s = window_s
        self._latest = -inf
        self._pending: Records = np.empty(0, RECORD)

    def push(self, records: Records) -> Records:
        """Add records in file order, return those that are final, sorted; raises TooLateError."""
        if not len(records):
            return records
        lag_s = self._lag_s(np.ascontiguousarray(records["arrival_s"]))
        late = int(np.count_nonzero(lag_s > 0))
        self.reordered += late
        self._pending = np.concatenate([self._pending, records])
        if late:
            self._pending = self._pending[np.argsort(self._pending["arrival_s"], kind="stable")]
        return self._split(self._latest - self._window_s)

    def flush(self) -> Records:
        """The rest, sorted."""
        return self._split(inf)

    def _lag_s(self, arrival: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """How much earlier each row is than the latest up to and including it."""
        latest = np.maximum.accumulate(np.concatenate([[self._latest], arrival]))[1:]
        lag_s: npt.NDArray[np.float64] = latest - arrival
        beyond = np.flatnonzero(lag_s > self._window_s)
        if len(beyond):
            raise TooLateError(index=int(beyond[0]), lag_s=float(lag_s[beyond[0]]))
        self._latest = float(latest[-1])
        return lag_s

    def _split(self, final_s: float) -> Records:
        arrival = np.ascontiguousarray(self._pending["arrival_s"])
        cut = int(np.searchsorted(arrival, final_s, side="right"))
        final, self._pending = self._pending[:cut], self._pending[cut:].copy()
        return final
