"""An event loop whose clock jumps: waiting for a timer takes no time, and times are exact."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any

from tests.scenarios import scenarios

LONGEST_S = 1e6


class _JumpingSelector(selectors.DefaultSelector):
    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0

    def select(self, timeout=None):
        ready = super().select(0)
        if not ready:
            assert timeout is not None, "everything waits and nothing will ever happen"
            self.now_s += max(0.0, timeout)
            assert self.now_s < LONGEST_S, "this takes for ever"
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now_s

    def pass_time(self, seconds: float) -> None:
        """The process was busy for so long: timers that were due are late now."""
        self._jumping.now_s += seconds


def run(test: Coroutine[Any, Any, Any]) -> Any:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(test)


on_virtual_time = scenarios(lambda test: run(test()))()
"""Runs a test that is a coroutine."""
