"""The cheapest fleet that hindsight allows, for all pools together.

Of each pool only the options matter that lose less than every cheaper one. Over all pools

    minimise  Σ_r g_r cost_r   subject to   Σ_r lost_r ≤ budget · requests

g_r being GPUs per replica: the loss budget goes where it saves most GPUs. Where even the dearest options lose
more, those are taken. Options come sorted by cost, so for each option of the one pool that of the other is
found by bisection; with one pool there is nothing to share.

Options that the past cannot tell apart (one replica was always enough, whatever the factor) are not equal for
what comes: of these the forecast is taken at its word, the factor nearest to 1.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headway.planning.hindsight.judging import FACTORS, Judgement
from headway.planning.hindsight.levels import SMOOTHINGS
from headway.planning.types import Role

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

CORRECTION = np.abs(np.log(FACTORS))
"""How far each factor is from the forecast itself."""

EQUAL = np.zeros(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A level and a safety factor: replicas to order, and what the past would have lost and cost."""

    smoothing: float
    factor: float
    replicas: int
    expected: float
    lost: float
    cost: float


@dataclass(frozen=True, slots=True, eq=False)
class Front:
    """Options of one pool that lose less than every cheaper one: cost and loss f8[K], positions i8[K]."""

    cost: FloatArray
    lost: FloatArray
    position: IntArray


def front(cost: FloatArray, lost: FloatArray, rank: FloatArray = EQUAL) -> Front:
    """The efficient ones of f8[J, X] options, cheapest first; of equal ones the least `rank`, f8[X]."""
    ranks = np.broadcast_to(rank, cost.shape).ravel()
    cost, lost = cost.ravel(), lost.ravel()
    order = np.lexsort((ranks, lost, cost))
    least = np.minimum.accumulate(lost[order])
    better = np.append(True, least[1:] < least[:-1])
    kept = order[better]
    return Front(cost[kept], lost[kept], kept)


def choose(
    judgements: Mapping[Role, Judgement], gpus: Mapping[Role, int], loss_budget: float
) -> Mapping[Role, Option]:
    """One option per pool; `gpus` of one replica, `loss_budget` as a share of the requests judged."""
    fronts = {role: front(each.cost * gpus[role], each.lost, CORRECTION) for role, each in judgements.items()}
    allowed = loss_budget * max((each.requests for each in judgements.values()), default=0.0)
    chosen = _cheapest(list(fronts.values()), allowed)
    places = {role: fronts[role].position[at] for role, at in zip(fronts, chosen, strict=True)}
    return {role: _option(judgements[role], int(place)) for role, place in places.items()}


def _cheapest(fronts: list[Front], allowed: float) -> list[int]:
    """Positions in the fronts of least summed cost with summed loss within `allowed`."""
    dearest = [len(each.cost) - 1 for each in fronts]
    if len(fronts) == 1:
        within = np.nonzero(fronts[0].lost <= allowed)[0]
        return [int(within[0])] if len(within) else dearest
    one, other = fronts
    partner = np.searchsorted(-other.lost, -(allowed - one.lost), side="left")
    possible = partner < len(other.cost)
    if not possible.any():
        return dearest
    cost = np.where(possible, one.cost + other.cost[np.minimum(partner, dearest[1])], np.inf)
    first = int(np.argmin(cost))
    return [first, int(partner[first])]


def _option(judged: Judgement, place: int) -> Option:
    row, column = divmod(place, len(FACTORS))
    return Option(
        smoothing=SMOOTHINGS[row],
        factor=float(FACTORS[column]),
        replicas=int(judged.replicas[row, column]),
        expected=float(judged.expected[row]),
        lost=float(judged.lost[row, column]),
        cost=float(judged.cost[row, column]),
    )
