"""The set-ups of document 003, and the orders that it reports for them.

Two things the document leaves open are decided here:
- The first row of the multi-pattern table says "consumer throughput: 3,774". Beside 8.089, 1.969 and 0.999
  that is taken for 3.774, with a comma for the point.
- The number of consumers of `multi` is not given. Four is the least that carries the load: the rates need
  3.59 GPUs, so the load is 0.90 of four.

The ideal bi-patterns need 4/4.1 + 4/1 = 4.98 GPUs; on one or two, as the document says, queues grow for as
long as requests arrive. docs/queue-simulator.md has what follows from that.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from headway.simulation.queueing.model import Consumer, Pattern, Profile, Setup

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
    """What the document reports; None unless the patterns are those of one of its set-ups."""
    known = SETUPS.get(setup.name)
    if known is None or known.patterns != setup.patterns:
        return None
    return Documented(wait=_WAITS[setup.name], violations="slo < simple")
