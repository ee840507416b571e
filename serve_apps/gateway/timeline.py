"""What is done for one request, step by step, and when: kept while it runs, read once it has ended.

    route      asked for a place → placed          each attempt has its own
    prefill    called on a replica → its KV is there
    decode     called on a replica → the last token

Times are those of the gateway's clock. What a replica says of its own work (`EngineTimes`) stands with the
call that it answered. A step that was left open ends with the request.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import Literal

from headway.routing.types import Placement
from serve_apps.engines.protocol import EngineRequest, EngineTimes
from serve_apps.tracing.context import TraceContext

LONGEST_ERROR = 500
"""Characters: an engine's words may repeat what a client sent."""

StepName = Literal["route", "prefill", "decode"]


class Step:
    """One of them; as a context it ends with its block, and keeps the error that ended that."""

    __slots__ = ("_clock", "began_s", "ended_s", "error", "name", "replica", "times", "trace")

    def __init__(
        self, name: StepName, replica: str, clock: Callable[[], float], trace: TraceContext | None
    ) -> None:
        self.name, self.replica, self.trace, self._clock = name, replica, trace, clock
        self.began_s, self.ended_s = clock(), 0.0
        self.error = ""
        self.times: EngineTimes | None = None

    def end(self) -> None:
        """It is over, if it was not yet."""
        if not self.ended_s:
            self.ended_s = self._clock()

    def traced(self, request: EngineRequest) -> EngineRequest:
        """The request for this call of a replica, whose spans hang below the call's."""
        if self.trace is None or request.call is None:
            return request
        return replace(request, call=request.call._replace(trace=self.trace.headers()))

    def failed(self, error: BaseException) -> None:
        """It is over, by this error."""
        self.end()
        self.error = f"{type(error).__name__}: {error}".removesuffix(": ")[:LONGEST_ERROR]

    def __enter__(self) -> "Step":
        return self

    def __exit__(self, _: object, error: BaseException | None, __: TracebackType | None) -> None:
        self.end()
        if error is not None:
            self.failed(error)


class Timeline:
    """The steps of one request in order, and where it was placed last; `trace`: its place in one, if any."""

    __slots__ = ("_clock", "placement", "steps", "trace")

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, trace: TraceContext | None = None
    ) -> None:
        self._clock, self.trace = clock, trace
        self.placement: Placement | None = None
        self.steps: list[Step] = []

    def step(self, name: StepName, replica: str = "") -> Step:
        """A step that begins now."""
        trace = self.trace
        made = Step(
            name, replica, self._clock, trace.child() if trace is not None and trace.sampled else None
        )
        self.steps.append(made)
        return made

    def over(self, times: EngineTimes | None = None) -> None:
        """No step goes on; `times` are what the last one's replica says."""
        for each in self.steps:
            each.end()
        if times is not None and self.steps:
            self.steps[-1].times = times
