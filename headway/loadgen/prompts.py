"""Requests of a trace as bodies of `/v1/completions`: n input tokens, so many output tokens, streamed.

Token ids are drawn between LOWEST_ID and HIGHEST_ID: beyond the special tokens, within any vocabulary in
use. Prompts differ from each other, so that no prefix cache serves them, except where the trace says that
requests share prefix blocks: equal block ids (of one copy of the trace) become equal tokens.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from headway.loadgen.plan import LoadPlan, PromptForm
from headway.workload import RequestChunk, Trace

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
class Planned:
    """A request and when it should leave: seconds after the replay begins."""

    index: int
    at_s: float
    input_tokens: int
    output_tokens: int
    body: bytes


def planned_requests(trace: Trace, plan: LoadPlan) -> Iterator[Planned]:
    """The requests of a trace, in order; bodies are made as they are asked for."""
    writer = BodyWriter(trace, plan)
    index = 0
    for chunk in trace.chunks(CHUNK_ROWS):
        for row in range(len(chunk)):
            yield Planned(
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
