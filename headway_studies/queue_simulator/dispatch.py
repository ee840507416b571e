"""Push and pull: when a waiting request starts, on which consumer, and how full each consumer is.

Push. A request joins the queue of one consumer on arrival and stays there. The head of that queue starts when
`load + its load ≤ 1`; until then it holds the consumer, and nobody passes it. A consumer's load for
`least-load-push` is that of all that runs and waits there, plus the newcomer's own.

Pull. A request waits in the global queue. The head of the first line starts on a consumer with room, the one
that is least (least-load) or most (bin-pack) loaded with the request in it; equals: the first in the set-up's
order. A head that fits nowhere holds every consumer that serves its pattern; others may start on consumers
that do not. Under bin-pack it holds them only when `Passing` says so: until then the next line's head may use
the room.
"""

import heapq
from collections.abc import Callable, Sequence
from math import inf
from typing import Protocol

import numpy as np

from headway_studies.queue_simulator.load import QueueArrivals
from headway_studies.queue_simulator.model import ROUNDING, Setup
from headway_studies.queue_simulator.waiting import (
    DispatchPolicy,
    DispatchRouting,
    Line,
    Passing,
    WaitingLines,
)

FULL = 1 + ROUNDING
NOWHERE = -1


class ConsumerFleet:
    """Loads and running requests of all consumers. Tables are indexed [consumer][pattern]."""

    def __init__(self, setup: Setup, arrivals: QueueArrivals) -> None:
        names = [pattern.name for pattern in setup.patterns]
        consumers = setup.consumers
        self.cost = [
            [one.profiles[name].load if name in one.profiles else inf for name in names] for one in consumers
        ]
        self.latency_s = [
            [one.profiles[name].latency_s if name in one.profiles else inf for name in names]
            for one in consumers
        ]
        self.serving = [[at for at, one in enumerate(consumers) if name in one.profiles] for name in names]
        self.slo_s = [pattern.slo_s for pattern in setup.patterns]
        self.arrival_s: list[float] = arrivals.time_s.tolist()
        self.pattern: list[int] = arrivals.pattern.tolist()
        self.factor: list[float] = arrivals.factor.tolist()
        self.started_s = [0.0] * len(self.pattern)
        self.service_s = [0.0] * len(self.pattern)
        self.consumer = [NOWHERE] * len(self.pattern)
        self.load = [0.0] * len(consumers)
        self._running = [0] * len(consumers)
        self._ends: list[tuple[float, int]] = []

    @property
    def next_end_s(self) -> float:
        """When the next request ends; inf if none runs."""
        return self._ends[0][0] if self._ends else inf

    def has_room(self, consumer: int, pattern: int) -> bool:
        """True if one more request may start there."""
        return self.load[consumer] + self.cost[consumer][pattern] <= FULL

    def start(self, request: int, consumer: int, now_s: float) -> None:
        """The request leaves its queue and runs for its latency."""
        pattern = self.pattern[request]
        service_s = self.latency_s[consumer][pattern] * self.factor[request]
        self.started_s[request], self.service_s[request] = now_s, service_s
        self.consumer[request] = consumer
        self.load[consumer] += self.cost[consumer][pattern]
        self._running[consumer] += 1
        heapq.heappush(self._ends, (now_s + service_s, request))

    def end_next(self) -> int:
        """The next request ends; its consumer. An empty consumer has load 0, whatever rounding has left."""
        _, request = heapq.heappop(self._ends)
        consumer = self.consumer[request]
        self._running[consumer] -= 1
        rest = self.load[consumer] - self.cost[consumer][self.pattern[request]]
        self.load[consumer] = rest if self._running[consumer] else 0.0
        return consumer

    def fastest_s(self) -> Sequence[float]:
        """Per pattern, the least latency that any consumer has: what a global queue may hope for."""
        return [min(column) for column in zip(*self.latency_s, strict=True)]


class Dispatch(Protocol):
    """Reactions to the loop's events; both start what can start."""

    def arrived(self, request: int, now_s: float) -> None:
        """A request has arrived."""

    def freed(self, consumer: int, now_s: float) -> None:
        """A request has ended on a consumer."""


