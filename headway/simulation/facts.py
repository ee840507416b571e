"""What a router is told of a simulated request: what a gateway would know, and no more.

The true output length stays with the engine; `max_tokens` is what the model's limit leaves beside the prompt.
Prefix blocks are those of the trace, told apart by superposed copy. Traces name no conversations, so the
session is derived: see `session_of`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headway.planning.types import Slo
from headway.routing import RequestSlo, RouteRequest
from headway.simulation.classes import RequestClass
from headway.simulation.layout import World
from headway.simulation.prefix import COPY_SHIFT


def session_of(blocks: Sequence[int]) -> str | None:
    """A name for the conversation that a prompt continues; None where the blocks do not tell.

    A trace's first block is what its applications put before every prompt. The second is the first that
    tells conversations apart, and since a block stands for all before it as well, later turns keep it.
    """
    return f"{blocks[1]:x}" if len(blocks) > 1 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What is the same for all requests of a run. `most_tokens`: of one request, prompt and output."""

    classes: Sequence[RequestClass]
    most_tokens: int
    block_tokens: int


class Facts:
    """Makes route requests of slots of a world; valid as long as the world's arrays are."""

    def __init__(self, world: World, told: Told) -> None:
        self._told, self._requests, self._blocks = told, world.requests, world.prefix.blocks
        self._slos = [_promise(each.slo) for each in told.classes]
        self._fields = [
            self._requests[name]
            for name in (
                "number",
                "arrival_s",
                "input_tokens",
                "block_start",
                "block_count",
                "copy",
                "slo_class",
            )
        ]

    def of(self, request: int) -> RouteRequest:
        """The request in this slot."""
        number, arrival_s, input_tokens, start, count, copy, place = [
            column.item(request) for column in self._fields
        ]
        told, of_class = self._told, self._told.classes[place]
        blocks = self._salted(start, count, copy) if count else ()
        return RouteRequest(
            request_id=str(number),
            arrival_s=arrival_s,
            input_tokens=input_tokens,
            max_tokens=max(1, told.most_tokens - input_tokens),
            slo=self._slos[place],
            slo_class=of_class.name,
            critical=of_class.critical,
            session=session_of(blocks),
            blocks=blocks,
            block_tokens=told.block_tokens,
        )

    def _salted(self, start: int, count: int, copy: int) -> tuple[int, ...]:
        keys: NDArray[np.int64] = self._blocks[start : start + count]
        return tuple((keys + (copy << COPY_SHIFT)).tolist())


def _promise(slo: Slo) -> RequestSlo:
    return RequestSlo(ttft_s=slo.ttft_s, tpot_s=slo.itl_s)
