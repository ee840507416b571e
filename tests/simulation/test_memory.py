"""Memory does not grow with the length of the trace, only with the requests of one interval."""

import tracemalloc
from collections import deque
from collections.abc import Iterator

import numpy as np

from headway.planning.types import Role
from headway.simulation.simulate import simulate
from headway.workload import RequestChunk
from tests.simulation.worlds import Schedule, roofline_profile, scenario

ROWS = 5_000


class EndlessTrace:
    """The same chunk again and again, later each time; nothing of it is kept."""

    blocks = np.zeros(0, np.int64)

    def __init__(self, chunks: int) -> None:
        self.duration_s = chunks * ROWS / 40.0
        self._chunks = chunks

    def chunks(self) -> Iterator[RequestChunk]:
        for number in range(self._chunks):
            whole = np.zeros(ROWS, np.int64)
            yield RequestChunk(
                arrival_s=(number * ROWS + np.arange(ROWS)) / 40.0,
                input_tokens=whole + 300,
                output_tokens=whole + 80,
                block_start=whole,
                block_count=whole.astype(np.int32),
                copy=whole.astype(np.int32),
            )


def peak_bytes(chunks: int) -> int:
    fleet = {Role.PREFILL: 2, Role.DECODE: 2}
    policy = Schedule([fleet], interval_s=ROWS / 40.0, seen=deque(maxlen=1))
    tracemalloc.start()
    result = simulate(scenario(roofline_profile(), fleet), EndlessTrace(chunks), policy)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert result.tally.completed == chunks * ROWS
    return peak


def test_peak_memory_is_that_of_a_short_trace():
    peak_bytes(1)
    short, long = peak_bytes(8), peak_bytes(32)
    # 120,000 requests more: two bytes of each that stay are seen.
    assert long < short + 200_000
