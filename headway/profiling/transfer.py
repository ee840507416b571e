"""KV transfer from a prefill to a decode engine: timed over several prompt lengths, and fitted.

    X(run)  = first token of the decode engine - end of the prefill - one iteration of the decode engine
    X(u)    = latency + u · bytes per token / bandwidth            for a prompt of u tokens

The iteration is the median time per token of the rest of that stream. What else lies between the two moments
(calls, HTTP, the computation of a prompt's last block that does not travel) is in the latency, as it is when
requests are served. X(u) is the median of its runs; the line through X(u) has the least sum of squared
relative errors, with both coefficients at least 0. Where the slope is 0, transfers of these lengths do not
show a bandwidth, and none is claimed.

Prompts are new in every run, so that no prefix cache on either side knows them. The first run of each length
does not count: engines meet each other at the first one.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, NamedTuple, Protocol

import numpy as np

from headway.config import DEFAULT_KV_BYTES_PER_TOKEN
from headway.profiling import RequestError, TargetError
from headway.profiling.sweep.measure import HIGHEST_ID, LOWEST_ID, Arrival
from headway.profiling.sweep.measurements import summarise
from headway.profiling.sweep.points import MIN_TOKENS, log_spaced

LENGTHS = 6
LONGEST_TOKENS = 32_768
OUTPUT_TOKENS = 12
"""Of each request at the decode engine: the first one, and those that show an iteration."""
MS_PER_S = 1000.0


class Handover(NamedTuple):
    """A request that went from one engine to the other: the end of its prefill, its tokens, one clock."""

    prefilled_s: float
    arrivals: Sequence[Arrival]

    @property
    def transfer_s(self) -> float:
        """X of this run; below 0 where an iteration takes longer than all of it. Raises TargetError."""
        first, *rest = self.arrivals
        tokens = sum(arrival.tokens for arrival in rest)
        if not tokens:
            raise TargetError("the decode engine gave one token, which shows no iteration")
        times = [first.at_s, *(arrival.at_s for arrival in rest)]
        gaps = [
            (end - start) / arrival.tokens
            for arrival, start, end in zip(rest, times[:-1], times[1:], strict=True)
        ]
        return first.at_s - self.prefilled_s - median(gaps)


class TransferTarget(Protocol):
    """A prefill and a decode engine that get requests from each other."""

    async def hand_over(self, prompt: Sequence[int], output_tokens: int) -> Handover:
        """Prefill there, decode here. Raises TargetError where an engine fails or the KV does not travel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferSample:
    """X of prompts of `tokens` tokens: its runs in seconds, in their order."""

    tokens: int
    runs_s: tuple[float, ...]

    @property
    def transfer_s(self) -> float:
        """The median."""
        return median(self.runs_s)

    @property
    def spread(self) -> float:
        """Relative spread of the runs (`summarise`); 0 where the median is not above 0."""
        return summarise(self.runs_s).spread if min(self.runs_s) > 0 else 0.0


def transfer_lengths(longest_tokens: int) -> tuple[int, ...]:
    """Prompt lengths to time, where a request has at most `longest_tokens`. RequestError: too few."""
    lengths = log_spaced(MIN_TOKENS, min(longest_tokens - OUTPUT_TOKENS, LONGEST_TOKENS), LENGTHS)
    if len(lengths) < 2:
        raise RequestError(f"KV transfer: requests of {longest_tokens} tokens are too short to show it")
    return lengths


async def measure_transfers(
    target: TransferTarget,
    lengths: Sequence[int],
    *,
    repeats: int,
    seed: int,
    progress: Callable[[int], None],
) -> tuple[TransferSample, ...]:
    """Time each length; `progress` gets how many are done. Raises TargetError."""
    rng, samples = np.random.default_rng(seed), list[TransferSample]()
    for done, tokens in enumerate(lengths):
        progress(done)
        runs_s = []
        for _ in range(1 + repeats):
            prompt = rng.integers(LOWEST_ID, HIGHEST_ID, tokens).tolist()
            runs_s.append((await target.hand_over(prompt, OUTPUT_TOKENS)).transfer_s)
            # What the prefill side still has to let go of is not part of the next run.
            await asyncio.sleep(0)
        samples.append(TransferSample(tokens=tokens, runs_s=tuple(runs_s[1:])))
    progress(len(lengths))
    return tuple(samples)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferFit:
    """The line: seconds, seconds per token (0: not seen), and its median relative error at the samples."""

    latency_s: float
    s_per_token: float
    error: float


def fit_transfers(samples: Sequence[TransferSample]) -> TransferFit:
    """The line through at least two lengths. Raises TargetError where transfers take no time at all."""
    tokens = np.array([sample.tokens for sample in samples], np.float64)
    seconds = np.array([sample.transfer_s for sample in samples], np.float64)
    known = seconds > 0
    if np.count_nonzero(known) < 2:
        raise TargetError("KV transfer: it takes no longer than an iteration of the decode engine")
    tokens, seconds = tokens[known], seconds[known]
    columns = np.stack([1.0 / seconds, tokens / seconds], axis=1)
    latency_s, slope = np.linalg.lstsq(columns, np.ones(len(seconds)), rcond=None)[0]
    if slope <= 0:
        latency_s, slope = _least_alone(columns[:, 0]), 0.0
    elif latency_s < 0:
        latency_s, slope = 0.0, _least_alone(columns[:, 1])
    errors = np.abs((latency_s + slope * tokens) / seconds - 1.0)
    return TransferFit(latency_s=float(latency_s), s_per_token=float(slope), error=float(np.median(errors)))


def _least_alone(column: np.ndarray) -> float:
    """The coefficient of one column that comes closest to 1 everywhere."""
    return float(column.sum() / (column @ column))


def transfer_meta(
    samples: Sequence[TransferSample], *, bytes_per_token: float | None, how: str
) -> Mapping[str, Any]:
    """What meta.json says under `kv_transfer`; latencies in milliseconds, as the settings have them.

    Where the bytes of a token are not known, the bandwidth is that of 131,072 bytes a token, which is what
    such a profile is read with: the seconds per token come out as measured.
    """
    fit, size = fit_transfers(samples), bytes_per_token or DEFAULT_KV_BYTES_PER_TOKEN
    return {
        "latency_ms": fit.latency_s * MS_PER_S,
        "bandwidth_gb_s": size / fit.s_per_token / 1e9 if fit.s_per_token else None,
        "bytes_per_token": size,
        "bytes_known": bytes_per_token is not None,
        "error": fit.error,
        "spread": max(sample.spread for sample in samples),
        "tokens": [sample.tokens for sample in samples],
        "transfer_ms": [sample.transfer_s * MS_PER_S for sample in samples],
        "measured": how,
    }
