"""Durations of an engine's iterations, one number at a time in plain Python.

The same surfaces as the compiled kernel's (`surfaces`), for the engine model that runs on a real
clock: it asks for one iteration at a time, where a call into compiled code costs as much as the look-up, and
its process should start without a compiler. Lists and bisection; a look-up takes about a microsecond.
"""

from bisect import bisect_right
from collections.abc import Sequence

from interp import DecodeTable, PrefillTable, Profile


class IterationTimes:
    """Seconds per iteration of the engine that `profile` describes."""

    def __init__(self, profile: Profile) -> None:
        self._prefill = PrefillTimes(profile.prefill.table)
        self.itl_s = DecodeTimes(profile.decode.table).itl_s
        self.ttft_s = self._prefill.ttft_s
        self.work_s = self._prefill.work_s
        self.empty_s = self._prefill.work_s(0)
        """An iteration that no decode batch pays for, without its work."""


class PrefillTimes:
    """TTFT of whole prompts, and the work curve of chunks (see `surfaces`)."""

    def __init__(self, table: PrefillTable) -> None:
        self._tokens, self._seconds = table.isl_tokens.tolist(), table.ttft_s.tolist()
        nodes, seconds = table.work_nodes()
        self._work_tokens, self._work_s = nodes.tolist(), seconds.tolist()
        self._linear, self._quadratic = table.linear_s_per_token, table.quadratic_s_per_token2

    def ttft_s(self, tokens: int) -> float:
        """Seconds that a prompt of `tokens` takes on an idle engine."""
        return self._at(self._tokens, self._seconds, tokens)

    def work_s(self, tokens: int) -> float:
        """W at `tokens`; the difference of two values is what the tokens between them add."""
        return self._at(self._work_tokens, self._work_s, tokens)

    def _at(self, axis: Sequence[float], seconds: Sequence[float], tokens: int) -> float:
        last = axis[-1]
        if tokens > last:
            return seconds[-1] + (tokens - last) * (self._linear + self._quadratic * (tokens + last))
        cell, part = _locate(axis, tokens)
        return seconds[cell] + part * (seconds[cell + 1] - seconds[cell])


class DecodeTimes:
    """ITL of a batch: bilinear in KV usage and in one over the mean context, held at the table's edges."""

    def __init__(self, table: DecodeTable) -> None:
        self._kv, self._inverse = table.kv.tolist(), table.inv_context.tolist()
        self._itl: list[list[float]] = table.itl_s.tolist()
        self._capacity = table.max_kv_tokens

    def itl_s(self, batch: int, kv_tokens: int) -> float:
        """Seconds of one iteration of `batch` sequences that hold `kv_tokens` together."""
        column, along = _locate(self._kv, kv_tokens / self._capacity)
        row, down = _locate(self._inverse, batch / kv_tokens)
        upper, lower = self._itl[row], self._itl[row + 1]
        left = upper[column] + down * (lower[column] - upper[column])
        right = upper[column + 1] + down * (lower[column + 1] - upper[column + 1])
        return left + along * (right - left)


def _locate(axis: Sequence[float], value: float) -> tuple[int, float]:
    """The cell of ascending `axis` (two nodes or more) that holds `value`, and how far along, in [0, 1]."""
    if value <= axis[0]:
        return 0, 0.0
    if value >= axis[-1]:
        return len(axis) - 2, 1.0
    cell = bisect_right(axis, value) - 1
    return cell, (value - axis[cell]) / (axis[cell + 1] - axis[cell])
