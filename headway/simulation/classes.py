"""SLO classes in a simulation: which class a request is of, and what that class is promised.

    share of class c    share_c / Σ share
    class of request n  the first c with u(n) < cumulative share,  u(n) = splitmix64(n + seed·odd) / 2^64

so that a request has the same class whatever the routing, the fleet or the size of chunks. A promise that a
class leaves open is the deployment's. Without classes all requests are of one that is promised just that.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headway.config import HeadwayConfig
from headway.planning.types import PlanningError, Slo

INCREMENT = np.uint64(0x9E3779B97F4A7C15)
FIRST, SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
SEED_STRIDE = 0xD1342543DE82EF95
"""An odd number: seeds lie far apart in the sequence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestClass:
    """A class: what its requests are promised, and its part of all, relative to the other classes' shares."""

    name: str
    slo: Slo
    critical: bool = False
    share: float = 1.0


class ClassMix:
    """The classes of a run and who belongs to which; without `classes` there is one, without a name."""

    def __init__(self, classes: Sequence[RequestClass], slo: Slo, seed: int) -> None:
        self.named = bool(classes)
        self.classes = tuple(classes) or (RequestClass(name="", slo=slo),)
        shares = np.array([each.share for each in self.classes], np.float64)
        self._until = np.cumsum(shares / shares.sum())[:-1]
        self.limits_s = np.array([(each.slo.ttft_s, each.slo.itl_s) for each in self.classes]).T
        """TTFT and TPOT by place in `classes`: f8[2, C]."""
        self._offset = np.uint64(seed * SEED_STRIDE % 2**64)

    def draw(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """The place in `classes` of each request, by its number in the trace."""
        uniform = _mixed(numbers.astype(np.uint64) * INCREMENT + self._offset) / 2.0**64
        return np.searchsorted(self._until, uniform, side="right").astype(np.int64)


def _mixed(bits: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The output function of SplitMix64 (Steele, Lea, Flood 2014)."""
    bits = (bits ^ (bits >> np.uint64(30))) * FIRST
    bits = (bits ^ (bits >> np.uint64(27))) * SECOND
    mixed: NDArray[np.uint64] = bits ^ (bits >> np.uint64(31))
    return mixed


def request_classes(config: HeadwayConfig) -> tuple[RequestClass, ...]:
    """The classes that `slo.classes` names, in its order.

    Raises PlanningError where no class has a share of the requests.
    """
    slo, classes = config.slo, config.slo.classes
    if classes and not any(each.share for each in classes.values()):
        raise PlanningError("slo.classes: no class has a share of the requests")
    return tuple(
        RequestClass(
            name=name,
            slo=Slo(
                ttft_s=slo.ttft_s if each.ttft_ms is None else each.ttft_ms / 1e3,
                itl_s=slo.itl_s if each.tpot_ms is None else each.tpot_ms / 1e3,
            ),
            critical=each.critical,
            share=each.share,
        )
        for name, each in classes.items()
    )
