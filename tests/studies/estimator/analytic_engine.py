"""A double: an engine whose latencies are formulas, so that tests can compute what tables must hold."""

from dataclasses import dataclass, field

from headway_studies.estimator.request import DoesNotFitError, EngineFacts, EngineSpec, Provenance


@dataclass(slots=True)
class AnalyticEngine:
    """Not an estimate: prefill (2 + isl/100 + (isl/5000)²)/tp ms, decode 5 + n/20 + n·context/100000 ms."""

    spec: EngineSpec
    max_kv_tokens: int = 40_000
    max_context_tokens: int = 32_768
    prefill_asked: list[int] = field(default_factory=list)
    decode_asked: list[tuple[int, int]] = field(default_factory=list)

    @property
    def facts(self) -> EngineFacts:
        return EngineFacts(
            max_context_tokens=self.max_context_tokens,
            max_kv_tokens=self.max_kv_tokens,
            kv_bytes_per_token=1024.0,
            weights_dtype="bfloat16",
            kv_cache_dtype="bfloat16",
        )

    def prefill_ms(self, isl_tokens: int) -> float:
        self.prefill_asked.append(isl_tokens)
        return (2.0 + isl_tokens / 100.0 + (isl_tokens / 5000.0) ** 2) / self.spec.tp

    def decode_ms(self, batch: int, context_tokens: int) -> float:
        self.decode_asked.append((batch, context_tokens))
        return 5.0 + batch / 20.0 + batch * context_tokens / 100_000.0

    def provenance(self) -> Provenance:
        return Provenance(
            tool="analytic double",
            tool_version="1",
            database_mode="FORMULA",
            backend_version="0",
            notes=("a test double, not an engine",),
        )


def open_from_two_gpus(spec: EngineSpec) -> AnalyticEngine:
    """Open a double that needs at least two GPUs."""
    if spec.tp < 2:
        raise DoesNotFitError(f"{spec.model} does not fit on {spec.tp} x {spec.system}")
    return AnalyticEngine(spec)
