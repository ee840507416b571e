"""Measured interval + pool counts → the observation that a policy plans from.

Data that is not fit to plan on (starting, stale, down, or no answer at all) becomes NaN, for which every
policy states what it does: it holds.
"""

from collections.abc import Mapping

from actors.collector.values import Health, HealthStatus, Measured, PoolLoad
from actors.connectors.protocol import PoolCounts
from headway.planning import LoadForecast, Observation, PoolState, Role

USABLE = frozenset({HealthStatus.OK, HealthStatus.PARTIAL})


def unmeasured(now_s: float, interval_s: float, status: HealthStatus, why: str) -> Measured:
    """An interval of which nothing is known, and why."""
    return Measured(start_s=now_s - interval_s, end_s=now_s, health=Health(status=status, detail=why))


def usable(measured: Measured) -> Measured:
    """The same interval, with NaN for everything when its data is not fit to plan on."""
    if measured.health.status in USABLE:
        return measured
    return Measured(start_s=measured.start_s, end_s=measured.end_s, health=measured.health)


def observe(
    measured: Measured,
    counts: Mapping[Role, PoolCounts],
    interval_s: float,
    forecast: LoadForecast | None = None,
) -> Observation:
    """What the policy sees of one interval."""
    known = usable(measured)
    return Observation(
        now_s=known.end_s,
        interval_s=interval_s,
        requests=known.requests,
        isl_tokens=known.isl_tokens,
        osl_tokens=known.osl_tokens,
        ttft_s=known.ttft_s.mean,
        itl_s=known.itl_s.mean,
        request_duration_s=known.request_duration_s,
        pools={role: pool_state(pool, known.load.get(role, PoolLoad())) for role, pool in counts.items()},
        forecast=forecast,
        traffic=known.traffic,
    )


def pool_state(counts: PoolCounts, load: PoolLoad) -> PoolState:
    """One pool: its four counts and its load."""
    return PoolState(
        desired=counts.desired,
        starting=counts.starting,
        ready=counts.ready,
        draining=counts.draining,
        running=load.running,
        waiting=load.waiting,
        kv_usage=load.kv_usage,
    )
