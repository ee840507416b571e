"""What the demo saw, second by second: replica counts, load and attainment. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

COUNTS = ("desired", "starting", "ready", "draining")


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """One look: seconds since the load began, per role its four counts, what clients saw so far."""

    time_s: float
    pools: Mapping[str, Mapping[str, int]]
    rate_rps: float
    in_flight: int
    attainment: float | None
    failed: int
    decision: Mapping[str, Any] | None = None


class History:
    """All moments."""

    def __init__(self) -> None:
        self.moments: list[Moment] = []

    def add(self, moment: Moment) -> None:
        """Remember a look."""
        self.moments.append(moment)

    @property
    def roles(self) -> tuple[str, ...]:
        """The pools there are."""
        return tuple(self.moments[0].pools) if self.moments else ()

    def every(self, seconds: float) -> Iterator[Moment]:
        """The first moment of each period of so many seconds, and the last of all."""
        due_s = float("-inf")
        for place, moment in enumerate(self.moments):
            if moment.time_s >= due_s or place == len(self.moments) - 1:
                yield moment
                due_s = (moment.time_s // seconds + 1) * seconds

    def sampled(self, most: int) -> list[Moment]:
        """At most so many moments, evenly spread, ending with the last."""
        step = -(-len(self.moments) // most) if self.moments else 1
        return self.moments[::-1][::step][::-1]

    def replica_seconds(self, role: str) -> float:
        """Seconds that the replicas of a role existed, from start to gone, added up."""
        return sum(
            (after.time_s - before.time_s)
            * sum(before.pools[role][name] for name in ("starting", "ready", "draining"))
            for before, after in zip(self.moments, self.moments[1:], strict=False)
        )

    def highest(self, role: str, count: str = "ready") -> int:
        """The most replicas that a role had."""
        return max((moment.pools[role][count] for moment in self.moments), default=0)

    def series(self, role: str) -> dict[str, list[Any]]:
        """The counts of a role over time, a point where one changed; keys as in a simulation's result."""
        changes = list(self._changes(role))
        columns: dict[str, list[Any]] = {"time_s": [max(moment.time_s, 0.0) for moment in changes]}
        return columns | {name: [moment.pools[role][name] for moment in changes] for name in COUNTS}

    def _changes(self, role: str) -> Iterator[Moment]:
        last: Mapping[str, int] | None = None
        for moment in self.moments:
            if moment.pools[role] != last:
                last = moment.pools[role]
                yield moment


def read_pools(status: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    """The counts of a status document; an unknown one is 0."""
    return {
        role: {name: int(pool.get(name) or 0) for name in COUNTS} for role, pool in status["pools"].items()
    }


BARS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], top: float) -> str:
    """Values as bars; `top` is the full height."""
    scale = (len(BARS) - 1) / top if top > 0 else 0.0
    return "".join(BARS[min(round(max(value, 0.0) * scale), len(BARS) - 1)] for value in values)
