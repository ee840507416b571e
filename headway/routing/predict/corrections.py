"""Corrections that were learnt of the engines' speed: factors between predicted and measured times.

Safety of predictions. With r = measured / predicted of each finished request, the factor f follows the
LEVEL quantile of r without keeping samples (stochastic approximation on log f):

    log f ← log f + γ LEVEL          where r > f
    log f ← log f − γ (1 − LEVEL)    otherwise

At rest a share LEVEL of requests has r <= f. f starts at 1.1, the usual spread of the profile's prior, and
stays in [1, 2]: one bad hour does not close the doors. Below f in so many requests on end as chance has below
it once in a hundred times, it has become too large, and the steps are four times as long. Where requests
spill over to another deployment, LEVEL is the share that was promised: nothing is lost by turning some away.

Each replica has a factor of its own, so that a bad one costs the others nothing. Of n requests there the
factor f' is made, and w = n / (n + 20) of log f is log f', the rest that of all replicas of its GPU type.

KV transfer. X = f · nominal, where nominal is latency + tokens × bytes / bandwidth (`EngineRules.transfer_s`)
of the tokens that D lacks, which are all that is sent:

    f ← f + α clip(measured / nominal − f, −1, 1)
    measured = (first token − prompt computed) − wait
    wait     = (i + w) / 2 + i' + w     the rest of the iteration under way when the KV comes, half of it on
                                        average, and one of its own; an idle D has no first part

for a batch of n sequences with K tokens at D when the prompt is computed: i = ITL(n, K), i' = ITL(n + 1, K +
input), w the work of the chunk of D's own prompts beside it, 0 where none waits; all by the fleet's table.
f starts at 1, so that without measurements the rule stands, and stays in [0.05, 20].

A measured time may be below 0, since D changes while the KV travels, and counts like any other: without them
the rest would be too long on average. Where D has no room the wait is unknown and nothing is measured.
Disaggregated pools keep the rule: the latency model learns their TTFT whole (docs/offload.md).
"""

from collections.abc import Callable
from math import exp, isfinite, log, sqrt

from headway.engine.rules import EngineRules
from headway.routing.fleet.fleet import RoutedFleet
from headway.routing.fleet.records import Record
from headway.routing.fleet.table import FloatArray
from headway.routing.types import Figures

LEVEL = 0.8
"""Share of requests that is to stay within prediction × factor. Higher ones cost more goodput in requests
that are held or shed than they save in promises kept, on the engine model near saturation."""

FIRST_SAFETY = 1.1
MOST_SAFETY = 2.0
SAFETY_STEP = 0.02
CHANCE, HASTE = 0.01, 4.0
MOST_LEVEL = 0.999
OWN_SAMPLES = 20.0


class SafetyFactor:
    """The factor of one target."""

    __slots__ = ("_below", "_log_factor", "_run", "factor", "level")

    def __init__(self, level: float = LEVEL) -> None:
        self.level, self._run = level, int(log(CHANCE) / log(level))
        self._log_factor, self._below = log(FIRST_SAFETY), 0
        self.factor = FIRST_SAFETY

    def start_from(self, factor: float) -> None:
        """Go on from a factor that was learnt before; one that is no number, or not positive, is ignored."""
        if factor > 0.0:
            self._log_factor = min(max(log(factor), 0.0), log(MOST_SAFETY))
            self.factor = exp(self._log_factor)

    def observe(self, predicted_s: float, measured_s: float) -> None:
        """A pair; one without a prediction or a measurement says nothing."""
        if not (predicted_s > 0.0 and measured_s > 0.0):
            return
        above = measured_s > self.factor * predicted_s
        self._below = 0 if above else self._below + 1
        haste = HASTE if self._below > self._run else 1.0
        self._log_factor += haste * SAFETY_STEP * (self.level if above else self.level - 1.0)
        self._log_factor = min(max(self._log_factor, 0.0), log(MOST_SAFETY))
        self.factor = exp(self._log_factor)


