"""Patterns, consumers, and what a request costs (AIBrix's model).

    capacity(P) = throughput_rps(P) × latency_s(P)      requests in parallel, by Little's law L = λ W
    load(P)     = 1 / capacity(P)                       what one running request takes of its consumer

A consumer (one GPU with its queue) runs requests as long as their loads sum to at most 1; each takes its
latency, however many run beside it. With a capacity below 1 a single request could never start: it is an
error. A pattern that is missing in a consumer's profiles is not served there.

Of the document's set-ups, "consumer throughput: 3,774" is taken for 3.774, and `multi` has four consumers,
the least that carry its load. docs/queue-simulator.md says what follows from that.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace


class QueueingError(ValueError):
    """A set-up that cannot be simulated; the text names the pattern or the consumer."""


ROUNDING = 1e-9
"""Loads are sums of floats: a consumer is full at 1 plus this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """A producer: Poisson arrivals of one kind of request, with a target for wait + latency."""

    name: str
    arrival_rps: float
    slo_s: float

    def __post_init__(self) -> None:
        if not (self.arrival_rps > 0 and self.slo_s > 0):
            raise QueueingError(f"pattern {self.name}: arrival_rps and slo_s must be above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One GPU on one pattern: the highest rate within the SLO, and E2E latency without a wait."""

    throughput_rps: float
    latency_s: float

    def __post_init__(self) -> None:
        if not (self.throughput_rps > 0 and self.latency_s > 0):
            raise QueueingError("throughput_rps and latency_s must be above 0")
        if self.capacity < 1 - ROUNDING:
            raise QueueingError(
                f"capacity {self.capacity:.3g} = throughput_rps × latency_s is below 1, "
                "so not one request could run; leave the pattern out here"
            )

    @property
    def capacity(self) -> float:
        """Requests in parallel."""
        return self.throughput_rps * self.latency_s

    @property
    def load(self) -> float:
        """The share of the consumer that one request takes, at most 1."""
        return min(1.0, 1 / self.capacity)


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumer:
    """One GPU: its type, and its profile of each pattern that it serves, by the pattern's name."""

    kind: str
    profiles: Mapping[str, Profile]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Producers and consumers; QueueingError if a pattern is served nowhere or a profile has no pattern."""

    name: str
    patterns: tuple[Pattern, ...]
    consumers: tuple[Consumer, ...]

    def __post_init__(self) -> None:
        names = [pattern.name for pattern in self.patterns]
        if not names or not self.consumers:
            raise QueueingError("at least one pattern and one consumer are needed")
        if len(set(names)) < len(names):
            raise QueueingError("two patterns have the same name")
        served = {name for consumer in self.consumers for name in consumer.profiles}
        if unknown := sorted(served - set(names)):
            raise QueueingError(f"a consumer has a profile of {unknown[0]}, which is no pattern")
        if missing := [name for name in names if name not in served]:
            raise QueueingError(f"pattern {missing[0]}: no consumer serves it")

    @property
    def arrival_rps(self) -> float:
        """All patterns together."""
        return sum(pattern.arrival_rps for pattern in self.patterns)

    def scaled(self, factor: float) -> "Setup":
        """All arrival rates times a factor."""
        patterns = (replace(pattern, arrival_rps=pattern.arrival_rps * factor) for pattern in self.patterns)
        return replace(self, patterns=tuple(patterns))

    def resized(self, count: int) -> "Setup":
        """As many consumers of the one type that there is; QueueingError if there are several types."""
        if any(consumer != self.consumers[0] for consumer in self.consumers):
            raise QueueingError("the number of consumers can only be set where all are alike")
        return replace(self, consumers=self.consumers[:1] * count)


Row = tuple[str, float, float, float, float]
"""Name, arrival rate, latency in s, consumer throughput, SLO in s: the columns of the document's tables."""

IDEAL: tuple[Row, ...] = (("short", 4.0, 0.5, 4.1, 2.0), ("long", 4.0, 5.0, 1.0, 20.0))
MULTI: tuple[Row, ...] = (
    ("a", 0.642, 6.7, 3.774, 20.0),
    ("b", 4.2, 1.4, 8.089, 5.0),
    ("c", 0.535, 7.3, 1.969, 20.0),
    ("d", 2.622, 8.3, 0.999, 20.0),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Documented:
    """The document's result lines for one set-up, in the names used here."""

    wait: str
    violations: str


def _setup(name: str, rows: tuple[Row, ...], consumers: int) -> Setup:
    patterns = tuple(Pattern(name=row[0], arrival_rps=row[1], slo_s=row[4]) for row in rows)
    profiles = {row[0]: Profile(latency_s=row[2], throughput_rps=row[3]) for row in rows}
    return Setup(
        name=name, patterns=patterns, consumers=(Consumer(kind="gpu", profiles=profiles),) * consumers
    )


SETUPS: Mapping[str, Setup] = {
    setup.name: setup
    for setup in (
        _setup("ideal-single", IDEAL, 1),
        _setup("ideal-double", IDEAL, 2),
        _setup("multi", MULTI, 4),
    )
}

_WAITS: Mapping[str, str] = {
    "ideal-single": "bin-pack-pull < least-load-pull < least-load-push < random-push",
    "ideal-double": "bin-pack-pull = least-load-pull < least-load-push < random-push",
    "multi": "bin-pack-pull = least-load-pull = least-load-push < random-push",
}


def documented(setup: Setup) -> Documented | None:
    """The result lines of the document; None unless the patterns are those of one of its set-ups."""
    known = SETUPS.get(setup.name)
    if known is None or known.patterns != setup.patterns:
        return None
    return Documented(wait=_WAITS[setup.name], violations="slo < simple")
