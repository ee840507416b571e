r"""The critical load, and the room to keep for it.

Critical requests come at λ per second, smoothed over T = `MEMORY_S`, and usually stay τ seconds in the
batch. With R replicas λ τ of them run at a time, with a standard deviation of √(λ τ) if arrivals are Poisson.
What is not critical leaves room for z √(λ τ) / R more sequences at each replica (square-root staffing, Halfin
and Whitt 1981): large fleets pay next to nothing for it.
"""

from math import exp, sqrt

MEMORY_S = 30.0
"""Long against a burst or a stay, short against a shift of the load."""

FIRST_S = 10.0
"""What comes in the first seconds is taken for the load of so long at least."""

DEVIATIONS = 1.0
"""z. Critical requests that find no room are held, so little need be kept. Of 0, 1 and 3, on four workloads
at loads of 0.7 to 1.1, 0 lost up to 15 points of critical attainment, 3 a third of the goodput in bursts."""


class CriticalDemand:
    """The critical load that profiles judge."""

    def __init__(self) -> None:
        self._rate_rps, self._at_s, self._began_s = 0.0, 0.0, 0.0

    def seen(self, now_s: float) -> None:
        """A critical request came."""
        if self._rate_rps == 0.0:
            self._began_s = self._at_s = now_s
        self._rate_rps = self._rate_rps * exp((self._at_s - now_s) / MEMORY_S) + 1.0 / MEMORY_S
        self._at_s = now_s

    def room(self, now_s: float, stay_s: float, replicas: int) -> float:
        """Sequences at each of `replicas` that what is not critical leaves room for."""
        if self._rate_rps == 0.0:
            return 0.0
        known = 1.0 - exp(-max(self._at_s - self._began_s, FIRST_S) / MEMORY_S)
        rate_rps = self._rate_rps * exp((self._at_s - now_s) / MEMORY_S) / known
        return DEVIATIONS * sqrt(rate_rps * stay_s) / replicas
