"""What one tick leaves to the next, also to that of a restarted planner: the policy's state, and attainment
so far.

It is stored with the decision that made it, in the same write, so that both are there or neither.
"""

import logging
import pickle
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any

from actors.collector.values import Measured

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """The state of the policy named, and the requests that have ended and that met their SLO."""

    policy: str = ""
    state: Any = None
    ended: float = 0.0
    met: float = 0.0

    @property
    def attainment(self) -> float | None:
        """The share of all requests that met their SLO; None before any has ended."""
        return self.met / self.ended if self.ended > 0 else None

    def counting(self, measured: Measured) -> "Memory":
        """With one more interval's requests, if it is known how many of them met the SLO.

        An interval weighs as many requests as completed in it or arrived, whichever is more: nothing
        completes in an outage, and it must count all the same.
        """
        counts = [count for count in (measured.completed, measured.requests) if isfinite(count)]
        if not isfinite(measured.attainment) or not counts:
            return self
        ended = max(counts)
        return replace(self, ended=self.ended + ended, met=self.met + measured.attainment * ended)

    def dump(self) -> bytes:
        """Bytes for the store."""
        return pickle.dumps(self)


def load_memory(data: bytes) -> Memory:
    """What was stored; empty when this version of Headway cannot read it, which is logged."""
    try:
        memory = pickle.loads(data) if data else Memory()
        pickle.dumps(memory)  # AttributeError where a class has got a field since, which it would lack
    except (pickle.UnpicklingError, AttributeError, ImportError, TypeError, EOFError, ValueError) as error:
        logger.warning("the planner's stored state cannot be read, it begins anew: %s", error)
        return Memory()
    return memory if isinstance(memory, Memory) else Memory()
