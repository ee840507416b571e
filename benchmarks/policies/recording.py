"""Requests in memory, as the simulator reads a trace: loaded once per process, then simulated many times."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.policies.cells import TRACES
from headway.workload import RequestChunk, TraceOptions, open_trace

CHUNK_ROWS = 65_536
BURST_EVERY_S = 120.0
GOLDEN = 0.6180339887498949


@dataclass(frozen=True, slots=True, eq=False)
class Recording:
    """Arrivals (seconds, ascending) with input and output tokens, over `duration_s`; no prefix blocks."""

    arrival_s: NDArray[np.float64]
    input_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    duration_s: float

    @property
    def blocks(self) -> NDArray[np.int64]:
        return np.zeros(0, np.int64)

    def chunks(self) -> Iterator[RequestChunk]:
        for low in range(0, len(self.arrival_s), CHUNK_ROWS):
            part = slice(low, low + CHUNK_ROWS)
            none = np.zeros(len(self.arrival_s[part]), np.int64)
            yield RequestChunk(
                arrival_s=self.arrival_s[part],
                input_tokens=self.input_tokens[part],
                output_tokens=self.output_tokens[part],
                block_start=none,
                block_count=none.astype(np.int32),
                copy=none.astype(np.int32),
            )

    def turned(self, share: float) -> "Recording":
        """The same ring of requests, begun `share` of the duration earlier."""
        moved = (self.arrival_s + share * self.duration_s) % self.duration_s if share else self.arrival_s
        return _sorted(moved, self.input_tokens, self.output_tokens, self.duration_s)

    def head(self, duration_s: float) -> "Recording":
        """Its first seconds."""
        rows = int(np.searchsorted(self.arrival_s, duration_s))
        span_s = min(duration_s, self.duration_s)
        return Recording(self.arrival_s[:rows], self.input_tokens[:rows], self.output_tokens[:rows], span_s)

    def with_bursts(self, burst: "Recording") -> "Recording":
        """`burst` on top, once in every `BURST_EVERY_S`, at times that no planning interval divides."""
        count = int(self.duration_s // BURST_EVERY_S)
        at_s = [BURST_EVERY_S * (k + 0.9 * ((k * GOLDEN) % 1.0)) for k in range(count)]
        arrivals = [self.arrival_s, *(burst.arrival_s + begin_s for begin_s in at_s)]
        return _sorted(
            np.concatenate(arrivals),
            np.concatenate([self.input_tokens, *[burst.input_tokens] * count]),
            np.concatenate([self.output_tokens, *[burst.output_tokens] * count]),
            self.duration_s,
        )


def _sorted(
    arrival_s: NDArray[np.float64],
    input_tokens: NDArray[np.int64],
    output_tokens: NDArray[np.int64],
    duration_s: float,
) -> Recording:
    order = np.argsort(arrival_s, kind="stable")
    return Recording(arrival_s[order], input_tokens[order], output_tokens[order], duration_s)


def read(path: Path | str, options: TraceOptions) -> Recording:
    """A trace file, whole."""
    with open_trace(path, options) as trace:
        rows = [(chunk.arrival_s, chunk.input_tokens, chunk.output_tokens) for chunk in trace.chunks()]
        duration_s = trace.duration_s
    arrival_s, input_tokens, output_tokens = (np.concatenate(column) for column in zip(*rows, strict=True))
    return Recording(arrival_s, input_tokens.astype(np.int64), output_tokens.astype(np.int64), duration_s)


@lru_cache(maxsize=1)
def recordings(data: Path, name: str) -> tuple[Recording, ...]:
    """The rotations of a trace of the grid."""
    source = TRACES[name]
    options = TraceOptions(rate_scale=source.rate_scale, duration_s=source.duration_s)
    whole = read(data / "traces" / source.file, options)
    if source.bursts:
        whole = whole.with_bursts(read(data / "traces" / source.bursts, TraceOptions()))
    return tuple(whole.turned(turn / source.turns) for turn in range(source.turns))
