"""What came of a simulation: attainment, latencies, cost, and how the fleet moved.

Attainment is met / (completed + failed + shed), where a request met its SLOs if TTFT and, with two tokens or
more, TPOT are within them. Latency means are exact; quantiles come from histograms (within 0.25 %). TTFT and
ITL count every token that left, TPOT and E2E completed requests. The fluid bound is Σ work / best throughput
under the SLO: GPU-hours of a fleet that is never idle, never queues and is infinitely divisible; prompt
tokens that the run's own prefix caches saved are not in it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headway.planning.types import Role, Slo
from headway.simulation import layout
from headway.simulation.fleet import ReplicaSeries
from headway.simulation.histogram import BUCKETS, QUANTILES, buckets_of, quantile
from headway.simulation.work import work_s
from interp import Profile

TOLERANCE = 1.0 + 1e-9
CONTEXT_GRID = 4096
ANY_ITL_S = 1e9


@dataclass(slots=True)
class Latency:
    """One latency over the run: count, exact sum, histogram."""

    count: int = 0
    total_s: float = 0.0
    counts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(BUCKETS, np.int64))

    def add(self, values_s: NDArray[np.float64]) -> None:
        """Take in an array of values."""
        self.merge(len(values_s), float(values_s.sum()), np.bincount(buckets_of(values_s), minlength=BUCKETS))

    def merge(self, count: int, total_s: float, counts: NDArray[np.int64]) -> None:
        """Take in a count, a sum and a histogram made elsewhere."""
        self.count += count
        self.total_s += total_s
        self.counts += counts

    def summary(self) -> dict[str, float | None]:
        """Mean and quantiles in seconds; None where nothing was measured."""
        if self.count == 0:
            return dict.fromkeys(("mean", *QUANTILES))
        quantiles = {name: quantile(self.counts, q) for name, q in QUANTILES.items()}
        return {"mean": self.total_s / self.count, **quantiles}


class FluidBound:
    """GPU-seconds that the work done needs at least, with every GPU at its best throughput under the SLO.

    Prompts cost their TTFT where a replica prefills one at a time; where iterations are shared only their
    work (see `work`). Decode tokens cost one over the best throughput at the request's mean context; where
    no batch meets the ITL target, one over the best without a target, so that the figure stays a bound.
    """

    def __init__(self, profile: Profile, slo: Slo, *, shared_iterations: bool) -> None:
        self.gpu_seconds = 0.0
        self._prefill, self._shared = profile.prefill, shared_iterations
        longest = max(2.0, float(profile.decode.table.max_kv_tokens))
        self._contexts = np.geomspace(1.0, longest, CONTEXT_GRID)
        best = profile.decode.best_throughput_per_gpu(slo.itl_s, self._contexts)
        any_itl = profile.decode.best_throughput_per_gpu(ANY_ITL_S, self._contexts)
        throughput = np.where(best.feasible, best.throughput_per_gpu, any_itl.throughput_per_gpu)
        self._seconds_per_token = 1.0 / np.maximum(throughput, 1e-12)

    def add(
        self,
        computed_tokens: NDArray[np.int64],
        decoded_tokens: NDArray[np.int64],
        context: NDArray[np.float64],
    ) -> None:
        """Add requests: prompt tokens computed, tokens decoded, and mean context while decoding."""
        if self._shared:
            work = work_s(self._prefill.table, computed_tokens.astype(np.float64))
            prefill_s = work * self._prefill.gpus_per_engine
        else:
            prefill_s = computed_tokens / np.asarray(self._prefill.throughput_per_gpu(computed_tokens))
        decode_s = decoded_tokens * np.interp(context, self._contexts, self._seconds_per_token)
        self.gpu_seconds += float(prefill_s.sum() + decode_s.sum())


class Tally:
    """Running totals over finished requests; memory does not grow with their number."""

    def __init__(self, profile: Profile, slo: Slo, *, shared_iterations: bool) -> None:
        self.slo = slo
        self.fluid = FluidBound(profile, slo, shared_iterations=shared_iterations)
        self.requests = self.completed = self.failed = self.met = self.retried = self.too_long = 0
        self.cached_tokens = self.input_tokens = 0
        self.latencies = {name: Latency() for name in ("ttft_s", "itl_s", "tpot_s", "e2e_s")}

    def add(self, finished: NDArray[Any]) -> None:
        """Count records of requests that ended."""
        done = finished[finished["outcome"] == layout.COMPLETED]
        ttft_s = done["first_token_s"] - done["arrival_s"]
        decoded = done["output_tokens"] - 1
        streamed = decoded > 0
        tpot_s = (done["finished_s"] - done["first_token_s"])[streamed] / decoded[streamed]
        met = ttft_s <= self.slo.ttft_s * TOLERANCE
        met[streamed] &= tpot_s <= self.slo.itl_s * TOLERANCE
        self.requests += len(finished)
        self.completed += len(done)
        self.failed += len(finished) - len(done)
        self.retried += int((finished["retries"] > 0).sum())
        self.too_long += int(
            ((finished["outcome"] == layout.FAILED) & (finished["prefill_replica"] < 0)).sum()
        )
        self.met += int(met.sum())
        self.input_tokens += int(done["input_tokens"].sum())
        self.cached_tokens += int(done["cached_tokens"].sum())
        self.latencies["tpot_s"].add(tpot_s)
        self.latencies["e2e_s"].add(done["finished_s"] - done["arrival_s"])
        context = done["input_tokens"] + done["output_tokens"] / 2.0
        self.fluid.add(done["input_tokens"] - done["cached_tokens"], decoded, context)


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """One adjustment interval: what was observed in it, what was decided at its end, and why.

    The last one, cut short by the end of the run, is without a decision: `targets` and `reasons` are empty.
    """

    start_s: float
    end_s: float
    requests: int
    isl_tokens: float
    osl_tokens: float
    ttft_s: Mapping[str, float | None]
    itl_s: Mapping[str, float | None]
    attainment: float | None
    forecast: Mapping[str, Any] | None
    load: Mapping[str, Mapping[str, float]]
    targets: Mapping[str, int]
    reasons: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationResult:
    """The outcome of one run; `summary()` is the JSON contract."""

    policy: str
    routing: str
    seed: int
    slo: Slo
    tally: Tally
    shed: int
    gpu_hours: float
    simulated_s: float
    scale_events: Mapping[Role, int]
    direction_reversals: Mapping[Role, int]
    replicas: Mapping[Role, ReplicaSeries]
    intervals: tuple[Interval, ...]
    notes: tuple[str, ...] = ()

    @property
    def attainment(self) -> float | None:
        """Share of all requests that met all their SLOs; None without requests."""
        total = self.tally.requests + self.shed
        return self.tally.met / total if total else None

    def summary(self) -> dict[str, Any]:
        """The result as JSON-able data, `wall_s` apart, which whoever has a clock adds."""
        tally = self.tally
        return {
            "policy": self.policy,
            "routing": self.routing,
            "seed": self.seed,
            "slo": {"ttft_s": self.slo.ttft_s, "itl_s": self.slo.itl_s},
            "requests": tally.requests + self.shed,
            "completed": tally.completed,
            "shed": self.shed,
            "failed": tally.failed,
            "retried": tally.retried,
            "attainment": self.attainment,
            "goodput_rps": tally.met / self.simulated_s if self.simulated_s else 0.0,
            "gpu_hours": self.gpu_hours,
            "fluid_bound_gpu_hours": tally.fluid.gpu_seconds / 3600.0,
            "prefix_hit_rate": tally.cached_tokens / tally.input_tokens if tally.input_tokens else 0.0,
            **{name: latency.summary() for name, latency in tally.latencies.items()},
            "scale_events": sum(self.scale_events.values()),
            "direction_reversals": sum(self.direction_reversals.values()),
            "simulated_s": self.simulated_s,
            "replicas": {
                role.value: {
                    name: list(getattr(series, name))
                    for name in ("time_s", "desired", "starting", "ready", "draining")
                }
                for role, series in self.replicas.items()
            },
            "notes": list(self.notes),
        }