class ReplicaSafety:
    """The factor of one target at one replica, beside that of its `kind`."""

    __slots__ = ("_own", "_samples", "kind")

    def __init__(self, kind: SafetyFactor) -> None:
        self.kind, self._own, self._samples = kind, SafetyFactor(kind.level), 0
        self._own.start_from(kind.factor)

    @property
    def factor(self) -> float:
        """The factor to use."""
        own = self._samples / (self._samples + OWN_SAMPLES)
        return float(self._own.factor**own * self.kind.factor ** (1.0 - own))

    def observe(self, predicted_s: float, measured_s: float) -> None:
        """A pair; one without a prediction or a measurement says nothing."""
        if predicted_s > 0.0 and measured_s > 0.0:
            self._samples += 1
            self._own.observe(predicted_s, measured_s)
            self.kind.observe(predicted_s, measured_s)


SMOOTHING = 0.1
LEAST_TRANSFER, MOST_TRANSFER = 0.05, 20.0
"""Bounds of the factor: beyond them a rule is not imprecise but of another kind."""


class Handovers:
    """Transfers of one router's offloaded prompts: expected, and measured.

    `joining_s(table, slot, input_tokens)` is the wait of a prompt whose KV arrives at a mixed replica until
    its first token, seconds; NaN where that is unknown.
    """

    def __init__(
        self, fleet: RoutedFleet, rules: EngineRules, joining_s: Callable[[FloatArray, int, int], float]
    ) -> None:
        self._fleet, self._rules, self._joining_s = fleet, rules, joining_s
        self.factor, self.measured = 1.0, 0

    def seconds(self, tokens: int) -> float:
        """Expected seconds of moving the KV of so many tokens."""
        return self.factor * self._rules.transfer_s(tokens)

    def start_from(self, factor: float) -> None:
        """Go on from a factor that was learnt before; one that is no number, or not positive, is ignored."""
        if factor > 0.0:
            self.factor = min(max(factor, LEAST_TRANSFER), MOST_TRANSFER)

    def observe(self, nominal_s: float, measured_s: float) -> None:
        """One more transfer; without a nominal time, or with NaN, it says nothing."""
        if nominal_s > 0.0 and isfinite(nominal_s) and isfinite(measured_s):
            error = measured_s / nominal_s - self.factor
            factor = self.factor + SMOOTHING * min(max(error, -1.0), 1.0)
            self.factor = min(max(factor, LEAST_TRANSFER), MOST_TRANSFER)
            self.measured += 1

    def sent(self, record: Record, tokens: int) -> None:
        """A prompt is computed at P, and the KV of `tokens` sets out; called before the table is changed."""
        assert record.decode is not None, "it has been placed"
        wait_s = self._joining_s(self._fleet.table, record.decode.slot, record.request.input_tokens)
        record.handover = self._rules.transfer_s(tokens), wait_s

    def arrived(self, now_s: float, record: Record) -> None:
        """Its first token left. Without the time of its prompt it says nothing."""
        if record.handover is not None and record.prefilled_s >= 0.0:
            nominal_s, wait_s = record.handover
            self.observe(nominal_s, now_s - record.prefilled_s - wait_s)
        record.handover = None

    def figures(self) -> Figures:
        """`factor` and `measured`, once anything was."""
        return {("factor",): self.factor, ("measured",): float(self.measured)} if self.measured else {}


MEMORY_S = 30.0
"""Long against a burst or a stay, short against a shift of the load."""

FIRST_S = 10.0
"""What comes in the first seconds is taken for the load of so long at least."""


DEVIATIONS = 1.0
"""z. On four 8B replicas at 90 and 110 %, 40 % of the requests critical with a tight TPOT SLO, 0, 1 and 2
kept 96.1, 98.4 and 99.1 % and 91.7, 96.5 and 98.3 % of them, at the same goodput to 1 %. On one replica at
110 %, where all have the same SLOs, 1 and 2 cost 10 and 17 % of the goodput."""


class CriticalDemand:
    """The critical load that profiles judge, and the room to keep for it.

    Critical requests come at λ per second, smoothed over MEMORY_S, and usually stay τ seconds in the batch.
    With R replicas λ τ of them run at a time, with a standard deviation of √(λ τ) if arrivals are Poisson.
    What is not critical leaves room for z √(λ τ) / R more sequences at each replica (square-root staffing,
    Halfin and Whitt 1981), and for no more than λ τ / R: large fleets pay next to nothing for it.
    """

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
        running = rate_rps * stay_s
        return min(DEVIATIONS * sqrt(running), running) / replicas
