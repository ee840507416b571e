"""Values, errors and the interface behind `headway estimate`.

A `LatencyEstimator` answers for one engine (a model on `tp` GPUs of one system under one backend):

- prefill: the time of one forward pass over `isl` new tokens of a single request, in milliseconds;
- decode: the time of one forward pass that adds one token to each of `batch` requests whose context is
  `context` tokens, in milliseconds;
- facts: what bounds the grid (longest context, KV capacity) and what a KV transfer moves.

Queueing, scheduling and network are not in these numbers. Grids, tables and files use only this interface, so
another source of latencies is one more adapter.

    ProfilingError (of `headway.profiling`)
    ├── ExtraNotInstalledError      the optional library behind `headway estimate` is missing
    ├── UnknownNameError            an unknown model, system, backend or quantisation; lists the known
    └── EstimateError               this tensor-parallel size cannot be estimated; others may
        ├── DoesNotFitError         the weights leave no room for a KV cache
        └── NotMeasuredError        the database has no measurements for a part of the model
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Protocol

from headway.profiling import ProfilingError, RequestError
from interp import DecodeSamples, PrefillSamples


class ExtraNotInstalledError(ProfilingError):
    """The optional dependency is missing; the text says how to install it."""


class UnknownNameError(ProfilingError):
    """A name that the estimator does not know; the text lists those that it does."""


class EstimateError(ProfilingError):
    """One tensor-parallel size that has no estimate, and why."""


class DoesNotFitError(EstimateError):
    """The model leaves no memory for a KV cache."""


class NotMeasuredError(EstimateError):
    """The database lacks something that the model needs."""


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


NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimateRequest:
    """One run: a model on one system and backend, at each tensor-parallel size in `tps`.

    Limits: `max_isl_tokens` (default: the model's context, at most 131,072) bounds the prefill grid;
    `max_batch` is the engine's limit of concurrent requests (256 is vLLM's `max_num_seqs`). `*_points` are
    grid sizes: samples of ISL, context lines, and batches in each line. `name` replaces the
    `<model>_<system>` of directory names. See `EngineSpec` for the rest. Raises `RequestError`.
    """

    model: str
    system: str
    backend: str = "vllm"
    tps: tuple[int, ...] = (1,)
    quantization: str | None = None
    backend_version: str | None = None
    name: str | None = None
    max_isl_tokens: int | None = None
    max_batch: int = 256
    memory_fraction: float = 0.9
    isl_points: int = 25
    context_points: int = 16
    batch_points: int = 16

    def __post_init__(self) -> None:
        if not self.tps or len(set(self.tps)) < len(self.tps) or min(self.tps) < 1:
            raise RequestError(
                f"tp: expected distinct sizes of at least 1, got {', '.join(map(str, self.tps)) or 'none'}"
            )
        for name, least in (("max_batch", 1), ("isl_points", 2), ("context_points", 2), ("batch_points", 2)):
            if getattr(self, name) < least:
                raise RequestError(f"{name}: expected at least {least}, got {getattr(self, name)}")
        if self.max_isl_tokens is not None and self.max_isl_tokens < 256:
            raise RequestError(f"max_isl_tokens: expected at least 256, got {self.max_isl_tokens}")
        if not 0.0 < self.memory_fraction <= 1.0:
            raise RequestError(
                f"memory_fraction: expected a share above 0 and up to 1, got {self.memory_fraction}"
            )
        if self.name is not None and not NAME_PATTERN.fullmatch(self.name):
            raise RequestError(f"name: expected letters, digits, '.', '_' or '-', got {self.name!r}")

    def engine(self, tp: int) -> EngineSpec:
        """The engine at one tensor-parallel size."""
        return EngineSpec(
            model=self.model,
            system=self.system,
            backend=self.backend,
            tp=tp,
            quantization=self.quantization,
            backend_version=self.backend_version,
            memory_fraction=self.memory_fraction,
        )

    def directory_name(self, tp: int) -> str:
        """The profile's directory: `llama-3.1-8b_h100_tp1` for Meta-Llama-3.1-8B on h100_sxm."""
        if self.name is not None:
            return f"{self.name}_tp{tp}"
        model = self.model.rstrip("/").rsplit("/", 1)[-1].lower().removeprefix("meta-")
        system = self.system.removesuffix("_sxm").replace("_", "-")
        suffix = f"-{self.quantization}" if self.quantization else ""
        return f"{model}{suffix}_{system}_tp{tp}"

    def command(self, tp: int) -> str:
        """The command that makes the profile at one tensor-parallel size, without options at default."""
        parts = [
            f"headway estimate --model {self.model} --system {self.system} --backend {self.backend} --tp {tp}"
        ]
        for item in fields(self):
            value = getattr(self, item.name)
            if item.name not in {"model", "system", "backend", "tps"} and value != item.default:
                parts.append(f"--{item.name.removesuffix('_tokens').replace('_', '-')} {value}")
        return " ".join([*parts, "--output DIR"])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EstimatedProfile:
    """One profile, ready to be written: directory name, the two tables, and meta.json's content."""

    name: str
    prefill: PrefillSamples
    decode: DecodeSamples
    meta: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Estimates:
    """The profiles of a run in the order of its `tps` (iterable), and why other sizes were skipped."""

    profiles: tuple[EstimatedProfile, ...]
    skipped: Mapping[int, str] = field(default_factory=dict)

    def __iter__(self) -> Iterator[EstimatedProfile]:
        """Iterate over the profiles."""
        return iter(self.profiles)
