"""Requests per window of time, by the time at which they should have left; bounded memory.

When the windows become more than MOST, neighbours are merged and the width doubles.
"""

from dataclasses import dataclass
from typing import Any

from headway.loadgen.records import Outcome, RequestRecord

MOST = 2000


@dataclass(slots=True)
class Window:
    """Sums over the requests of one window."""

    requests: int = 0
    completed: int = 0
    met: int = 0
    output_tokens: int = 0
    ttft_total_s: float = 0.0

    def merge(self, other: "Window") -> None:
        """Take in another window's sums."""
        self.requests += other.requests
        self.completed += other.completed
        self.met += other.met
        self.output_tokens += other.output_tokens
        self.ttft_total_s += other.ttft_total_s


class Windows:
    """All windows of a replay."""

    def __init__(self, width_s: float = 10.0) -> None:
        self.width_s = width_s
        self._windows: dict[int, Window] = {}

    def add(self, record: RequestRecord, *, met: bool) -> None:
        """Count a request that ended."""
        window = self._at(record.intended_s)
        window.requests += 1
        window.output_tokens += record.output_tokens
        if record.outcome is Outcome.OK and record.ttft_s is not None:
            window.completed += 1
            window.met += met
            window.ttft_total_s += record.ttft_s

    def _at(self, time_s: float) -> Window:
        while int(time_s // self.width_s) >= MOST:
            self._widen()
        return self._windows.setdefault(int(time_s // self.width_s), Window())

    def _widen(self) -> None:
        narrow, self._windows = self._windows, {}
        self.width_s *= 2
        for place, window in narrow.items():
            self._windows.setdefault(place // 2, Window()).merge(window)

    def rows(self) -> list[dict[str, Any]]:
        """JSON-able data, in order of time; a window without requests is left out."""
        return [
            {
                "start_s": place * self.width_s,
                "end_s": (place + 1) * self.width_s,
                "requests": window.requests,
                "completed": window.completed,
                "attainment": window.met / window.requests,
                "output_tokens": window.output_tokens,
                "ttft_mean_s": window.ttft_total_s / window.completed if window.completed else None,
            }
            for place, window in sorted(self._windows.items())
        ]
