"""What a sweep needs of an engine, in this process or behind HTTP."""

from collections.abc import Sequence
from typing import Protocol

from headway.profiling.sweep.streams import StreamTimes


class Target(Protocol):
    """An engine that does prefill and decode."""

    async def stream(self, prompt: Sequence[int], output_tokens: int) -> StreamTimes:
        """Serve one request to its end; the times of its tokens, in seconds of one clock.

        Raises TargetError when the engine does not answer properly, UnmeasurableError when it says that this
        request can never fit.
        """
