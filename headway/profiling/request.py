"""What is asked of `headway estimate`, and what comes back. Values only."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from headway.profiling.errors import RequestError
from headway.profiling.estimator import EngineSpec
from interp import DecodeSamples, PrefillSamples

LONGEST_ISL_TOKENS = 131_072
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
    """The profiles of a run in the order of its `tps` (iterable, sized), and why other sizes were skipped."""

    profiles: tuple[EstimatedProfile, ...]
    skipped: Mapping[int, str] = field(default_factory=dict)

    def __iter__(self) -> Iterator[EstimatedProfile]:
        """Iterate over the profiles."""
        return iter(self.profiles)

    def __len__(self) -> int:
        """Count the profiles."""
        return len(self.profiles)
