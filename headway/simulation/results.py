"""What came of a simulation: attainment, latencies, cost, and how the fleet moved.

What is counted how is said in `tally`, the bound on cost in `fluid`. `classes` is in the summary where there
are SLO classes, `routing_metrics`, `prefix_hits` and `utilisation` where a router drove.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headway.planning.types import Role, Slo
from headway.simulation.fleet import ReplicaSeries
from headway.simulation.fluid import FluidBound
from headway.simulation.tally import Latency, Tally, class_summary

__all__ = ["FluidBound", "Interval", "Latency", "SimulationResult", "Tally"]


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
    gpu_hours: float
    simulated_s: float
    scale_events: Mapping[Role, int]
    direction_reversals: Mapping[Role, int]
    replicas: Mapping[Role, ReplicaSeries]
    intervals: tuple[Interval, ...]
    notes: tuple[str, ...] = ()
    routing_metrics: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)
    utilisation: Mapping[str, Any] = field(default_factory=dict)

    @property
    def attainment(self) -> float | None:
        """Share of all requests that met all their SLOs; None without requests."""
        return self.tally.attainment

    def summary(self) -> dict[str, Any]:
        """The result as JSON-able data, `wall_s` apart, which whoever has a clock adds."""
        tally = self.tally
        return {
            "policy": self.policy,
            "routing": self.routing,
            "seed": self.seed,
            "slo": {"ttft_s": self.slo.ttft_s, "itl_s": self.slo.itl_s},
            "requests": tally.requests,
            "completed": tally.completed,
            "shed": tally.shed,
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
            **self._of_classes(),
            **self._of_router(),
        }

    def _of_classes(self) -> dict[str, Any]:
        """`classes`, where there are any."""
        tally = self.tally
        pairs = zip(tally.mix.classes, tally.classes, strict=True)
        rows = {of.name: class_summary(of, outcomes, self.simulated_s) for of, outcomes in pairs}
        return {"classes": rows} if tally.mix.named else {}

    def _of_router(self) -> dict[str, Any]:
        """`routing_metrics`, `prefix_hits` and `utilisation`, where a router drove."""
        if not self.routing_metrics:
            return {}
        return {
            "routing_metrics": self.routing_metrics,
            "prefix_hits": self.tally.hits(),
            "utilisation": self.utilisation,
        }
