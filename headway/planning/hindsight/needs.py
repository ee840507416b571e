"""What each pool needs by hindsight: the chosen option, the queue on top, and what it may be released to."""

from collections.abc import Mapping
from dataclasses import dataclass

from headway.planning.hindsight import loss_budget
from headway.planning.hindsight.backlog import extra_replicas
from headway.planning.hindsight.choosing import Option, choose
from headway.planning.hindsight.judging import Judgement
from headway.planning.hindsight.outlook import Outlook
from headway.planning.policies import PolicySettings
from headway.planning.types import PoolState, Role

LEARNING = 4
"""Intervals in which targets do not fall."""

STRICTER = 0.6
"""Share of the loss budget that a smaller fleet must keep within to be released to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What one pool needs: replicas, of these `extra` for its queue; `option` None: nothing is known yet.

    `enough` is what it may be released to.

    `requests` and `intervals` are what hindsight rests on, `growth` what it assumed on top, `lead_s` the time
    until a replica ordered now serves, `typical` what half of the intervals needed, `infeasible` the share
    of the last requests that no fleet serves in time.
    """

    replicas: int
    enough: int
    extra: int
    option: Option | None
    requests: float
    growth: float
    intervals: int
    typical: float
    lead_s: float
    learning: bool
    infeasible: float


def needs_of(outlook: Outlook, settings: PolicySettings) -> Mapping[Role, Need]:
    """Of each pool."""
    options = _choose(outlook.judged, settings, loss_budget(settings))
    strict = _choose(outlook.judged, settings, STRICTER * loss_budget(settings))
    return {
        role: _need(role, outlook, settings, options.get(role), strict.get(role))
        for role in outlook.state.pools
    }


def _choose(
    judged: Mapping[Role, Judgement], settings: PolicySettings, may_miss: float
) -> Mapping[Role, Option]:
    each = {role: settings.limits[role].gpus_per_replica for role in judged}
    return choose(judged, each, may_miss) if judged else {}


def _need(
    role: Role, outlook: Outlook, settings: PolicySettings, option: Option | None, strict: Option | None
) -> Need:
    pool, memory = outlook.observation.pools[role], outlook.state.pool(role)
    held = memory.hold.target if memory.hold else pool.desired
    replicas, enough = (option.replicas, option.replicas) if option else (held, held)
    if strict:
        enough = max(enough, strict.replicas)
    if settings.limits[role].min_replicas == 0:
        replicas, enough = _or_none(pool, replicas, enough, idle=outlook.idle and option is not None)
    extra = extra_replicas(pool, memory.seconds_each, settings.slo.ttft_s, replicas) if option else 0
    learning = len(memory.history) <= LEARNING
    judged = outlook.judged.get(role)
    return Need(
        replicas=replicas + extra,
        enough=max(enough + extra, held if learning else 0),
        extra=extra,
        option=option,
        requests=judged.requests if judged else 0.0,
        growth=judged.growth if judged else 0.0,
        intervals=len(memory.history),
        typical=judged.typical if judged else 0.0,
        lead_s=outlook.leads_s[role],
        learning=learning,
        infeasible=memory.infeasible,
    )


def _or_none(pool: PoolState, replicas: int, enough: int, *, idle: bool) -> tuple[int, int]:
    """The same for a pool that may have no replica: none when idle, one at least where a request is."""
    if pool.running > 0 or pool.waiting > 0:
        return max(1, replicas), max(1, enough)
    return (0, 0) if idle else (replicas, enough)
