r"""The critical load: the room to keep for it, and the TPOT SLOs that the fleet cannot keep at all.

Critical requests are counted by their TPOT SLO s: arrivals λ, output tokens G, and prefill work V (seconds),
per second, smoothed over T = `MEMORY_S`. With R replicas and a usual stay τ in the batch:

    room        λ τ of them run at a time, with a standard deviation of √(λ τ) if arrivals are Poisson. What
                is not critical leaves room for z √(λ τ) / R more sequences at each replica (square-root
                staffing, Halfin and Whitt 1981): large fleets pay next to nothing for it
    feasible    alone on the fleet and evenly spread, served at a TPOT of just s, N = G s of them decode at a
                time, N / R at a replica, with a prefill duty D = V / R. They are kept if ITL / (1 − D) <= s.
                Within k √N of that limit chance keeps some and loses some: there the more numerous decide,
                the critical ones (N − k √N is tried) or those that are not critical (N + k √N)

An SLO that is lost to the whole fleet, T long, binds no other (`void_s`): replicas would be held to it in
vain. A burst of seconds does not count as that, nor does a replica that is over its SLO for a while.
"""

from collections.abc import Callable
from math import exp, inf, sqrt

MEMORY_S = 30.0
"""Long against a burst or a stay, short against a shift of the load."""

FIRST_S = 10.0
"""What comes in the first seconds is taken for the load of so long at least."""

DOUBT = 2.0
"""k: two standard deviations, the usual bound of chance."""

CHECK_S = 1.0
"""Feasibility is looked at no more often."""

DEVIATIONS = 3.0
"""z. From 1 to 2 to 3 the critical attainment of seven workloads at loads of 0.9 and 1.2 rose from 90.1 to
91.5 and 92.1 % on average, and goodput stayed within 0.3 %; one seed each."""

MOST_SLOS = 64
"""SLOs that are told apart at a time; clients may name any. Further ones are not counted."""

FORGOTTEN_RPS = 1e-4

TpotOf = Callable[[float, float, float], float]
"""TPOT in seconds of (sequences, their KV tokens, prefill duty) that share a replica."""


class _Rates:
    """Requests, output tokens, output × context tokens and prefill seconds, per second."""

    __slots__ = ("at_s", "began_s", "contexts", "outputs", "requests", "work")

    def __init__(self, now_s: float) -> None:
        self.at_s = self.began_s = now_s
        self.requests = self.outputs = self.contexts = self.work = 0.0

    def decay(self, now_s: float) -> None:
        kept = exp((self.at_s - now_s) / MEMORY_S)
        self.requests, self.outputs = self.requests * kept, self.outputs * kept
        self.contexts, self.work = self.contexts * kept, self.work * kept
        self.at_s = now_s

    def add(self, output_tokens: float, context_tokens: float, work_s: float) -> None:
        self.requests += 1.0 / MEMORY_S
        self.outputs += output_tokens / MEMORY_S
        self.contexts += output_tokens * context_tokens / MEMORY_S
        self.work += work_s / MEMORY_S

    @property
    def known(self) -> float:
        """The part of the average's weight that lies after the first request."""
        return 1.0 - exp(-max(self.at_s - self.began_s, FIRST_S) / MEMORY_S)


class CriticalDemand:
    """The critical load that profiles judge."""

    def __init__(self) -> None:
        self._rates: dict[float, _Rates] = {}
        self._others: _Rates | None = None
        self._checked_s = -inf
        self.void_s = -1.0
        """The TPOT SLO that the fleet cannot keep; −1 if there is none."""

    def seen(
        self, now_s: float, tpot_slo_s: float, output_tokens: float, context_tokens: float, work_s: float
    ) -> None:
        """A critical request is about to be placed; it holds `context_tokens` on average."""
        rates = self._rates.get(tpot_slo_s)
        if rates is None:
            if len(self._rates) >= MOST_SLOS:
                return
            rates = self._rates[tpot_slo_s] = _Rates(now_s)
        rates.decay(now_s)
        rates.add(output_tokens, context_tokens, work_s)

    def other(self, now_s: float) -> None:
        """A request came that is not critical."""
        self._others = self._others or _Rates(now_s)
        self._others.decay(now_s)
        self._others.add(0.0, 0.0, 0.0)

    def room(self, now_s: float, stay_s: float, replicas: int) -> float:
        """Sequences at each of `replicas` that what is not critical leaves room for."""
        rate_rps = 0.0
        for slo_s, rates in self._rates.items():
            if slo_s != self.void_s:
                rate_rps += rates.requests * exp((rates.at_s - now_s) / MEMORY_S) / rates.known
        return DEVIATIONS * sqrt(rate_rps * stay_s) / replicas

    def check(self, now_s: float, replicas: int, tpot_of: TpotOf) -> None:
        """Find the SLO that is lost, that of most requests if there are several; forget SLOs that come no
        more."""
        if now_s - self._checked_s < CHECK_S:
            return
        self._checked_s, self.void_s, most_rps, others_rps = now_s, -1.0, 0.0, 0.0
        if self._others is not None:
            self._others.decay(now_s)
            others_rps = self._others.requests
        for slo_s, rates in list(self._rates.items()):
            rates.decay(now_s)
            if rates.requests < FORGOTTEN_RPS:
                del self._rates[slo_s]
                continue
            deviations = DOUBT if others_rps > rates.requests else -DOUBT
            if rates.requests > most_rps and not _kept(slo_s, rates, replicas, deviations, tpot_of):
                self.void_s, most_rps = slo_s, rates.requests


def _kept(slo_s: float, rates: _Rates, replicas: int, deviations: float, tpot_of: TpotOf) -> bool:
    """True if the whole fleet could keep the SLO, with nothing else to do."""
    mean = rates.outputs * slo_s / rates.known
    if slo_s == inf or mean <= 0.0:
        return True
    sequences = max(mean + deviations * sqrt(mean), 0.5 * mean) / replicas
    kv_tokens = sequences * rates.contexts / rates.outputs
    return tpot_of(sequences, kv_tokens, rates.work / (rates.known * replicas)) <= slo_s
