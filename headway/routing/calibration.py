"""How far predictions must be stretched to hold for a given share of requests: a running quantile.

With r = measured / predicted of each finished request, the factor f follows the `level` quantile of r without
keeping samples (stochastic approximation on log f):

    log f ← log f + γ level          where r > f
    log f ← log f − γ (1 − level)    otherwise

At rest a share `level` of requests has r <= f. f stays in [1, 2]: headroom is never measured with less than
the prediction, and one bad hour does not close the doors. It starts at 1.1, the usual spread of the profile's
prior on the engine model.
"""

from math import exp, log

LEVEL = 0.8
"""Share of requests that is to stay within prediction × factor. Higher ones cost more goodput in requests
that are held or shed than they save in promises kept, on the engine model near saturation."""

FIRST = 1.1
MOST = 2.0
STEP = 0.02


class Calibration:
    """The factor of one target."""

    __slots__ = ("_level", "_log_factor", "factor")

    def __init__(self, level: float = LEVEL) -> None:
        self._level, self._log_factor = level, log(FIRST)
        self.factor = FIRST

    def start_from(self, factor: float) -> None:
        """Go on from a factor that was learnt before; one that is no number, or not positive, is ignored."""
        if factor > 0.0:
            self._log_factor = min(max(log(factor), 0.0), log(MOST))
            self.factor = exp(self._log_factor)

    def observe(self, predicted_s: float, measured_s: float) -> None:
        """A pair; one without a prediction or a measurement says nothing."""
        if not (predicted_s > 0.0 and measured_s > 0.0):
            return
        above = measured_s > self.factor * predicted_s
        self._log_factor += STEP * (self._level if above else self._level - 1.0)
        self._log_factor = min(max(self._log_factor, 0.0), log(MOST))
        self.factor = exp(self._log_factor)
