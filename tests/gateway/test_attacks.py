"""Hostile clients beside a well-behaved one, against a gateway that is a process of its own.

    gateway      a process (`tests.gateway.attacked`)
    attackers    a process at low priority, one attack at a time (`tests.gateway.attackers`)
    client       this process: a stream of 8 tokens on a new connection, 10 a second, and /ready as often

What is held is read when the attack is over and the gateway's times for slow clients are past. `make test`
has the attacks that cost little: one that leaves, one that asks for too much, one that never ends its head.
"""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import httpx
import pytest

from tests.gateway.attackers import ATTACKS, CLOSED, completion, connected, head
from tests.patience import PATIENCE_S

PERIOD_S, TOKENS = 0.1, 8
SETTLED_WITHIN_S = 90.0

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


def _gateway(limit_s: float) -> Iterator[int]:
    """The port of a gateway in a process of its own; clients that keep it waiting have `limit_s`."""
    command = [sys.executable, "-m", "tests.gateway.attacked", str(limit_s)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            port = int(json.loads(process.stdout.readline())["port"])
            # What is made with the first request stays: threads, descriptors.
            asyncio.run(_client(port, 0.5))
            yield port
        finally:
            process.terminate()


@contextmanager
def _attackers(name: str, port: int, seconds: float) -> Iterator[subprocess.Popen[bytes]]:
    """The attackers in a process of their own."""
    attacker = [sys.executable, "-m", "tests.gateway.attackers", name, str(port), str(seconds)]
    with subprocess.Popen(["nice", "-n", "10", *attacker], stdout=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.terminate()


async def _client(port: int, seconds: float) -> list[str]:
    """A well-behaved client for so long: what went wrong."""
    faults: list[str] = []
    async with asyncio.TaskGroup() as group:
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            group.create_task(_one(port, completion(TOKENS), faults))
            group.create_task(_one(port, head("/ready", method="GET"), faults))
            await asyncio.sleep(PERIOD_S)
    return faults


async def _one(port: int, request: bytes, faults: list[str]) -> None:
    """One request, whose answer is read to its end."""
    try:
        with await connected(port) as connection:
            await connection.send(request)
            answer = await connection.read()
            if not answer.startswith(b"HTTP/1.1 200"):
                faults.append(answer[:12].decode(errors="replace"))
            elif b"event-stream" in answer:
                while not answer.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n"):
                    more = await connection.read()
                    if not more:
                        faults.append("cut off")
                        return
                    answer += more
    except OSError as error:
        faults.append(type(error).__name__)


def _held(port: int) -> Mapping[str, int]:
    found: Mapping[str, int] = httpx.get(f"http://127.0.0.1:{port}/probe", timeout=60.0).json()
    return found


def _settled(port: int, before: Mapping[str, int]) -> Mapping[str, int]:
    """What is held once nothing is left of the attack, or when that was waited for long enough."""
    end_s = time.monotonic() + SETTLED_WITHIN_S
    while any((after := _held(port))[name] > before[name] for name in before):
        if time.monotonic() > end_s:
            break
        time.sleep(0.5)
    return after


@pytest.fixture(scope="module")
def lenient() -> Iterator[int]:
    yield from _gateway(LONG_S)


@pytest.fixture(scope="module")
def strict() -> Iterator[int]:
    yield from _gateway(SHORT_S)


@pytest.mark.parametrize(
    "name", [name if name in CHEAP else pytest.param(name, marks=pytest.mark.slow) for name in ATTACKS]
)
def test_others_are_served_and_nothing_is_left_over(request: pytest.FixtureRequest, name: str) -> None:
    port: int = request.getfixturevalue("lenient" if name in CHEAP else "strict")
    before, seconds = _held(port), CHEAP.get(name, ATTACK_S)
    with _attackers(name, port, seconds) as process:
        faults = asyncio.run(_client(port, seconds))
        answers = json.loads(process.communicate()[0])
    assert not faults
    assert answers.keys() <= ANSWERS[name]
    assert _settled(port, before) == before
