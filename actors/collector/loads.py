"""Load of pools: gauges of replicas → means over an interval, per role.

    running, waiting   summed over the replicas of the role, averaged over time: requests in the pool
    kv_usage           averaged over the replicas, averaged over time

In the ring's totals a gauge is its integral over time (`sum`, value x seconds) and the seconds (`count`). A
read's value stands for the time since the read before.
"""

from collections.abc import Iterable, Mapping
from math import isnan

from actors.collector.channels import Gauge, role_of
from actors.collector.exposition import Samples, carries
from actors.collector.histogram import Increase
from actors.collector.increments import Key
from actors.collector.presets import Load
from actors.collector.values import PoolLoad
from headway.planning import Role

FIGURES = ("running", "waiting", "kv_usage")


def gained_load(
    samples: Samples, gauges: Iterable[Gauge], load: Load | None, elapsed_s: float
) -> dict[Key, float]:
    """What one read adds to the integrals; nothing for a role without replicas."""
    gained: dict[Key, float] = {}
    if load is None or not elapsed_s > 0:
        return gained
    for gauge in gauges:
        for role, values in _by_role(samples, gauge, load).items():
            value = sum(values) / (len(values) if gauge.averaged else 1)
            gained[_name(role, gauge.figure), "sum"] = value * elapsed_s
            gained[_name(role, gauge.figure), "count"] = elapsed_s
    return gained


def pool_loads(added: Mapping[str, Increase]) -> dict[Role, PoolLoad]:
    """Mean load by role, for the roles that had replicas in the interval."""
    nothing = Increase()
    means = {
        role: {figure: added.get(_name(role, figure), nothing).mean for figure in FIGURES} for role in Role
    }
    return {
        role: PoolLoad(**figures)
        for role, figures in means.items()
        if not all(isnan(mean) for mean in figures.values())
    }


def _name(role: Role, figure: str) -> str:
    return f"load.{role}.{figure}"


def _by_role(samples: Samples, gauge: Gauge, load: Load) -> dict[Role, list[float]]:
    values: dict[Role, list[float]] = {}
    for series, value in samples.items():
        if series.name == gauge.name and carries(series.labels, gauge.where):
            role = role_of(load, dict(series.labels).get(load.role_label or ""))
            if role is not None:
                values.setdefault(role, []).append(value)
    return values
