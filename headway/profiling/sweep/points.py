"""What a sweep measures: prefills over input lengths, decodes over KV usage and context length.

    prefill    `tokens` = ISL, one request at a time; log-spaced (`headway.profiling.grids`)
    decode     `batch` requests at once with a mean context of `tokens`, so KV usage = batch · tokens /
               capacity

A decode run asks each of n requests for O output tokens after a prompt of c - O/2, so that its mean context
is c = ISL + OSL/2, as the profile format defines it (document 000). Prompts are computed one after the other,
and ITL counts only while all n decode (`streams`). An engine that computes a prompt an iteration gives the
first request n tokens until the last one decodes; so O = n + WINDOW_TOKENS leaves a window of WINDOW_TOKENS,
unless the warm-up run shows that more are needed. A point fits when, with W for WINDOW_TOKENS and B for
BLOCK_TOKENS,

    n (c + (n + W) / 2 + B) ≤ KV capacity,    c + (n + W) / 2 ≤ longest request,    n ≤ c, largest batch

Pure functions of integers.
"""

from dataclasses import dataclass
from enum import StrEnum
from math import floor, sqrt

from headway.profiling.errors import RequestError
from headway.profiling.grids import MIN_CONTEXT_TOKENS, log_spaced, prefill_grid

WINDOW_TOKENS = 32
"""Tokens of each request while all decode: the gaps that one run averages."""


BLOCK_TOKENS = 32
"""What whole blocks of KV cache may add to a request; a batch that just fits would be preempted."""


class Phase(StrEnum):
    """What is measured."""

    PREFILL = "prefill"
    DECODE = "decode"


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class SweepPoint:
    """One point: a prefill of `tokens`, or a decode of `batch` requests at a mean context of `tokens`."""

    phase: Phase
    tokens: int
    batch: int = 1

    @property
    def output_tokens(self) -> int:
        """Output tokens per request of the first run."""
        return 1 if self.phase is Phase.PREFILL else self.batch + WINDOW_TOKENS

    def __str__(self) -> str:
        """The point in words."""
        if self.phase is Phase.PREFILL:
            return f"prefill of {self.tokens:,} tokens"
        return f"decode of {self.batch} × {self.tokens:,} tokens"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the engine holds, in tokens and requests, and how fine the grid is.

    `max_request_tokens` is input plus output of one request. `isl_points`, and for decode `kv_points` (along
    KV usage) and `context_points`, are the granularities. Raises RequestError naming the field.
    """

    max_request_tokens: int
    max_kv_tokens: int
    max_batch: int = 256
    isl_points: int = 16
    kv_points: int = 6
    context_points: int = 6

    def __post_init__(self) -> None:
        shortest = 2 * MIN_CONTEXT_TOKENS
        for name, least in (
            ("max_request_tokens", shortest),
            ("max_kv_tokens", shortest),
            ("max_batch", 1),
            ("isl_points", 2),
            ("kv_points", 2),
            ("context_points", 2),
        ):
            if getattr(self, name) < least:
                raise RequestError(f"{name}: expected at least {least}, got {getattr(self, name)}")

    @property
    def longest_tokens(self) -> int:
        """Input plus output tokens of the longest request that the cache and the engine take."""
        return min(self.max_request_tokens, self.max_kv_tokens)


def sweep_points(limits: Limits) -> tuple[SweepPoint, ...]:
    """All points: prefill by ISL, then decode line by line, each from one request to the most that fit."""
    return _prefill_points(limits) + _decode_points(limits)


def largest_batch(context_tokens: int, limits: Limits) -> int:
    """The most requests that decode together at a mean context of `context_tokens`; one always does."""
    half = context_tokens + WINDOW_TOKENS / 2 + BLOCK_TOKENS
    by_cache = floor(sqrt(half * half + 2.0 * limits.max_kv_tokens) - half)
    by_length = 2 * (limits.longest_tokens - context_tokens) - WINDOW_TOKENS
    return max(1, min(limits.max_batch, context_tokens, by_cache, by_length))


def _prefill_points(limits: Limits) -> tuple[SweepPoint, ...]:
    longest = limits.longest_tokens - 1
    return tuple(
        SweepPoint(phase=Phase.PREFILL, tokens=tokens) for tokens in prefill_grid(longest, limits.isl_points)
    )


def _decode_points(limits: Limits) -> tuple[SweepPoint, ...]:
    longest = limits.longest_tokens - WINDOW_TOKENS
    points: list[SweepPoint] = []
    for context in log_spaced(MIN_CONTEXT_TOKENS, longest, limits.context_points):
        batches = log_spaced(1, largest_batch(context, limits), limits.kv_points)
        points.extend(SweepPoint(phase=Phase.DECODE, tokens=context, batch=batch) for batch in batches)
    return tuple(points)
