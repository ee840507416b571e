"""One engine, answered by AI Configurator: a context pass at batch one, a generation step, a memory model.

A profile of separate prefill and decode engines needs the static passes only: `static_ctx` of one request,
and `static_gen` with two output tokens, which is exactly one step over a context one token longer than its
input. KV capacity follows the backend's own rule: vLLM and SGLang give the engine a share of the GPU's
whole memory, and TensorRT-LLM gives the KV cache a share of what weights, activations and buffers leave.
"""

from typing import Any

from headway.profiling.aiconfigurator.catalogue import build_model, check_names, data_types
from headway.profiling.aiconfigurator.coverage import borrowed_rows, decode_coverage, prefill_coverage
from headway.profiling.aiconfigurator.sdk import quiet, sdk, translated, version
from headway.profiling.errors import DoesNotFitError
from headway.profiling.estimator import EngineFacts, EngineSpec, Provenance

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
        whole = build_model(
            self._spec, 1
        )  # tensor parallelism may replicate KV heads; a transfer moves each once
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
