"""Which policy is better: sorted by mean, neighbours told apart by their paired difference over the seeds.

`<`: the 95 % interval of the difference excludes 0. `=`: it does not, or the difference is exactly 0 in every
seed. `?`: one seed, nothing to tell by. The intervals are per pair, not corrected for the number of pairs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan
from typing import Literal

from headway.simulation.queueing.estimate import Estimate
from headway.simulation.queueing.experiment import Metric, PolicyResult

Relation = Literal["", "<", "=", "?"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One policy in the order, and the one before it: `difference` is this one's mean minus that one's."""

    result: PolicyResult
    relation: Relation
    difference: Estimate | None


def order_by(results: Sequence[PolicyResult], metric: Metric) -> tuple[Place, ...]:
    """The results from the least mean to the greatest; equal ones keep their order, none is last."""
    ranked = sorted(results, key=lambda result: _sortable(result.estimate(metric).mean))
    places = []
    for at, result in enumerate(ranked):
        difference = result.difference(ranked[at - 1], metric) if at else None
        places.append(Place(result=result, relation=_relation(difference), difference=difference))
    return tuple(places)


def _sortable(mean: float) -> tuple[bool, float]:
    return (True, 0.0) if isnan(mean) else (False, mean)


def _relation(difference: Estimate | None) -> Relation:
    if difference is None:
        return ""
    if isnan(difference.half_width):
        return "?"
    return "<" if difference.is_above_zero else "="
