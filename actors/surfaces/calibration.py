"""How the measured latencies compare with the profile's, smoothed per phase.

    ratio     = measured mean / the profile's value at the measured point
    `headway.planning.corrections` smoothed' = (1 - w) * smoothed + w * ratio          w = 0.2; the first
    ratio is taken as it is

Above 1 the deployment is slower than its profile: queueing, noise, or a profile of another engine. For people
and for policies to come: the `reference` policy has its own, unsmoothed factors and reads nothing of this.
"""

import json
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from actors.store import Store
from headway.planning import Observation, PoolState, Role
from headway.planning.corrections import Correction, correct_decode, correct_prefill
from headway.planning.load import Lengths
from interp import Profile

logger = logging.getLogger(__name__)

KEY = "interpolator/calibration"
WEIGHT = 0.2
PHASES = (Role.PREFILL, Role.DECODE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """Measured over expected: smoothed, last, and of how many intervals. `details`: the last computation."""

    smoothed: float = 1.0
    last: float | None = None
    count: int = 0
    at_s: float | None = None
    details: Mapping[str, Any] = field(default_factory=dict)

    def with_measured(self, correction: Correction, at_s: float) -> "Ratio":
        """With one more interval."""
        ratio = correction.value
        smoothed = ratio if self.count == 0 else (1 - WEIGHT) * self.smoothed + WEIGHT * ratio
        return Ratio(
            smoothed=smoothed, last=ratio, count=self.count + 1, at_s=at_s, details=correction.details
        )


class Calibration:
    """The ratio of each phase, kept in the store for one profile; another profile begins anew."""

    def __init__(self, store: Store, version: int) -> None:
        self._store = store
        self._version = version
        self.ratios: dict[Role, Ratio] = {phase: Ratio() for phase in PHASES}
        self._restore()

    def take(self, observation: Observation, profile: Profile) -> None:
        """Compare one interval; one seen before, or in which nothing was measured, changes nothing."""
        lengths = Lengths(isl_tokens=observation.isl_tokens, osl_tokens=observation.osl_tokens)
        decoding = replace(observation, pools={Role.DECODE: _decoding(observation)})
        corrections = {
            Role.PREFILL: correct_prefill(observation, lengths, 1.0, profile.prefill),
            Role.DECODE: correct_decode(decoding, lengths, 1.0, profile.decode),
        }
        at_s = observation.now_s
        taken = {
            phase: self.ratios[phase].with_measured(correction, at_s)
            for phase, correction in corrections.items()
            if correction.basis == "measured" and self.ratios[phase].at_s != at_s
        }
        if taken:
            self.ratios |= taken
            self._save()

    def document(self) -> dict[str, Any]:
        """The ratios as plain data."""
        return {phase.value: asdict(ratio) for phase, ratio in self.ratios.items()}

    def _save(self) -> None:
        stored = {"version": self._version, "ratios": self.document()}
        self._store.put(KEY, json.dumps(stored).encode())

    def _restore(self) -> None:
        try:
            stored = json.loads(self._store.get(KEY) or b"{}")
            if stored.get("version") == self._version:
                self.ratios = {phase: Ratio(**stored["ratios"][phase.value]) for phase in PHASES}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            logger.warning("the stored calibration cannot be read, it begins anew: %s", error)


def _decoding(observation: Observation) -> PoolState:
    """The pool that decodes: its own, or the mixed one."""
    pools = observation.pools
    return pools.get(Role.DECODE) or pools[Role.MIXED]
