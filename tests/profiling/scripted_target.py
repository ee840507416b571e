"""A target whose tokens come at times that a formula says; no time passes."""

import asyncio
from collections.abc import Sequence

from headway.profiling import TargetError, UnmeasurableError
from headway.profiling.sweep.measure import Arrival, StreamTimes


class ScriptedTarget:
    """Prompts are computed one after the other, each for `stagger` tokens of those that decode already.

    With `caches`, a prompt that came before starts at once. Every token takes `itl_s`.
    """

    def __init__(
        self, *, stagger: int = 1, caches: bool = False, itl_s: float = 0.01, most: int = 1000
    ) -> None:
        self.stagger, self.caches, self.itl_s, self.most = stagger, caches, itl_s, most
        self.asked: list[tuple[int, int]] = []
        self.prompts: list[tuple[int, ...]] = []
        self.fails_after: int | None = None
        self._known: list[tuple[int, ...]] = []
        self._active = 0

    async def stream(self, prompt: Sequence[int], output_tokens: int) -> StreamTimes:
        if self.fails_after is not None and len(self.asked) >= self.fails_after:
            raise TargetError("the engine died")
        if len(prompt) > self.most:
            raise UnmeasurableError("too long")
        key = tuple(prompt)
        hit = self.caches and any(known[: len(key)] == key for known in self._known)
        first_s = self.itl_s * (1 if hit else 1 + self.stagger * self._active)
        self._known.append(key)
        self.asked.append((len(prompt), output_tokens))
        self.prompts.append(key)
        self._active += 1
        await asyncio.sleep(0)
        self._active -= 1
        arrivals = (Arrival(first_s + place * self.itl_s, 1.0) for place in range(output_tokens))
        return StreamTimes(sent_s=0.0, arrivals=tuple(arrivals))
