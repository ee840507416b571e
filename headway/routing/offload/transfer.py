"""How long moving KV takes: the configured rule, corrected by what was measured.

    X = f · nominal,   f ← f + α clip(measured / nominal − f, −1, 1)

nominal is latency + tokens × bytes / bandwidth (`EngineRules.transfer_s`); f starts at 1, so that without
measurements the rule stands, and stays in [0.05, 20]. Document 004 has a constant of 0.5 s, measured once.

What is measured holds the error of an expected wait (see `handover`), so it may be below 0, which counts like
any other: left out, the rest would be too long on average. Errors as often long as short leave f where it is,
however large they are, and one measurement, whatever it says, moves it by α at most.
"""

from dataclasses import dataclass, replace
from math import isfinite
from typing import Self

SMOOTHING = 0.1
LEAST, MOST = 0.05, 20.0
"""Bounds of the factor: beyond them a rule is not imprecise but of another kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferEstimate:
    """The factor f between measured and nominal transfer times, and how many measurements it has seen."""

    factor: float = 1.0
    measured: int = 0
    smoothing: float = SMOOTHING

    def observe(self, nominal_s: float, measured_s: float) -> Self:
        """The estimate after one more transfer; without a nominal time, or with NaN, the same estimate."""
        if not (nominal_s > 0.0 and isfinite(nominal_s) and isfinite(measured_s)):
            return self
        error = measured_s / nominal_s - self.factor
        factor = self.factor + self.smoothing * min(max(error, -1.0), 1.0)
        return replace(self, factor=min(max(factor, LEAST), MOST), measured=self.measured + 1)

    def seconds(self, nominal_s: float) -> float:
        """What a transfer of `nominal_s` by the rule is expected to take."""
        return self.factor * nominal_s
