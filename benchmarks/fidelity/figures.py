"""Figures of a replay, live or simulated, and the distance between the two.

    TTFT         median over requests of first token - sending
    ITL          median over all tokens after the first ones; k tokens after a gap g are k gaps of g / k
    throughput   output tokens / (last token of all - first sending)

Over repeats: the median of each figure, with its least and most. difference = simulated / live - 1.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from headway.profiling.sweep import StreamTimes

FIGURES: Mapping[str, str] = {"ttft_ms": "TTFT p50, ms", "itl_ms": "ITL p50, ms", "tokens_per_s": "tokens/s"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Of one replay: medians in milliseconds, output tokens per second."""

    ttft_ms: float
    itl_ms: float
    tokens_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure: live as (median, least, most) over the repeats, simulated, and how close they should be."""

    figure: str
    live: tuple[float, float, float]
    simulated: float
    asked: float

    @property
    def difference(self) -> float:
        """Simulated over the live median, less 1."""
        return self.simulated / self.live[0] - 1.0

    @property
    def met(self) -> bool:
        """True if they are as close as asked."""
        return abs(self.difference) <= self.asked


def figures_of(streams: Sequence[StreamTimes]) -> Figures:
    """Of one replay, in which at least one request had two arrivals."""
    gaps = np.array([gap for stream in streams for gap in _gaps(stream)])
    tokens = sum(arrival.tokens for stream in streams for arrival in stream.arrivals)
    end_s = max(stream.arrivals[-1].at_s for stream in streams)
    return Figures(
        ttft_ms=1e3 * median(stream.ttft_s for stream in streams),
        itl_ms=1e3 * float(np.median(np.repeat(gaps[:, 0], gaps[:, 1].astype(int)))),
        tokens_per_s=tokens / (end_s - min(stream.sent_s for stream in streams)),
    )


def words(figures: Figures) -> str:
    """One replay on a line."""
    latencies = f"TTFT {figures.ttft_ms:8.1f} ms, ITL {figures.itl_ms:6.2f} ms"
    return f"{latencies}, {figures.tokens_per_s:7.1f} tokens/s"


def compare(live: Sequence[Figures], simulated: Figures, asked: Mapping[str, float]) -> Sequence[Row]:
    """A row for each figure that `asked` gives a limit to; `live` holds one repeat or more."""
    return [
        Row(figure=name, live=_over(live, name), simulated=getattr(simulated, name), asked=limit)
        for name, limit in asked.items()
    ]


def _gaps(stream: StreamTimes) -> Iterator[tuple[float, float]]:
    """(seconds per token, how many tokens) of each arrival after the first."""
    for before, after in zip(stream.arrivals, stream.arrivals[1:], strict=False):
        yield (after.at_s - before.at_s) / after.tokens, after.tokens


def _over(repeats: Sequence[Figures], name: str) -> tuple[float, float, float]:
    values = [float(getattr(figures, name)) for figures in repeats]
    return median(values), min(values), max(values)
