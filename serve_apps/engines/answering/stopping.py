"""Text is cut at stop strings, the same wherever the borders between chunks are.

The stop string that is complete first wins; of those complete at the same character the one that began first.
Text is held back only while it may be the beginning of a stop string: the longest suffix that is a proper
prefix of one. So what was given out never has to be taken back.
"""

from collections.abc import Sequence

from serve_apps.engines.protocol import FinishReason


class StopCutter:
    """Gives out the text of one output as far as it surely comes before any stop string."""

    __slots__ = ("_held", "_keep", "_longest", "_stopped", "_stops")

    def __init__(self, stops: Sequence[str], *, keep: bool = False) -> None:
        """`keep`: the stop string itself is given out, too."""
        self._stops = tuple(stops)
        self._longest = max(map(len, self._stops), default=1) - 1
        self._held = ""
        self._stopped = False
        self._keep = keep

    def cut(self, text: str, reason: FinishReason | None) -> tuple[str, FinishReason | None]:
        """The text that can leave with a chunk, and why the output ends with it, if it does."""
        text = self._feed(text)
        if self._stopped:
            return text, "stop"
        return (text, None) if reason is None else (text + self._held, reason)

    def _feed(self, text: str) -> str:
        text = self._held + text
        found = _first_stop(text, self._stops)
        if found is not None:
            self._stopped, self._held = True, ""
            end, begin = found
            return text[: end if self._keep else begin]
        keep = len(text) - self._possible_beginning(text)
        self._held = text[keep:]
        return text[:keep]

    def _possible_beginning(self, text: str) -> int:
        """The length of the longest suffix that is a proper prefix of a stop string."""
        for length in range(min(self._longest, len(text)), 0, -1):
            suffix = text[-length:]
            if any(len(stop) > length and stop.startswith(suffix) for stop in self._stops):
                return length
        return 0


def _first_stop(text: str, stops: Sequence[str]) -> tuple[int, int] | None:
    """End and beginning of the stop string that is complete first."""
    found = ((begin + len(stop), begin) for stop in stops if (begin := text.find(stop)) >= 0)
    return min(found, default=None)
