"""From what an interval added to what is reported of it, and how good that is. Pure; both sources end here.

quantity missing                        reported as
arrivals never seen                     NaN, partial
zero traffic                            requests 0, latencies NaN, ok
requests but no series of a latency     that latency NaN, partial: the detail names it
requests, none of them ended yet        what is known only at the end NaN, ok
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isnan

from actors.collector.channels import Quantity
from actors.collector.histogram import Increase, latency
from actors.collector.values import NAN, Health, HealthStatus, Measured, PoolLoad
from headway.planning import Role

NOTHING = Increase()
AT_THE_END = (Quantity.OSL, Quantity.DURATION, Quantity.TTFT, Quantity.ITL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What one interval added, quantity by quantity; one that is missing was not seen at all."""

    start_s: float
    end_s: float
    increases: Mapping[Quantity, Increase]
    load: Mapping[Role, PoolLoad] = field(default_factory=dict)


def unmeasured(start_s: float, end_s: float, status: HealthStatus, detail: str) -> Measured:
    """An interval of which nothing is known, and why."""
    return Measured(start_s=start_s, end_s=end_s, health=Health(status=status, detail=detail))


def measured(reading: Reading, *, knows_attainment: bool) -> Measured:
    """The interval as reported, and its health."""
    seen = reading.increases
    return Measured(
        start_s=reading.start_s,
        end_s=reading.end_s,
        health=_health(reading, knows_attainment=knows_attainment),
        requests=_count(seen, Quantity.REQUESTS),
        completed=_completed(seen),
        isl_tokens=seen.get(Quantity.ISL, NOTHING).mean,
        osl_tokens=seen.get(Quantity.OSL, NOTHING).mean,
        request_duration_s=seen.get(Quantity.DURATION, NOTHING).mean,
        attainment=_attainment(seen),
        ttft_s=latency(seen.get(Quantity.TTFT, NOTHING)),
        itl_s=latency(seen.get(Quantity.ITL, NOTHING)),
        load=reading.load,
    )


def _count(seen: Mapping[Quantity, Increase], quantity: Quantity) -> float:
    """What was counted; a change of requests in flight cannot make arrivals negative."""
    count = seen.get(quantity, NOTHING).count
    return NAN if isnan(count) else max(count, 0.0)


def _completed(seen: Mapping[Quantity, Increase]) -> float:
    """Requests that ended well: none where arrivals are counted but no end has been seen yet."""
    if Quantity.COMPLETED not in seen and Quantity.REQUESTS in seen:
        return 0.0
    return _count(seen, Quantity.COMPLETED)


def _attainment(seen: Mapping[Quantity, Increase]) -> float:
    met, missed = (
        0.0 if isnan(count) else count
        for count in (seen.get(quantity, NOTHING).count for quantity in (Quantity.MET, Quantity.MISSED))
    )
    return met / (met + missed) if met + missed > 0 else NAN


def _health(reading: Reading, *, knows_attainment: bool) -> Health:
    missing = _missing(reading.increases, knows_attainment=knows_attainment)
    if missing:
        return Health(status=HealthStatus.PARTIAL, detail=f"no data for {', '.join(missing)}")
    return Health(status=HealthStatus.OK)


def _missing(seen: Mapping[Quantity, Increase], *, knows_attainment: bool) -> list[str]:
    """Names of what this interval's traffic should have left behind and did not."""
    requests = seen.get(Quantity.REQUESTS, NOTHING).count
    completed = seen.get(Quantity.COMPLETED, NOTHING).count
    missing = [Quantity.REQUESTS] if isnan(requests) else []
    if requests > 0:
        missing += [] if _usable(seen, Quantity.ISL) else [Quantity.ISL]
    if completed > 0:
        missing += [quantity for quantity in AT_THE_END if not _usable(seen, quantity)]
        if knows_attainment and Quantity.MET not in seen and Quantity.MISSED not in seen:
            missing += [Quantity.MET]
    return [str(quantity) for quantity in missing]


def _usable(seen: Mapping[Quantity, Increase], quantity: Quantity) -> bool:
    """Seen, and not as NaN. A count that stood still is usable: it says that there was nothing."""
    increase = seen.get(quantity)
    return increase is not None and not isnan(increase.count) and not isnan(increase.total)
