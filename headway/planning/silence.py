"""Parts that have work and make no progress: engines, gateways, actors.

    work       requests of an engine; 1 of a part that only has to answer
    progress   anything that changes as soon as a part has done something: tokens, the time of an answer

A part is silent once it has had work, and the same progress, for `after_s`. A part that does not answer has
made none. The first sight of a part counts as progress: whether parts start is for others to see.
"""

from collections.abc import Collection, Hashable
from dataclasses import dataclass
from typing import NamedTuple

SILENT_S = 6.0
"""Many iterations of an engine, and many answers of an actor; so that a silence is known within 10 s."""


class Silence(NamedTuple):
    """A part that has been silent since then, and its work."""

    part: str
    since_s: float
    work: int


@dataclass(slots=True)
class _Known:
    progress: Hashable
    since_s: float
    work: int


class Watch:
    """The parts so far. All times are of one clock."""

    def __init__(self, after_s: float = SILENT_S) -> None:
        self._after_s = after_s
        self._parts: dict[str, _Known] = {}
        self._looked_s: float | None = None

    def begin(self, now_s: float) -> None:
        """A look begins. What the watcher itself stood still is nobody's silence."""
        stood_s = 0.0 if self._looked_s is None else now_s - self._looked_s
        if stood_s > self._after_s / 2.0:
            for known in self._parts.values():
                known.since_s += stood_s
        self._looked_s = now_s

    def heard(self, now_s: float, part: str, work: int, progress: Hashable) -> None:
        """The part says so."""
        known = self._parts.get(part)
        if known is None or not known.work or known.progress != progress:
            self._parts[part] = _Known(progress, now_s, work)
        else:
            known.work = work

    def unheard(self, now_s: float, part: str, work: int) -> None:
        """The part was asked, and has not answered in time."""
        known = self._parts.get(part)
        self.heard(now_s, part, work, None if known is None else known.progress)

    def keep(self, parts: Collection[str]) -> None:
        """Forget all but these."""
        self._parts = {part: known for part, known in self._parts.items() if part in parts}

    def silent(self, now_s: float) -> list[Silence]:
        """The silent parts, the oldest silence first."""
        found = [
            Silence(part, known.since_s, known.work)
            for part, known in self._parts.items()
            if known.work and now_s - known.since_s >= self._after_s
        ]
        return sorted(found, key=lambda silence: silence.since_s)
