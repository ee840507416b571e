"""The consumers while a run goes on: who runs where, how full each is, and which request ends next."""

import heapq
from collections.abc import Sequence
from math import inf

from headway.simulation.queueing.arrivals import Arrivals
from headway.simulation.queueing.model import ROUNDING, Profile, Setup

FULL = 1 + ROUNDING
NOWHERE = -1


class Fleet:
    """Loads and running requests of all consumers. Tables are indexed [consumer][pattern]."""

    def __init__(self, setup: Setup, arrivals: Arrivals) -> None:
        names = [pattern.name for pattern in setup.patterns]
        consumers = setup.consumers
        self.cost = [[_load(one.profiles.get(name)) for name in names] for one in consumers]
        self.latency_s = [[_latency(one.profiles.get(name)) for name in names] for one in consumers]
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
        """Whether one more request may start there."""
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


def _load(profile: Profile | None) -> float:
    return inf if profile is None else profile.load


def _latency(profile: Profile | None) -> float:
    return inf if profile is None else profile.latency_s
