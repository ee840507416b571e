"""Full garbage collections at a moment when they stop little.

Whatever a request leaves goes with its last reference, but for the cycles that the tracebacks of failed ones
make. A full collection looks through all objects of all requests in flight, and nothing goes on meanwhile:
31 ms with 900 streams of a gateway. So Python begins none by itself, and none is done while requests are in
flight unless memory has grown. Young objects are collected as ever.

A Router's requests make no cycles, whatever becomes of them. What it has at a collection is passed over by
the next (`gc.freeze`), which comes once memory has grown by an eighth as much: it looks through what some
5,000 requests are, where 40,000 together took 72 ms.
"""

import asyncio
import gc
import sys
from collections.abc import Callable

QUIET = 100
"""Requests in flight at which a full collection takes 4 ms at the most."""

LOOK_EVERY_S, GROWS_EVERY_S = 60.0, 1.0
"""Seconds between two quiet collections, and between two looks at the memory of a process in parts."""

MOST_BLOCKS = 2_000_000
"""Blocks of memory, some 170 MB, that may come to be since the last one: what 40,000 requests in flight at a
Router take, or what half an hour leaves in which half of 400 requests a second fail."""

NEVER = 2**31 - 1


class SharedCollecting:
    """The same for Routers of one process that come and go, each with its requests in flight."""

    def __init__(self) -> None:
        self._parts: dict[object, Callable[[], int]] = {}
        self._task: asyncio.Task[None] | None = None

    def join(self, part: object, in_flight: Callable[[], int]) -> None:
        """Count those of this part, too; on the event loop of all."""
        self._parts[part] = in_flight
        if self._task is None:
            self._task = asyncio.create_task(collect_when_quiet(self._in_flight, in_parts=True))

    def leave(self, part: object) -> None:
        """Count its no more."""
        del self._parts[part]

    def _in_flight(self) -> int:
        return sum(count() for count in self._parts.values())


async def collect_when_quiet(in_flight: Callable[[], int], *, in_parts: bool = False) -> None:
    """Until it is cancelled, do the full collections of a process with so many requests in flight.

    `in_parts`: what lives at one is part of no cycle later on.
    """
    young, middle, old = gc.get_threshold()
    gc.set_threshold(young, middle, NEVER)
    # What there is by now stays.
    gc.collect()
    gc.freeze()
    growth, look_s = (MOST_BLOCKS // 8, GROWS_EVERY_S) if in_parts else (MOST_BLOCKS, LOOK_EVERY_S)
    most, waited_s = sys.getallocatedblocks() + growth, 0.0
    try:
        while True:
            await asyncio.sleep(look_s)
            waited_s += look_s
            quiet = waited_s >= LOOK_EVERY_S and in_flight() <= QUIET
            if quiet or sys.getallocatedblocks() > most:
                gc.collect()
                if in_parts:
                    gc.freeze()
                most, waited_s = sys.getallocatedblocks() + growth, 0.0
    finally:
        gc.set_threshold(young, middle, old)
