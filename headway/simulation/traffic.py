"""The requests of the interval under way, one by one, for the policy's observation.

Arrivals are the rows that the kernel has taken of the chunks it was given, so that each is part of exactly
one interval and of the one whose counters it is in. Completions are read from the records of ended requests;
nothing is said of the output of a request before it has completed.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from headway.planning.types import FloatArray, Traffic
from headway.simulation.fleet import Fleet
from headway.simulation.layout import COMPLETED

Columns = tuple[NDArray[Any], NDArray[Any]]
NOTHING: Columns = (np.zeros(0), np.zeros(0))


class TrafficLog:
    """Collects one interval's requests; `take` ends the interval."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._seen = 0
        self._arrived: list[Columns] = []
        self._completed: list[Columns] = []

    def chunk_taken(self) -> None:
        """The kernel has taken every row of its chunk, and is about to be given the next."""
        self._look()
        self._seen = 0

    def ended(self, records: NDArray[Any]) -> None:
        """These requests have ended, in this order. The buffer is used again: what is kept is copied."""
        completed = records["outcome"] == COMPLETED
        self._completed.append((records["input_tokens"][completed], records["output_tokens"][completed]))

    def take(self) -> Traffic:
        """What came and completed since this was last called."""
        self._look()
        arrival_s, input_tokens = _joined(self._arrived)
        completed_input_tokens, completed_output_tokens = _joined(self._completed)
        self._arrived, self._completed = [], []
        return Traffic(
            arrival_s=arrival_s,
            input_tokens=input_tokens,
            completed_input_tokens=completed_input_tokens,
            completed_output_tokens=completed_output_tokens,
        )

    def _look(self) -> None:
        world = self._fleet.world
        rows = slice(self._seen, int(world.clock[0]["next_arrival"]))
        self._arrived.append((world.arrivals.arrival_s[rows], world.arrivals.input_tokens[rows]))
        self._seen = rows.stop


def _joined(parts: list[Columns]) -> tuple[FloatArray, FloatArray]:
    first, second = zip(NOTHING, *parts, strict=True)
    return np.concatenate(first, dtype=np.float64), np.concatenate(second, dtype=np.float64)
