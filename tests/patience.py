"""Waiting for what must come. Nothing is judged by how long that takes: a busy machine is no failure."""

import asyncio
import time
from collections.abc import Callable

import pytest

from actors.store import InOrder

PATIENCE_S = 600.0
"""For what comes in a second or two here; a busy machine may take long."""


def until(holds: Callable[[], bool]) -> None:
    """Wait until it holds; an assertion fails if it never does."""
    end_s = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end_s, "waited in vain"
        time.sleep(0.005)


async def eventually(holds: Callable[[], bool]) -> None:
    """The same on an event loop, which goes on meanwhile."""
    async with asyncio.timeout(PATIENCE_S):
        while not holds():
            await asyncio.sleep(0.002)


def patient_actors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits of actors' work with stores and engines that are not settings: none runs out by itself."""
    monkeypatch.setattr(InOrder.__init__, "__defaults__", (PATIENCE_S,))
    monkeypatch.setattr("actors.collector.scrape.WRITTEN_S", PATIENCE_S)
    monkeypatch.setattr("actors.collector.engines.LATE_S", PATIENCE_S)


def patient_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same for what verbs ask of servers."""
    for limit in (
        "headway_cli.control.TIMEOUT_S",
        "headway.loadgen.client.ASK_TIMEOUT_S",
        "headway.profiling.sweep.endpoint.ASK_TIMEOUT_S",
    ):
        monkeypatch.setattr(limit, PATIENCE_S)


def with_longer_limits(scenario: Callable[[float], None], *limits_s: float) -> None:
    """Play a scenario in which one limit runs out and everything else is in time.

    On a busy machine the rest may be late too: it is played again with a longer limit. The last one counts.
    """
    for limit_s in limits_s:
        try:
            return scenario(limit_s)
        except Exception:
            if limit_s == limits_s[-1]:
                raise
