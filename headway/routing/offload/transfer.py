"""How long moving KV takes: the configured rule, corrected by what was measured.

    X = f · nominal,   f ← f + α (measured / nominal − f)

nominal is latency + tokens × bytes / bandwidth (`EngineRules.transfer_s`); f starts at 1, so that without
measurements the rule stands. Document 004 has a constant of 0.5 s, measured once.
"""

from dataclasses import dataclass, replace
from math import isfinite
from typing import Self

SMOOTHING = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferEstimate:
    """The factor f between measured and nominal transfer times, and how many measurements it has seen."""

    factor: float = 1.0
    measured: int = 0
    smoothing: float = SMOOTHING

    def observe(self, nominal_s: float, measured_s: float) -> Self:
        """The estimate after one more transfer; without a nominal time, or with NaN, the same estimate."""
        if not (nominal_s > 0.0 and isfinite(nominal_s) and measured_s >= 0.0 and isfinite(measured_s)):
            return self
        error = measured_s / nominal_s - self.factor
        return replace(self, factor=self.factor + self.smoothing * error, measured=self.measured + 1)

    def seconds(self, nominal_s: float) -> float:
        """What a transfer of `nominal_s` by the rule is expected to take."""
        return self.factor * nominal_s
