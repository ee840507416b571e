"""What is compared: how a request finds its consumer, and which of the waiting requests is next.

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
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum


class Routing(Enum):
    """How a request finds its consumer."""

    RANDOM_PUSH = "random-push"
    LEAST_LOAD_PUSH = "least-load-push"
    LEAST_LOAD_PULL = "least-load-pull"
    BIN_PACK_PULL = "bin-pack-pull"

    @property
    def is_pull(self) -> bool:
        """Whether requests wait in one global queue."""
        return self in (Routing.LEAST_LOAD_PULL, Routing.BIN_PACK_PULL)


class QueuePolicy(Enum):
    """Which of the waiting requests is next."""

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
class Policy:
    """One row of the comparison."""

    routing: Routing
    queue: QueuePolicy
    passing: Passing = Passing.SLACK

    @property
    def label(self) -> str:
        """`least-load-pull:slo`, as `--policies` takes it."""
        return f"{self.routing.value}:{self.queue.value}"


def all_policies(
    routings: Iterable[Routing] = Routing, passing: Passing = Passing.SLACK
) -> tuple[Policy, ...]:
    """Each of the routings with each queue policy."""
    return tuple(
        Policy(routing=routing, queue=queue, passing=passing) for routing in routings for queue in QueuePolicy
    )
