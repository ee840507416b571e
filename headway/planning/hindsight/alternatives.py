"""What simpler fleets would have cost on the past that is known: one of fixed size, and a threshold.

    fixed        n_r replicas of pool r at all times
    threshold    max(1, ⌈w_i-h / u_r⌉) in interval i: replicas follow the work seen a lead h before, so that
                 they are busy for the share u_r of their time (the law of an autoscaler on utilisation)

Of both the cheapest that would have lost no more requests than the budget allows, all pools together:

    lost_r = Σ_i L_ri(n_ri)        gpus = Σ_r gpus_r · mean_i(n_ri)        L: the loss curves of `learning`

The best n_r and u_r are known only afterwards, so nobody can have run these fleets: they are what a perfect
guess of a fixed size, or of a threshold, would have cost.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from headway.planning.hindsight.choice import front, within_budget
from headway.planning.hindsight.history import PoolHistory, common_intervals
from headway.planning.hindsight.state import HindsightState
from headway.planning.types import Alternative, Alternatives, FloatArray, Role

LEAST_INTERVALS = 10
"""Intervals from which on a fleet is worth a comparison."""

UTILISATIONS = np.linspace(0.1, 1.0, 37)
"""u of the thresholds that are tried."""

ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class _Kind:
    """The fleets of one kind in one pool: f8[K] each; `value` is what tells them apart."""

    value: FloatArray
    replicas: FloatArray
    lost: FloatArray


def alternatives(
    state: HindsightState, gpus: Mapping[Role, int], leads: Mapping[Role, int], loss_budget: float
) -> Alternatives | None:
    """The fleets for what `state` remembers; None while that is little.

    `gpus` of one replica and `leads`, intervals ≥ 1, by pool; `loss_budget` is a share of the requests.
    """
    histories = {role: memory.history for role, memory in state.pools.items() if role in gpus}
    requests = max((int(each.requests.sum()) for each in histories.values()), default=0)
    intervals = common_intervals(histories.values())
    if intervals < LEAST_INTERVALS or requests == 0:
        return None
    may_lose = loss_budget * requests
    fixed = {role: _fixed(history) for role, history in histories.items()}
    law = {role: _threshold(history, leads[role]) for role, history in histories.items()}
    return Alternatives(
        intervals=intervals,
        requests=requests,
        fixed=_best(fixed, gpus, may_lose, requests),
        threshold=_best(law, gpus, may_lose, requests),
    )


def _best(
    kinds: Mapping[Role, _Kind], gpus: Mapping[Role, int], may_lose: float, requests: int
) -> Alternative:
    fronts = {role: front(kind.replicas * gpus[role], kind.lost) for role, kind in kinds.items()}
    chosen = within_budget(list(fronts.values()), may_lose)
    found = list(zip(fronts, chosen, strict=True))
    return Alternative(
        gpus=float(sum(fronts[role].cost[at] for role, at in found)),
        lost=float(sum(fronts[role].lost[at] for role, at in found)) / requests,
        pools={role: float(kinds[role].value[fronts[role].position[at]]) for role, at in found},
    )


def _fixed(history: PoolHistory) -> _Kind:
    """All sizes up to the longest curve. Beyond its end a curve keeps its last value."""
    lengths = np.diff(history.starts)
    steps = np.diff(history.lost, prepend=0)
    steps[history.starts[:-1]] = history.lost[history.starts[:-1]]
    places = np.arange(len(history.lost)) - np.repeat(history.starts[:-1], lengths)
    lost: FloatArray = np.cumsum(np.bincount(places, weights=steps))
    sizes = np.arange(1.0, max(2, len(lost)))
    return _Kind(sizes, sizes, lost[1:] if len(lost) > 1 else lost)


def _threshold(history: PoolHistory, lead: int) -> _Kind:
    seen = history.work[np.maximum(np.arange(len(history)) - lead, 0)]
    replicas = np.maximum(1.0, np.ceil(seen / UTILISATIONS[:, None] - ROUNDING))
    lost = history.lost_with(replicas.astype(np.int64), len(history)).sum(axis=1)
    return _Kind(UTILISATIONS, replicas.mean(axis=1), lost.astype(np.float64))
