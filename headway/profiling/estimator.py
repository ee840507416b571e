"""What profiling needs to know of an engine: one latency per step, and how much it holds.

A `LatencyEstimator` answers for one engine (a model on `tp` GPUs of one system under one backend):

- prefill: the time of one forward pass over `isl` new tokens of a single request, in milliseconds;
- decode: the time of one forward pass that adds one token to each of `batch` requests whose context is
  `context` tokens, in milliseconds;
- facts: what bounds the grid (longest context, KV capacity) and what a KV transfer moves.

Queueing, scheduling and network are not in these numbers. Grids, tables and files know only this interface,
so another source of latencies is one more adapter. Only the interface and its values belong here.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    """The engine to be estimated.

    `quantization` None means the model's native data type; `backend_version` None the database's current
    one. `memory_fraction` is the share of GPU memory that the engine may use: of the total for vLLM and
    SGLang, of what the weights leave for TensorRT-LLM, as in their own settings. `max_step_tokens` is the
    largest number of tokens in one forward pass; its activations are set aside before the KV cache.
    """

    model: str
    system: str
    backend: str
    tp: int
    quantization: str | None = None
    backend_version: str | None = None
    memory_fraction: float = 0.9
    max_step_tokens: int = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """Sizes of an engine: tokens, and bytes of KV cache per token over all its GPUs."""

    max_context_tokens: int
    max_kv_tokens: int
    kv_bytes_per_token: float
    weights_dtype: str
    kv_cache_dtype: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Where latencies came from; `notes` are one-line sentences on what to trust less."""

    tool: str
    tool_version: str
    database_mode: str
    backend_version: str
    notes: tuple[str, ...] = ()


class LatencyEstimator(Protocol):
    """Latencies of one engine. Calls raise `EstimateError` where there is no answer."""

    @property
    def facts(self) -> EngineFacts:
        """The engine's sizes."""

    def prefill_ms(self, isl_tokens: int) -> float:
        """Milliseconds to prefill one request of `isl_tokens`."""

    def decode_ms(self, batch: int, context_tokens: int) -> float:
        """Milliseconds of one decode step of `batch` requests at `context_tokens` each."""

    def provenance(self) -> Provenance:
        """The source of everything answered so far."""


OpenEstimator = Callable[[EngineSpec], LatencyEstimator]
