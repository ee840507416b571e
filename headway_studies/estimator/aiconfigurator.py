"""Latencies of one engine from AI Configurator (Apache-2.0, NVIDIA).

It adds up the operators of a model's forward pass: matrix products, attention and collectives are looked up
in databases measured on the very GPU and backend (database mode SILICON), the rest follows a
memory-bandwidth formula. Engine overheads (scheduling, launches, sampling) are not included. A profile needs
the static passes only: `static_ctx` of one request, and `static_gen` with two output tokens, which is exactly
one step over a context one token longer than its input.

The library does not say how much of an answer was measured; notes do, of operators that follow a formula,
of attention beyond the longest context measured, and of tables with rows of another backend or version.
"""

import functools
import pathlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from headway_studies.estimator.library import (
    build_model,
    check_names,
    data_types,
    quiet,
    sdk,
    translated,
    version,
)
from headway_studies.estimator.request import DoesNotFitError, EngineFacts, EngineSpec, Provenance

# The measured table behind each operator class; operators not listed follow formulas.
OPERATOR_TABLES: Mapping[str, str] = {
    "GEMM": "gemm",
    "ContextAttention": "context_attention",
    "GenerationAttention": "generation_attention",
    "ContextMLA": "context_mla",
    "GenerationMLA": "generation_mla",
    "MoE": "moe",
    "CustomAllReduce": "custom_allreduce",
    "NCCL": "nccl",
}
TABLE_SUFFIX = "_perf.parquet"


@dataclass(slots=True, kw_only=True)
class PhaseCoverage:
    """One phase's measured range (longest context per batch size, None if unknown), and a tally of use."""

    phase: str
    longest_tokens: Mapping[int, int] | None
    ms_by_source: dict[str, float] = field(default_factory=dict)
    asked: int = 0
    beyond: int = 0

    def count(self, batch: int, context_tokens: int) -> None:
        """Tally one question."""
        self.asked += 1
        self.beyond += self.longest_tokens is not None and context_tokens > _longest_at(
            self.longest_tokens, batch
        )

    def add(self, latency_ms: Mapping[str, float], source: Mapping[str, str]) -> None:
        """Tally one answer: latency and source label of each operator."""
        for operator, milliseconds in latency_ms.items():
            label = source[operator]
            self.ms_by_source[label] = self.ms_by_source.get(label, 0.0) + milliseconds

    def notes(self) -> Iterator[str]:
        """Notes on the basis of the answers so far."""
        total = sum(self.ms_by_source.values())
        if total:
            shares = ", ".join(
                f"{name} {100.0 * (ms / total):.1f} %" for name, ms in sorted(self.ms_by_source.items())
            )
            yield f"{self.phase}: summed latency by the library's source labels: {shares}"
        if self.asked and self.longest_tokens is None:
            yield f"{self.phase}: the measured range of this model's attention is unknown"
        elif self.beyond and self.longest_tokens is not None:
            yield (
                f"{self.phase}: {self.beyond} of {self.asked} points lie beyond the measured attention "
                f"({_range_text(self.longest_tokens)}) and were extrapolated by the library"
            )


def prefill_coverage(database: Any, model: Any) -> PhaseCoverage:  # noqa: ANN401 - the library's own types
    """The range of measured context attention for this model's head shape, at batch one."""
    types = model.config
    table = _table(
        database, "_context_attention_data", types.fmha_quant_mode, types.kvcache_quant_mode, *_shape(model)
    )
    longest = max((isl for isl, batches in table.items() if 1 in batches), default=0)
    return PhaseCoverage(phase="prefill", longest_tokens={1: longest} if longest else None)


def decode_coverage(database: Any, model: Any) -> PhaseCoverage:  # noqa: ANN401
    """The range of measured generation attention for this model's head shape."""
    table = _table(database, "_generation_attention_data", model.config.kvcache_quant_mode, *_shape(model))
    return PhaseCoverage(
        phase="decode", longest_tokens={batch: max(steps) for batch, steps in table.items()} or None
    )


def borrowed_rows(database: Any, model: Any) -> Iterator[str]:  # noqa: ANN401
    """Notes on tables of this model that may use rows of another backend or version."""
    operators = {type(operator).__name__ for operator in (*model.context_ops, *model.generation_ops)}
    if model.config.tp_size == 1:
        operators -= {"CustomAllReduce", "NCCL"}
    tables = {OPERATOR_TABLES[name] + TABLE_SUFFIX for name in operators & OPERATOR_TABLES.keys()}
    for table in sorted(tables & database.data_provenance.keys()):
        sources = database.data_provenance[table]
        origins = sorted(
            {_origin(row["path"]) for row in sources if row["exists"] and row["channel"] != "primary"}
        )
        if origins:
            yield f"{table.removesuffix(TABLE_SUFFIX)}: the table may use rows of {', '.join(origins)}"


def _shape(model: Any) -> tuple[int, int, int, int]:  # noqa: ANN401
    """The tables' keys: KV heads (0 when each head has its own), head size, window (none), heads; per GPU."""
    heads = int(model._num_heads) // int(model.config.tp_size)
    kv_heads = int(getattr(model, "_num_kv_heads_per_gpu", 0))
    return (0 if kv_heads == heads else kv_heads, int(model._head_size), 0, heads)


def _table(database: Any, name: str, *keys: Any) -> Any:  # noqa: ANN401
    table = _whole_table(database, name)
    for key in keys:
        table = (table or {}).get(key)
    return table or {}


