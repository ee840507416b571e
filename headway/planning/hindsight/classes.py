"""Promises to classes of requests: each class keeps a loss budget of its own.

A class has its own SLO, by which replays judge its requests (`headway.planning.replay`), and its own share of
them that may miss it. So each pool has the loss curve of each class beside that of all requests, and the
fleet is the cheapest for which every class c keeps within its budget:

    minimise  Σ_r g_r cost_r   subject to   Σ_r lost_rc ≤ allowed_c   for all c
    allowed_c = max(may_miss_c · requests_c, 1)

A class of so few requests that its budget is not a whole one may lose one: less says nothing. Where no fleet
keeps all budgets, that is taken which exceeds those of critical classes least, and among these all budgets
least. A GPU budget that binds is divided likewise: what a division loses of critical classes above their
budgets outweighs everything else (`division`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from headway.planning.hindsight.settings import class_budgets
from headway.planning.hindsight.state import PoolHistory
from headway.planning.policies import PolicySettings
from headway.planning.types import BoolArray, FloatArray, Role

ONE = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassPast:
    """The past of one class in every pool, and its promise: the share that may miss, and if it goes first."""

    histories: Mapping[Role, PoolHistory]
    may_miss: float
    critical: bool


def class_pasts(
    pasts: Mapping[Role, Sequence[PoolHistory]], settings: PolicySettings
) -> tuple[ClassPast, ...]:
    """One for requests without a class, then each class; none where there are no classes."""
    critical = critical_ones(settings)
    return tuple(
        ClassPast(
            histories={role: each[place] for role, each in pasts.items()},
            may_miss=may_miss,
            critical=bool(critical[place]),
        )
        for place, may_miss in enumerate(class_budgets(settings))
    )


def critical_ones(settings: PolicySettings) -> BoolArray:
    """Which are critical of requests without a class, which are not, and the classes: bool[K]."""
    return np.array([False, *(each.critical for each in settings.classes)])


def allowed_losses(may_miss: FloatArray, requests: FloatArray) -> FloatArray:
    """Requests that each class may lose, f8[K]."""
    allowed: FloatArray = np.maximum(may_miss * requests, ONE)
    return allowed


def cheapest(
    costs: Sequence[FloatArray],
    losses: Sequence[FloatArray],
    allowed: FloatArray,
    critical: BoolArray,
) -> tuple[int, ...]:
    """The option of each pool, one or two, by cost f8[M] and losses f8[K, M], in the order of preference."""
    own_cost, own = costs[0], losses[0]
    other_cost, other = (costs[1], losses[1]) if len(costs) > 1 else (np.zeros(1), np.zeros((len(own), 1)))
    cost = own_cost[:, None] + other_cost
    excess = np.maximum(0.0, own[:, :, None] + other[:, None, :] - allowed[:, None, None])
    within = ~(excess > 0.0).any(axis=0)
    if within.any():
        best = int(np.argmin(np.where(within, cost, np.inf)))
    else:
        order = (cost.ravel(), excess.sum(axis=0).ravel(), excess[critical].sum(axis=0).ravel())
        best = int(np.lexsort(order)[0])
    return tuple(int(place) for place in np.unravel_index(best, cost.shape))[: len(costs)]
