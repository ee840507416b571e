"""From when tokens arrived to a latency.

    prefill    TTFT = first arrival - sending of the one request
    decode     between the last of the first tokens and the first of the last tokens all n requests decode. In
               that window each request's ITL is (last - first arrival) / tokens after the first; the run's is
               their median

Prompts that the window would otherwise share an iteration with are over by then, whether they were computed
or found in a prefix cache. Requests that start evenly one after the other are, in the middle of the window,
on average halfway through their outputs, so the mean context is ISL + OSL/2 with and without a prefix cache.
A chunk of k tokens after a gap g is k gaps of g/k. Pure: all times are seconds of one clock.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from headway.profiling.errors import UnmeasurableError

LEAST_TOKENS = 4.0
"""Tokens of each request that a window must hold."""


class Arrival(NamedTuple):
    """Tokens that came together; a fraction where a server counts only at the end."""

    at_s: float
    tokens: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamTimes:
    """One request: when it was sent, and its tokens as they came (at least one arrival)."""

    sent_s: float
    arrivals: tuple[Arrival, ...]

    @property
    def ttft_s(self) -> float:
        """Seconds until the first token."""
        return self.arrivals[0].at_s - self.sent_s


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeRun:
    """The window of one run: its ITL; and how many tokens the first request had when the last one began."""

    itl_s: float
    window_tokens: float
    stagger_tokens: float


def decode_run(streams: Sequence[StreamTimes]) -> DecodeRun:
    """The window in which all streams decode. Raises UnmeasurableError where there is none to speak of."""
    start_s = max(stream.arrivals[0].at_s for stream in streams)
    end_s = min(stream.arrivals[-1].at_s for stream in streams)
    windows = [_window(stream, start_s, end_s) for stream in streams]
    held = min((tokens for tokens, _ in windows), default=0.0)
    if held < LEAST_TOKENS:
        raise UnmeasurableError(f"the {len(streams)} requests never all decoded at once")
    return DecodeRun(
        itl_s=median(seconds / tokens for tokens, seconds in windows),
        window_tokens=held,
        stagger_tokens=stagger_tokens(streams),
    )


def stagger_tokens(streams: Sequence[StreamTimes]) -> float:
    """The most tokens that a request had when the last one got its first, or would have had at its pace."""
    start_s = max(stream.arrivals[0].at_s for stream in streams)
    return max(_tokens_until(stream, start_s) for stream in streams)


def _tokens_until(stream: StreamTimes, end_s: float) -> float:
    """Tokens before `end_s`; of a request that was over by then, as many as it would have had."""
    tokens = sum(arrival.tokens for arrival in stream.arrivals if arrival.at_s < end_s)
    first, last_s = stream.arrivals[0], stream.arrivals[-1].at_s
    if not first.at_s < last_s < end_s:
        return tokens
    return (tokens - first.tokens) * (end_s - first.at_s) / (last_s - first.at_s)


def _window(stream: StreamTimes, start_s: float, end_s: float) -> tuple[float, float]:
    """Tokens after the first arrival within the window, and the seconds that they took."""
    inside = [arrival for arrival in stream.arrivals if start_s <= arrival.at_s <= end_s]
    if len(inside) < 2:
        return 0.0, 0.0
    return sum(arrival.tokens for arrival in inside[1:]), inside[-1].at_s - inside[0].at_s
