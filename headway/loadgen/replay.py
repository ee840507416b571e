"""The open loop: each request leaves at its time, whatever became of those before it.

One task walks through the trace and sleeps until the next request is due; each request is a task of its
own. A request that is late is sent at once; its latency still counts from the time at which it was due.
Beyond `max_in_flight` a request is not sent but counted as failed.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from time import monotonic

import aiohttp

from headway.loadgen.client import Clock, make_session, perform
from headway.loadgen.plan import LoadPlan, PlannedRequest, planned_requests
from headway.loadgen.records import Ending, RequestOutcome, RequestRecord, StreamTimer
from headway.loadgen.tally import LoadTally
from headway.workload import Trace

YIELD_EVERY = 64
"""A sender that is behind still lets the streams be read, after so many requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayProgress:
    """A replay on its way: seconds since it began, requests sent and in flight, and the totals."""

    elapsed_s: float
    sent: int
    in_flight: int
    tally: LoadTally


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayCallbacks:
    """Functions to call with every record, and with the progress each `progress_every_s`."""

    on_record: Callable[[RequestRecord], None] | None = None
    on_progress: Callable[[ReplayProgress], Awaitable[None] | None] | None = None
    progress_every_s: float = 0.5


NO_CALLBACKS = ReplayCallbacks()


async def replay(
    trace: Trace, plan: LoadPlan, callbacks: ReplayCallbacks = NO_CALLBACKS, stop: asyncio.Event | None = None
) -> LoadTally:
    """Replay a trace; ends when the last request has, or soon after `stop` is set, with the totals so far."""
    async with make_session(plan) as session:
        loop = OpenLoop(session, plan, callbacks)
        return await loop.run(trace, stop or asyncio.Event())


class OpenLoop:
    """One replay."""

    def __init__(self, session: aiohttp.ClientSession, plan: LoadPlan, callbacks: ReplayCallbacks) -> None:
        self._session, self._plan, self._callbacks = session, plan, callbacks
        self._tally = LoadTally(plan.slo)
        self._tasks: set[asyncio.Task[None]] = set()
        self._sent = 0
        self._clock: Clock = clock_from_now()

    async def run(self, trace: Trace, stop: asyncio.Event) -> LoadTally:
        """Send everything, wait for the rest, call the callbacks."""
        reporter = asyncio.create_task(self._report())
        try:
            sender = asyncio.create_task(self._everything(trace))
            stopped = asyncio.create_task(stop.wait())
            await asyncio.wait({sender, stopped}, return_when=asyncio.FIRST_COMPLETED)
            stopped.cancel()
            if sender.done():
                await sender
            else:
                await _cancel({sender})
        finally:
            self._tally.unfinished = len(self._tasks)
            await _cancel({reporter, *self._tasks})
        return self._tally

    async def _everything(self, trace: Trace) -> None:
        requests = planned_requests(trace, self._plan)
        first = next(requests)
        self._clock = clock_from_now()
        for number, planned in enumerate(chain((first,), requests)):
            # A sender that is behind never sleeps; without this the streams would not be read.
            if number % YIELD_EVERY == 0:
                await asyncio.sleep(0)
            while (left_s := planned.at_s - self._clock()) > 0:
                await asyncio.sleep(left_s)
            self._begin(planned)
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _begin(self, planned: PlannedRequest) -> None:
        timer = StreamTimer(
            index=planned.index,
            intended_s=planned.at_s,
            input_tokens=planned.input_tokens,
            requested_tokens=planned.output_tokens,
        )
        if len(self._tasks) >= self._plan.max_in_flight:
            self._ended(timer, Ending(outcome=RequestOutcome.CLIENT_OVERLOAD))
            return
        self._sent += 1
        task = asyncio.create_task(self._request(planned, timer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _request(self, planned: PlannedRequest, timer: StreamTimer) -> None:
        self._ended(timer, await perform(self._session, self._plan, planned, timer, self._clock))

    def _ended(self, timer: StreamTimer, ending: Ending) -> None:
        record = timer.end(self._clock(), ending)
        self._tally.add(record)
        if self._callbacks.on_record is not None:
            self._callbacks.on_record(record)

    async def _report(self) -> None:
        callback = self._callbacks.on_progress
        while callback is not None:
            await asyncio.sleep(self._callbacks.progress_every_s)
            pending = callback(self.progress())
            if pending is not None:
                await pending

    def progress(self) -> ReplayProgress:
        """The present state."""
        return ReplayProgress(
            elapsed_s=self._clock(), sent=self._sent, in_flight=len(self._tasks), tally=self._tally
        )


def clock_from_now() -> Clock:
    """Seconds since now; finer than an event loop's own clock, which may count milliseconds."""
    began_s = monotonic()
    return lambda: monotonic() - began_s


async def _cancel(tasks: set[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    for task in tasks:
        with suppress(asyncio.CancelledError):
            await task
