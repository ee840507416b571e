"""The settings of a replay, and the requests of its trace as bodies of `/v1/completions`.

A body has n input tokens, asks for so many output tokens, and is streamed. Token ids are drawn between
LOWEST_ID and HIGHEST_ID: beyond the special tokens, within any vocabulary in use. Prompts differ from each
other, so that no prefix cache serves them, except where the trace says that requests share prefix blocks:
equal block ids (of one copy of the trace) become equal tokens.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from math import isfinite
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import numpy.typing as npt

from headway.planning.types import Slo
from headway.workload import RequestChunk, Trace


class LoadError(Exception):
    """Load that cannot be sent: one line that names the address or the setting and the fault.

    The fate of single requests is no exception but their outcome.
    """


MOST_IN_FLIGHT = 1_000_000


class PromptForm(StrEnum):
    """Form of a prompt of n tokens."""

    TOKENS = "tokens"
    """An array of n token ids: the length is exact."""
    TEXT = "text"
    """n short words, for servers that take only text: about n tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """Settings of one replay.

    `url` is the server or its `/v1`. `time_scale` k plays trace time k times as fast. A request that would be
    the `max_in_flight` + 1st is not sent and counts as failed; it is never delayed. `timeout_s` counts from
    the intended send time.
    """

    url: str
    model: str
    slo: Slo
    api_key: str | None = field(default=None, repr=False)
    time_scale: float = 1.0
    prompt: PromptForm = PromptForm.TOKENS
    ignore_eos: bool = False
    max_in_flight: int = 4096
    timeout_s: float = 600.0
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what has no meaning; raises LoadError naming the setting."""
        base_url(self.url)
        for name, value in (("time-scale", self.time_scale), ("timeout", self.timeout_s)):
            if not isfinite(value) or value <= 0:
                raise LoadError(f"{name} must be above 0 and finite, got {value:g}")
        if not 1 <= self.max_in_flight <= MOST_IN_FLIGHT:
            raise LoadError(f"max-in-flight must be 1 to {MOST_IN_FLIGHT:,}, got {self.max_in_flight}")

    @property
    def completions_url(self) -> str:
        """Where completions are asked for."""
        return f"{base_url(self.url)}/v1/completions"

    @property
    def headers(self) -> dict[str, str]:
        """The headers of every request."""
        return authorisation(self.api_key)


def base_url(url: str) -> str:
    """The address without a path `/v1` and trailing slashes; raises LoadError for what is no HTTP address."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname)
        usable = usable and (parts.port is None or parts.port > 0)
    except ValueError:
        usable = False
    if not usable:
        raise LoadError(f"{url!r} is not an address such as http://127.0.0.1:8000")
    return url.rstrip("/").removesuffix("/v1").rstrip("/")


def authorisation(api_key: str | None) -> dict[str, str]:
    """The header that a key is sent in."""
    return {"Authorization": f"Bearer {api_key}"} if api_key else {}


LOWEST_ID, HIGHEST_ID = 1_000, 30_000
CHUNK_ROWS = 1024
WORDS = (
    "the",
    "of",
    "and",
    "to",
    "in",
    "that",
    "was",
    "his",
    "with",
    "for",
    "had",
    "not",
    "but",
    "her",
    "all",
    "one",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRequest:
    """A request and when it should leave: seconds after the replay begins."""

    index: int
    at_s: float
    input_tokens: int
    output_tokens: int
    body: bytes


def planned_requests(trace: Trace, plan: LoadPlan) -> Iterator[PlannedRequest]:
    """The requests of a trace, in order; bodies are made as they are asked for."""
    writer = BodyWriter(trace, plan)
    index = 0
    for chunk in trace.chunks(CHUNK_ROWS):
        for row in range(len(chunk)):
            yield PlannedRequest(
                index=index,
                at_s=float(chunk.arrival_s[row]) / plan.time_scale,
                input_tokens=int(chunk.input_tokens[row]),
                output_tokens=int(chunk.output_tokens[row]),
                body=writer.body(chunk, row),
            )
            index += 1


class BodyWriter:
    """Writes bodies; the same trace and seed give the same bytes."""

    def __init__(self, trace: Trace, plan: LoadPlan) -> None:
        self._blocks, self._block_tokens = trace.blocks, trace.block_tokens
        self._plan = plan
        self._rng = np.random.default_rng((plan.seed, 0))

    def body(self, chunk: RequestChunk, row: int) -> bytes:
        """The JSON of one request."""
        ids = self._ids(chunk, row)
        tokens = self._plan.prompt is PromptForm.TOKENS
        document: dict[str, Any] = {
            "model": self._plan.model,
            "prompt": ids.tolist() if tokens else _words(ids),
            "max_tokens": int(chunk.output_tokens[row]),
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self._plan.ignore_eos:
            document["ignore_eos"] = True
        return json.dumps(document, separators=(",", ":")).encode()

    def _ids(self, chunk: RequestChunk, row: int) -> npt.NDArray[np.int64]:
        wanted, count = int(chunk.input_tokens[row]), int(chunk.block_count[row])
        first = int(chunk.block_start[row])
        shared = [
            self._block(int(block), int(chunk.copy[row])) for block in self._blocks[first : first + count]
        ]
        missing = wanted - count * self._block_tokens
        if missing > 0:
            shared.append(self._rng.integers(LOWEST_ID, HIGHEST_ID, missing))
        return np.concatenate(shared)[:wanted]

    def _block(self, block: int, copy: int) -> npt.NDArray[np.int64]:
        generator = np.random.default_rng((self._plan.seed, 1, copy, block))
        return generator.integers(LOWEST_ID, HIGHEST_ID, self._block_tokens)


def _words(ids: npt.NDArray[np.int64]) -> str:
    return " ".join([WORDS[number] for number in (ids % len(WORDS)).tolist()])
