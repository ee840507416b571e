"""Missing capacity: replicas that were ordered and do not come, and what the requests lose by it.

Which replicas are missing is the matter of `starts`. What is lost is read off the loss curve of the last
interval: the share of its requests that a constant fleet of the replicas that are ready would have lost of
those that can keep their SLO (`learning`). It speaks of that interval alone: a queue that has built up makes
it worse.

While a pool misses replicas

    lead      that of replicas that come
    queue     nothing is added for it: what is missing would have to come first
    budget    what is missing holds no GPUs when a budget is divided
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import isnan

from headway.planning.hindsight.starts import MissingReplicas
from headway.planning.hindsight.state import PoolHistory, PoolMemory
from headway.planning.types import NAN, Observation, Role


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingCapacity:
    """What one pool misses: so many `replicas` since `since_s`, seconds of the observation's clock.

    Of them `revoked` were set lower by somebody else. `ready` replicas serve, which lose `lost_share` of the
    last interval's requests; NaN where that is not known.
    """

    replicas: int
    revoked: int
    since_s: float
    ready: int
    lost_share: float


def missing_capacity(
    memories: Mapping[Role, PoolMemory], observation: Observation
) -> Mapping[Role, MissingCapacity]:
    """Of each pool that misses replicas."""
    found: dict[Role, MissingCapacity] = {}
    for role, memory in memories.items():
        if (missing := memory.starts.missing(observation.now_s)) is not None:
            found[role] = _of(missing, memory.history, observation.pools[role].ready)
    return found


def _of(missing: MissingReplicas, history: PoolHistory, ready: int) -> MissingCapacity:
    return MissingCapacity(
        replicas=missing.replicas,
        revoked=missing.revoked,
        since_s=missing.since_s,
        ready=ready,
        lost_share=_lost_share(history, ready),
    )


def _lost_share(history: PoolHistory, ready: int) -> float:
    if len(history) == 0 or history.requests[-1] == 0:
        return NAN
    first, end = history.starts[-2:]
    return float(history.lost[min(first + ready, end - 1)] / history.requests[-1])


def missing_lines(missing: Mapping[Role, MissingCapacity], now_s: float) -> Iterator[str]:
    """A sentence per pool, as operators read it."""
    for role, each in missing.items():
        are = "1 replica is" if each.replicas == 1 else f"{each.replicas} replicas are"
        yield f"{role}: {are} missing, {_cause(each)} {_ago(now_s - each.since_s)} ago{_effect(each)}"


def _cause(missing: MissingCapacity) -> str:
    if missing.revoked == 0:
        return "ordered but not started,"
    return "taken back by somebody else" + ("" if missing.revoked == missing.replicas else " or not started,")


def _effect(missing: MissingCapacity) -> str:
    if isnan(missing.lost_share):
        return ""
    if missing.ready == 0:
        return "; none serves"
    serve = "1 that serves loses" if missing.ready == 1 else f"{missing.ready} that serve lose"
    return f"; the {serve} {100.0 * missing.lost_share:.1f} % of the last requests"


def _ago(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120.0 else f"{seconds / 60.0:.0f} min"
