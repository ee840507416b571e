"""An engine in this process as the target of a sweep."""

import asyncio
from collections.abc import Sequence
from itertools import count
from typing import Protocol, runtime_checkable

from headway.profiling.errors import TargetError, UnmeasurableError
from headway.profiling.sweep import Arrival, StreamTimes
from serve_apps.engines.protocol import Engine, EngineError, EngineRequest, EngineSizes, PromptTooLong


@runtime_checkable
class SaysSizes(Protocol):
    """An engine that says what it holds."""

    def sizes(self) -> EngineSizes:
        """What it holds."""


@runtime_checkable
class Closes(Protocol):
    """An engine that holds more than memory of this process."""

    def close(self) -> None:
        """Let go of it."""


class EngineTarget:
    """A mixed engine, called directly on the running loop, whose clock is read."""

    def __init__(self, engine: Engine, model: str) -> None:
        self._engine, self._model = engine, model
        self._numbers = count()

    async def stream(self, prompt: Sequence[int], output_tokens: int) -> StreamTimes:
        """Serve one request to its end."""
        now_s, arrivals = asyncio.get_running_loop().time, list[Arrival]()
        request = self._request(prompt, output_tokens)
        sent_s = now_s()
        try:
            async for chunk in self._engine.decode(request, None):
                if chunk.tokens:
                    arrivals.append(Arrival(now_s(), chunk.tokens))
        except PromptTooLong as error:
            raise UnmeasurableError(str(error)) from error
        except EngineError as error:
            raise TargetError(str(error)) from error
        if not arrivals:
            raise TargetError("the engine gave no token")
        return StreamTimes(sent_s=sent_s, arrivals=tuple(arrivals))

    def _request(self, prompt: Sequence[int], output_tokens: int) -> EngineRequest:
        return EngineRequest(
            request_id=f"profile-{next(self._numbers)}",
            model=self._model,
            prompt=prompt,
            input_tokens=len(prompt),
            max_tokens=output_tokens,
            sampling={"temperature": 0.0, "ignore_eos": True},
        )
