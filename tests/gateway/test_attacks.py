"""Hostile clients beside a well-behaved one, against a gateway that is a process of its own.

How fast it stays is measured by `python -m benchmarks attacks`. `make test` has the attacks that cost little:
one that leaves, one that asks for too much, one that never ends its head.
"""

import asyncio
import json
from collections.abc import Iterator

import pytest

from benchmarks.attackers import ATTACKS, CLOSED
from benchmarks.attacks import HELD, Gateway, attackers, client, gateway, settled
from tests.patience import PATIENCE_S

ATTACK_S = 6.0
"""Longer than the gateway waits for anything, which is longer than a busy machine keeps the good client."""
CHEAP = {"disconnects": 1.5, "many_stops": 1.5, "endless_headers": 1.5}
"""Those that end without waiting for the gateway's limits, and the seconds that they are given."""
SHORT_S, LONG_S = 5.0, PATIENCE_S
"""Limits that the dear attacks wait for, and such as the good client keeps on the busiest machine."""

TOO_LARGE = (
    "many_messages_10",
    "many_messages_20",
    "many_objects",
    "many_numbers",
    "large_prompts",
    "deep_json",
)
ANSWERS = {
    **{name: {CLOSED} for name in ATTACKS},
    # On a busy machine so much does not come in time.
    **{name: {"413", "408", CLOSED} for name in TOO_LARGE},
    **{name: {"408", CLOSED} for name in ("slow_headers", "idle", "held_bodies", "drips")},
    "many_stops": {"400"},
    "metrics": {"200", CLOSED},
}
"""What attackers may hear. CLOSED: their connection ended before they had read an answer."""


def _gateway(limit_s: float) -> Iterator[Gateway]:
    with gateway(limit_s) as found:
        # What is made with the first request stays: threads, descriptors.
        asyncio.run(client(found.port, 0.5))
        yield found


@pytest.fixture(scope="module")
def lenient() -> Iterator[Gateway]:
    yield from _gateway(LONG_S)


@pytest.fixture(scope="module")
def strict() -> Iterator[Gateway]:
    yield from _gateway(SHORT_S)


@pytest.mark.parametrize(
    "name", [name if name in CHEAP else pytest.param(name, marks=pytest.mark.slow) for name in ATTACKS]
)
def test_others_are_served_and_nothing_is_left_over(request: pytest.FixtureRequest, name: str) -> None:
    running: Gateway = request.getfixturevalue("lenient" if name in CHEAP else "strict")
    before, seconds = running.probe(), CHEAP.get(name, ATTACK_S)
    with attackers(name, running.port, seconds) as process:
        seen = asyncio.run(client(running.port, seconds))
        answers = json.loads(process.communicate()[0])
    assert not seen.faults
    assert answers.keys() <= ANSWERS[name]
    after = settled(running, before)
    assert {held: after[held] for held in HELD} == {held: before[held] for held in HELD}