def make_dispatch(policy: DispatchPolicy, fleet: ConsumerFleet, generator: np.random.Generator) -> Dispatch:
    """The dispatch of a policy; the generator serves random-push alone."""
    return _Pull(policy, fleet) if policy.routing.is_pull else _Push(policy, fleet, generator)


class _Push:
    def __init__(self, policy: DispatchPolicy, fleet: ConsumerFleet, generator: np.random.Generator) -> None:
        self._fleet = fleet
        self._queues = [
            WaitingLines(policy.queue, fleet.arrival_s, latency_s, fleet.slo_s)
            for latency_s in fleet.latency_s
        ]
        self._assigned = [0.0] * len(self._queues)
        self._generator = generator
        is_random = policy.routing is DispatchRouting.RANDOM_PUSH
        self._choose: Callable[[int], int] = self._any if is_random else self._least_loaded

    def arrived(self, request: int, now_s: float) -> None:
        pattern = self._fleet.pattern[request]
        consumer = self._choose(pattern)
        self._queues[consumer].add(request, pattern)
        self._assigned[consumer] += self._fleet.cost[consumer][pattern]
        self.freed(consumer, now_s)

    def freed(self, consumer: int, now_s: float) -> None:
        fleet, queue = self._fleet, self._queues[consumer]
        while queue.count:
            _, pattern, line = queue.ranked(now_s)[0]
            if not fleet.has_room(consumer, pattern):
                return
            self._assigned[consumer] -= fleet.cost[consumer][pattern]
            fleet.start(queue.take(line), consumer, now_s)

    def _any(self, pattern: int) -> int:
        serving = self._fleet.serving[pattern]
        return serving[int(self._generator.integers(len(serving)))]

    def _least_loaded(self, pattern: int) -> int:
        load, cost, assigned = self._fleet.load, self._fleet.cost, self._assigned
        return min(self._fleet.serving[pattern], key=lambda at: load[at] + assigned[at] + cost[at][pattern])


class _Pull:
    def __init__(self, policy: DispatchPolicy, fleet: ConsumerFleet) -> None:
        self._fleet = fleet
        self._queue = WaitingLines(policy.queue, fleet.arrival_s, fleet.fastest_s(), fleet.slo_s)
        is_packing = policy.routing is DispatchRouting.BIN_PACK_PULL
        self._sign = -1.0 if is_packing else 1.0
        self._passing = policy.passing if is_packing else Passing.NEVER

    def arrived(self, request: int, now_s: float) -> None:
        self._queue.add(request, self._fleet.pattern[request])
        self._start_all(now_s)

    def freed(self, consumer: int, now_s: float) -> None:
        del consumer
        self._start_all(now_s)

    def _start_all(self, now_s: float) -> None:
        while self._queue.count and self._start_one(now_s):
            pass

    def _start_one(self, now_s: float) -> bool:
        held: set[int] = set()
        for _, pattern, line in self._queue.ranked(now_s):
            consumer = self._place(pattern, held)
            if consumer != NOWHERE:
                self._fleet.start(self._queue.take(line), consumer, now_s)
                return True
            if self._holds(line, pattern, now_s):
                held.update(self._fleet.serving[pattern])
                if len(held) == len(self._fleet.load):
                    return False
        return False

    def _place(self, pattern: int, held: set[int]) -> int:
        """The least or the most loaded consumer with room that nobody holds; NOWHERE if there is none."""
        fleet, best, found = self._fleet, 0.0, NOWHERE
        for at in fleet.serving[pattern]:
            if fleet.has_room(at, pattern) and at not in held:
                rank = self._sign * (fleet.load[at] + fleet.cost[at][pattern])
                if found == NOWHERE or rank < best:
                    best, found = rank, at
        return found

    def _holds(self, line: Line, pattern: int, now_s: float) -> bool:
        if self._passing is Passing.SLACK:
            return self._queue.slack_s(line[0], pattern, now_s) < 0
        return self._passing is Passing.NEVER
