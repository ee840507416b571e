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

`EndpointPair` is a pair of vLLM servers behind HTTP, by the protocol of vLLM's own proxies
(`kv_transfer_params` in requests and answers of `/v1/completions`): the prefill side is asked for one token
and to keep the KV, its answer says where that is, and the decode side gets this with the request. Both are
`vllm serve` with a `--kv-transfer-config` of one connector, such as NixlConnector.

Where the decode side's `/metrics` counts the tokens that came from elsewhere
(`vllm:prompt_tokens_by_source_total`), a transfer that did not happen is an error, not a short time.
"""

import asyncio
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, NamedTuple, Protocol, Self

import numpy as np

from headway.config import DEFAULT_KV_BYTES_PER_TOKEN
from headway.loadgen.client import Clock, error_text
from headway.loadgen.plan import LoadPlan, base_url
from headway.profiling import RequestError, TargetError
from headway.profiling.sweep.endpoint import REFUSED, OpenAiTarget
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


KEEP_KV: Mapping[str, Any] = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
EXTERNAL = re.compile(
    r'^vllm:prompt_tokens_by_source_total\{[^}]*source="external_kv_transfer"[^}]*\} (\S+)', re.MULTILINE
)
BYTES = re.compile(r"^vllm:nixl_bytes_transferred_sum(?:\{[^}]*\})? (\S+)", re.MULTILINE)


class EndpointPair(OpenAiTarget):
    """The pair; enter it before use. The target is the decode side, of which `plan` has address and model."""

    def __init__(self, prefill_url: str, plan: LoadPlan, clock: Clock) -> None:
        super().__init__(plan, clock)
        self._prefill_url = base_url(prefill_url)
        self._metrics: Mapping[str, float] = {}
        self._handed_tokens = 0

    async def __aenter__(self) -> Self:
        """Open connections, and read the decode side's counters. Raises TargetError."""
        await super().__aenter__()
        self._metrics = await self._counters()
        return self

    async def hand_over(self, prompt: Sequence[int], output_tokens: int) -> Handover:
        """One request over both sides."""
        where = await self._prefilled(prompt)
        prefilled_s = self.clock()
        times = await self.stream(prompt, output_tokens, {"kv_transfer_params": where})
        self._handed_tokens += len(prompt)
        return Handover(prefilled_s, times.arrivals)

    async def bytes_per_token(self) -> float | None:
        """Of what has travelled, as NIXL counts it at the decode side; None where that is not said.

        Raises TargetError where the decode side counts tokens by their source, and none came from elsewhere.
        """
        now = await self._counters()
        moved = {name: value - self._metrics.get(name, 0.0) for name, value in now.items()}
        if self._handed_tokens and moved.get("external", 1.0) <= 0:
            raise TargetError(
                f"{self.plan.url}: computed the prompts by itself, no KV came from {self._prefill_url}"
            )
        tokens = moved.get("external") or self._handed_tokens
        return moved["bytes"] / tokens if moved.get("bytes") and tokens else None

    async def _prefilled(self, prompt: Sequence[int]) -> Mapping[str, Any]:
        """Where the KV of `prompt` is."""
        body = {
            "model": self.plan.model,
            "prompt": list(prompt),
            "max_tokens": 1,
            "temperature": 0,
            "kv_transfer_params": dict(KEEP_KV),
        }
        address = f"{self._prefill_url}/v1/completions"
        status, text = await self.request("POST", address, body)
        try:
            document = json.loads(text)
        except ValueError:
            document = text
        if status >= REFUSED or not isinstance(document, dict):
            raise TargetError(f"{address}: {status}: {error_text(document)}")
        where = document.get("kv_transfer_params")
        if not isinstance(where, dict):
            raise TargetError(f"{address}: the answer has no kv_transfer_params, so its KV cannot be fetched")
        return where

    async def _counters(self) -> dict[str, float]:
        """Tokens and bytes that came from elsewhere so far, as far as the decode side reports them."""
        try:
            _, text = await self.request("GET", f"{base_url(self.plan.url)}/metrics")
        except TargetError:
            return {}
        found = {"external": EXTERNAL.findall(text), "bytes": BYTES.findall(text)}
        return {name: sum(map(float, values)) for name, values in found.items() if values}
