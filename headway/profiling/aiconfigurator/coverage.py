"""How much of an answer was measured: said in notes, because the library does not flag it in its results.

Three things lower trust: operators that follow a formula instead of a measurement (the library labels
them), attention beyond the longest context that was measured at a batch size (its tables tell), and tables
filled with rows of another backend or version (its provenance record tells).
"""

import functools
import pathlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from headway.profiling.aiconfigurator.sdk import quiet, sdk

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
        """What the answers so far rest on."""
        total = sum(self.ms_by_source.values())
        if total:
            shares = ", ".join(f"{name} {ms / total:.1%}" for name, ms in sorted(self.ms_by_source.items()))
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
    heads, kv_heads = (
        int(model._num_heads) // int(model.config.tp_size),
        int(getattr(model, "_num_kv_heads_per_gpu", 0)),
    )
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