@functools.lru_cache(maxsize=4)
def _whole_table(database: Any, name: str) -> Any:  # noqa: ANN401
    """The library unpacks a table anew for each call, which takes it half a second."""
    with quiet():
        return sdk("engine_table_view").fetch_table_view(database, name)


def _longest_at(longest: Mapping[int, int], batch: int) -> int:
    """Longest measured context at the next measured batch from `batch` up; 0 beyond the largest."""
    return longest.get(min((size for size in longest if size >= batch), default=0), 0)


def _range_text(longest: Mapping[int, int]) -> str:
    some = sorted(longest)[:: max(1, len(longest) // 3)]
    return ", ".join(f"{longest[batch]} tokens at batch {batch}" for batch in some)


def _origin(path: str) -> str:
    """`…/<backend>/<version>/<table>` → `backend version`: no path of a machine reaches a profile."""
    return " ".join(pathlib.PurePath(path).parts[-3:-1])


TOOL = "AI Configurator"
DATABASE_MODE = "SILICON"
GIB = float(1 << 30)


class AiConfigurator:
    """`LatencyEstimator` over AI Configurator's SDK.

    Raises `ExtraNotInstalledError`, `UnknownNameError`, `RequestError` (a local model's file),
    `DoesNotFitError` (no room for a KV cache) or `NotMeasuredError`.
    """

    def __init__(self, spec: EngineSpec) -> None:
        database_version = check_names(spec)
        self._spec = spec
        self._what = f"{spec.model} on {spec.tp} x {spec.system} with {spec.backend}"
        with translated(self._what), quiet():
            self._new_runtime = sdk("config").RuntimeConfig
            self._backend = sdk("backends.factory").get_backend(spec.backend)
            self._database = sdk("perf_database").get_database(
                spec.system, spec.backend, database_version, database_mode=DATABASE_MODE
            )
            self._model = build_model(spec, spec.tp)
            self._facts = self._sizes()
            self._prefill = prefill_coverage(self._database, self._model)
            self._decode = decode_coverage(self._database, self._model)

    @property
    def facts(self) -> EngineFacts:
        """The engine's sizes, by the library's memory model."""
        return self._facts

    def prefill_ms(self, isl_tokens: int) -> float:
        """One context pass over a request of `isl_tokens`, alone in its batch."""
        summary = self._run("static_ctx", batch_size=1, isl=isl_tokens, osl=1)
        latency_ms = summary.get_context_latency_dict()
        self._prefill.count(1, isl_tokens)
        self._prefill.add(latency_ms, summary.get_context_source_dict())
        return float(sum(latency_ms.values()))

    def decode_ms(self, batch: int, context_tokens: int) -> float:
        """One generation step of `batch` requests that attend to `context_tokens` tokens each."""
        summary = self._run("static_gen", batch_size=batch, isl=max(context_tokens - 1, 1), osl=2)
        latency_ms = summary.get_generation_latency_dict()
        self._decode.count(batch, context_tokens)
        self._decode.add(latency_ms, summary.get_generation_source_dict())
        return float(sum(latency_ms.values()))

    def provenance(self) -> Provenance:
        """Tool, versions, and notes on what the answers so far rest on."""
        return Provenance(
            tool=TOOL,
            tool_version=version(),
            database_mode=DATABASE_MODE,
            backend_version=str(self._database.version),
            notes=(
                "sums of isolated operators: the engine's scheduling, launches and sampling are not included",
                *self._prefill.notes(),
                *self._decode.notes(),
                *borrowed_rows(self._database, self._model),
            ),
        )

    def _run(self, mode: str, **runtime: int) -> Any:  # noqa: ANN401 - the library's own type
        with translated(self._what), quiet():
            return self._backend.run_static(
                self._model, self._database, self._new_runtime(**runtime), mode, 1
            )

    def _sizes(self) -> EngineFacts:
        context = int(self._model._context_length)
        # Tensor parallelism may replicate KV heads; a transfer moves each once.
        whole = build_model(self._spec, 1)
        return EngineFacts(
            max_context_tokens=context,
            max_kv_tokens=self._kv_capacity_tokens(),
            kv_bytes_per_token=float(whole.get_kvcache_bytes_per_sequence(context)) / context,
            weights_dtype=self._model.config.gemm_quant_mode.name,
            kv_cache_dtype=self._model.config.kvcache_quant_mode.name,
        )

    def _kv_capacity_tokens(self) -> int:
        """Tokens whose KV fits beside weights, activations and buffers on each GPU."""
        memory, spec = sdk("memory"), self._spec
        parts = memory.KVCacheEstimator.from_request(
            spec.model,
            spec.system,
            spec.backend,
            self._database.version,
            max_num_tokens=spec.max_step_tokens,
            max_batch_size=1,
            tp_size=spec.tp,
            moe_tp_size=spec.tp,
            **data_types(spec),
        ).breakdown
        whole, taken = parts["gpu_memory_capacity_bytes"], parts["non_kv_bytes"]
        of_free = self._backend.memory_fraction_of_free()
        budget = memory.kv_cache_budget_bytes(
            capacity=whole, non_kv=taken, fraction=spec.memory_fraction, of_free=of_free
        )
        tokens = int(parts["tokens_from_kv_bytes"](budget)) if budget > 0 else 0
        if tokens < 1:
            raise DoesNotFitError(
                f"{self._what}: does not fit; weights and buffers take {taken / GIB:.1f} GiB of each GPU's "
                f"{whole / GIB:.1f} GiB, of which a share of {spec.memory_fraction:g} may be used"
            )
        return tokens
