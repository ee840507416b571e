"""Waiting requests: the policies that are compared, and the order in which the heads of the lines are due.

Routing
    random-push      on arrival to a random consumer; waits there
    least-load-push  on arrival to the consumer with the least load, running and waiting; may exceed 1
    least-load-pull  waits in one global queue; the head starts on the least loaded consumer with room
    bin-pack-pull    the same, on the fullest consumer with room; room that the head cannot use is filled with
                     the next that fits, see Passing

Queue policy, of the global queue or of each consumer's own
    simple           first come, first served
    slo              a queue per pattern; next is the head with the greatest risk (wait + latency) / SLO
    slo-savable      the same among the heads that, started now, would meet their SLO; the lost ones come
                     after them, first come, first served

Within a pattern all have the same latency and SLO, so the head of its line always has the greatest risk, and
the next request is one of at most as many heads as there are patterns: O(patterns) a pick, whatever waits.

    risk = (wait + latency) / SLO;    slack = SLO − wait − latency;    lost: slack < 0

Under `slo-savable` a head without slack moves to the pattern's second line, once. Time must not go back.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum


class DispatchRouting(Enum):
    """The way in which a request finds its consumer."""

    RANDOM_PUSH = "random-push"
    LEAST_LOAD_PUSH = "least-load-push"
    LEAST_LOAD_PULL = "least-load-pull"
    BIN_PACK_PULL = "bin-pack-pull"

    @property
    def is_pull(self) -> bool:
        """True if requests wait in one global queue."""
        return self in (DispatchRouting.LEAST_LOAD_PULL, DispatchRouting.BIN_PACK_PULL)


class QueuePolicy(Enum):
    """The rule by which the next of the waiting requests is chosen."""

    SIMPLE = "simple"
    SLO = "slo"
    SLO_SAVABLE = "slo-savable"


class Passing(Enum):
    """When bin-pack may start a later request while the first one does not fit: what filling a bin means.

    NEVER: the first one holds all room, as with least-load. SLACK: while the first one, started now, would
    still meet its SLO, so that nobody is passed for ever. ALWAYS: a large request may starve.
    """

    NEVER = "never"
    SLACK = "slack"
    ALWAYS = "always"


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchPolicy:
    """One row of the comparison."""

    routing: DispatchRouting
    queue: QueuePolicy
    passing: Passing = Passing.SLACK

    @property
    def label(self) -> str:
        """`least-load-pull:slo`, as `--policies` takes it."""
        return f"{self.routing.value}:{self.queue.value}"


def all_policies(
    routings: Iterable[DispatchRouting] = DispatchRouting, passing: Passing = Passing.SLACK
) -> tuple[DispatchPolicy, ...]:
    """Each of the routings with each queue policy."""
    return tuple(
        DispatchPolicy(routing=routing, queue=queue, passing=passing)
        for routing in routings
        for queue in QueuePolicy
    )


Line = deque[int]
Ranked = tuple[float, int, Line]
"""Rank (least first), index of the pattern, the line whose head is meant. No two of a pattern are sorted
together, so that lines are never compared."""


class WaitingLines:
    """The queue of one consumer or of all; arrivals per request, latency and SLO per pattern, in seconds."""

    def __init__(
        self,
        policy: QueuePolicy,
        arrival_s: Sequence[float],
        latency_s: Sequence[float],
        slo_s: Sequence[float],
    ) -> None:
        self.count = 0
        self._arrival_s, self._latency_s, self._slo_s = arrival_s, latency_s, slo_s
        self._lines: list[Line] = [deque() for _ in slo_s]
        self._lost: list[Line] = [deque() for _ in slo_s]
        self._order = {
            QueuePolicy.SIMPLE: self._by_arrival,
            QueuePolicy.SLO: self._by_risk,
            QueuePolicy.SLO_SAVABLE: self._savable_first,
        }[policy]

    def add(self, request: int, pattern: int) -> None:
        """A request joins the line of its pattern; numbers of requests rise with their arrival."""
        self._lines[pattern].append(request)
        self.count += 1

    def take(self, line: Line) -> int:
        """The head of a line leaves."""
        self.count -= 1
        return line.popleft()

    def ranked(self, now_s: float) -> list[Ranked]:
        """The lines that are not empty, the one whose head is due first in front."""
        return self._order(now_s)

    def slack_s(self, request: int, pattern: int, now_s: float) -> float:
        """Seconds left until the request, started then, misses its SLO; negative: lost."""
        return self._slo_s[pattern] - (now_s - self._arrival_s[request] + self._latency_s[pattern])

    def _by_arrival(self, _: float) -> list[Ranked]:
        return sorted((line[0], pattern, line) for pattern, line in enumerate(self._lines) if line)

    def _by_risk(self, now_s: float) -> list[Ranked]:
        return sorted(
            (-self._risk(line[0], pattern, now_s), pattern, line)
            for pattern, line in enumerate(self._lines)
            if line
        )

    def _savable_first(self, now_s: float) -> list[Ranked]:
        for pattern, line in enumerate(self._lines):
            while line and self.slack_s(line[0], pattern, now_s) < 0:
                self._lost[pattern].append(line.popleft())
        lost = sorted((line[0], pattern, line) for pattern, line in enumerate(self._lost) if line)
        return self._by_risk(now_s) + lost

    def _risk(self, request: int, pattern: int, now_s: float) -> float:
        return (now_s - self._arrival_s[request] + self._latency_s[pattern]) / self._slo_s[pattern]
