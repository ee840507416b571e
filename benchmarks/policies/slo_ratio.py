"""The law of latency-driven KEDA and HPA set-ups: replicas in proportion to latency over target.

Theory. Every 15 s (the HPA's sync period), per pool, with r ready replicas and the mean latency L of the
interval (TTFT for prefill, ITL for decode):

    ratio   = L / (SLO / safety)                    unchanged where |ratio − 1| ≤ 0.1 (the HPA's tolerance)
    desired = ceil(r · ratio)                       at most max(2 · n, n + 4), n replicas desired now
    target  = the largest desired of the last 300 s (scale-down stabilisation)

Sources: Kubernetes, "Horizontal Pod Autoscaling" (algorithm details; default behaviour: no stabilisation
upwards, 100 % or 4 pods per 15 s, 300 s downwards) and `GetObjectMetricReplicas`, which multiplies ready pods
by the ratio, as KEDA's Prometheus scaler with metricType Value. An interval without the latency holds.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil, isfinite

from headway.planning import Decision, Observation, PolicySettings, PoolState, Role
from headway.planning.deciding import fit

INTERVAL_S = 15.0
TOLERANCE = 0.1
STABILISATION_S = 300.0
MOST_FACTOR, MOST_PODS = 2, 4


@dataclass(frozen=True, slots=True)
class SloRatioPolicy:
    """The law; its state is the wishes of the last five minutes, per pool."""

    settings: PolicySettings
    safety: float
    name: str = field(default="slo-ratio", init=False)

    @property
    def interval_s(self) -> float:
        return INTERVAL_S

    def initial_state(self) -> Mapping[Role, tuple[tuple[float, int], ...]]:
        return {}

    def plan(self, observation: Observation, state: Mapping[Role, tuple[tuple[float, int], ...]]) -> Decision:
        ratios = {
            Role.PREFILL: self.safety * (observation.ttft_s / self.settings.slo.ttft_s),
            Role.DECODE: self.safety * (observation.itl_s / self.settings.slo.itl_s),
        }
        since = observation.now_s - STABILISATION_S
        wishes = {}
        for role, ratio in ratios.items():
            pool = observation.pools[role]
            earlier = state.get(role, ((observation.now_s, pool.desired),))
            recent = tuple(wish for wish in earlier if wish[0] > since)
            wishes[role] = (*recent, (observation.now_s, desired(pool, ratio)))
        wished = {role: max(count for _, count in of_role) for role, of_role in wishes.items()}
        fitted = fit(wished, self.settings.limits, self.settings.max_gpu_budget)
        return Decision(targets=fitted.targets, next_state=wishes, reasons={})


def desired(pool: PoolState, ratio: float) -> int:
    """Replicas for one pool's ratio, before stabilisation."""
    if not isfinite(ratio) or abs(ratio - 1.0) <= TOLERANCE:
        return pool.desired
    return min(ceil(pool.ready * ratio), max(MOST_FACTOR * pool.desired, pool.desired + MOST_PODS))
