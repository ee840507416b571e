"""Excess losses: what requests lost beyond what replays of the fleet that stood there say.

Replays know the engine. They do not know a network, a load balancer that places requests blindly, CPUs that
fall behind, neighbours, or a replica that is slower than the others. What these cost shows in the requests
that ended. Of interval i, of one pool,

    y_i = missed_i − seen_i L_i(n_i) / R_i        u_i = n_i / least n with L_i(n) ≤ loss budget · R_i

seen_i of its requests have ended, missed_i of them too late by this pool's fault; L_i is the loss curve for
its R_i requests, n_i the fewest replicas that were ready in it and shortly before. So u is the fleet that was
there over the one that replays ask for; of a fleet that served B_i repeats beside them, which replays do not
have, it is R_i / (R_i + B_i) of that. Intervals with u below 1 were expected to lose, and say nothing.

    E y_i = seen_i exp(a − s (ln u_i − x))              x: the mean of ln u_i, by seen_i and age

A Poisson regression (quasi-likelihood: variance φ times the mean, φ from the residuals; McCullagh and Nelder,
Generalized Linear Models, 1989, chapter 9), by age, with a Gaussian prior on the slope s. Where more replicas
help, s is large, and f(κ) = goal, half the loss budget, gives the fleet that mends it. Where they do not, it
shows once they have been tried: s falls. When κ exceeds MOST times what was there, or MOST_EVER, nothing is
added for the excess, and the decision says so.

So the planner's curves become L_i(n) + R_i f(n / needed_i), f(u) = exp(a' − s (ln max(1, u) − x)), a' being a
less its standard error: what is not sure is not bought. Below NEGLIGIBLE of the loss budget nothing changes.

A latency is laid to the pool that it is about: TTFT to prefill, ITL to decode, both to mixed replicas.
Intervals whose surfaces differ from today's (`pace_s`) do not count: they were judged by another engine.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import ceil, exp, inf, isfinite, log, sqrt

import numpy as np

from headway.planning.hindsight.history import OutcomeHistory, PoolHistory
from headway.planning.replay.curve import least_within
from headway.planning.types import FloatArray, IntArray, Role
from interp.jit import compiled

MOST, MOST_EVER = 2.0, 4.0
"""The largest fleet held for excess losses, as a multiple of what was there, and of what replays ask for."""

NEGLIGIBLE, GOAL = 0.25, 0.5
"""Shares of the loss budget: what an excess must exceed, and what a fleet that mends it leaves."""

SLOPE, SLOPE_ERROR = 12.0, 6.0
"""The prior of s: a tenth more replicas lose about a third."""

LEAST_SLOPE = 0.1
SAME_PACE = 0.05
ENOUGH = 6
"""Intervals that an estimate needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Excess:
    """Losses that replays do not explain: a `share` of the requests of `intervals`, less its error.

    It was lost at a fleet `provision` times as large as replays ask for, and falls by `slope`. `larger` times
    as large keeps the goal; infinite where none is known to: then nothing is planned for it.
    """

    share: float
    provision: float
    slope: float
    larger: float
    intervals: int

    @property
    def planned(self) -> bool:
        """True where the plan holds more replicas for it."""
        return isfinite(self.larger)


def excess(outcomes: OutcomeHistory, may_miss: float, half_life_s: float) -> Excess | None:
    """What the outcomes show; None where that is nothing that counts. `may_miss`: the loss budget."""
    if len(outcomes) == 0 or may_miss <= 0.0:
        return None
    same = np.abs(outcomes.pace_s / outcomes.pace_s[-1] - 1.0) <= SAME_PACE
    told = same & (outcomes.seen > 0) & (outcomes.provision >= 1.0) & np.isfinite(outcomes.provision)
    if np.count_nonzero(told) < ENOUGH:
        return None
    seen, x = outcomes.seen[told], np.log(outcomes.provision[told])
    unexplained = outcomes.missed[told] - seen * outcomes.expected[told]
    weights = 0.5 ** ((outcomes.ended_s[-1] - outcomes.ended_s[told]) / half_life_s)
    if weights @ unexplained <= NEGLIGIBLE * may_miss * (weights @ seen):
        return None
    center = float(np.average(x, weights=weights * seen))
    level, slope, error = _regression(unexplained, seen, x - center, weights)
    share, provision = exp(level - error), exp(center)
    if share <= NEGLIGIBLE * may_miss:
        return None
    slower = log(share / (GOAL * may_miss)) / max(slope, LEAST_SLOPE)
    larger = max(1.0, provision * exp(min(slower, log(MOST_EVER))))
    return Excess(
        share=share,
        provision=provision,
        slope=slope,
        larger=larger if larger < min(MOST_EVER, MOST * provision) else inf,
        intervals=int(np.count_nonzero(told)),
    )


def _regression(
    unexplained: FloatArray, seen: FloatArray, x: FloatArray, weights: FloatArray
) -> tuple[float, float, float]:
    """a, s, and the standard error of a: Newton's steps, and φ from the residuals of each."""
    level, slope, spread = log((weights @ unexplained) / (weights @ (seen * np.exp(-SLOPE * x)))), SLOPE, 1.0
    hessian = np.eye(2)
    for _ in range(30):
        mean = seen * np.exp(np.clip(level - slope * x, -50.0, 0.0))
        residual = unexplained - mean
        spread = max(1.0, float(weights @ (residual**2 / np.maximum(mean, 1.0))) / float(weights.sum()))
        design = np.stack([np.ones(len(x)), -x])
        prior = np.array([0.0, (SLOPE - slope) / SLOPE_ERROR**2])
        gradient = design @ (weights * residual) / spread + prior
        hessian = (design * (weights * mean)) @ design.T / spread
        hessian[0, 0] += 1e-9
        hessian[1, 1] += 1.0 / SLOPE_ERROR**2
        step = np.clip(np.linalg.solve(hessian, gradient), -2.0, 2.0)
        level, slope = min(0.0, level + float(step[0])), max(0.0, slope + float(step[1]))
        if np.abs(step).max() < 1e-6:
            break
    return level, slope, sqrt(float(np.linalg.inv(hessian)[0, 0]))


def with_excess(history: PoolHistory, found: Excess | None, may_miss: float) -> PoolHistory:
    """The history as it would be with these losses on top; the same where none are planned for."""
    if found is None or not found.planned:
        return history
    alone = found.share * found.provision**found.slope
    starts, lost = _raised(history.starts, history.lost, may_miss, (alone, found.slope))
    return replace(history, starts=starts, lost=lost)


@compiled
def _raised(
    starts: IntArray, lost: IntArray, may_miss: float, law: tuple[float, float]
) -> tuple[IntArray, IntArray]:
    (share, slope), count = law, len(starts) - 1
    least, begins = least_within(starts, lost, may_miss), np.zeros(count + 1, np.int64)
    for i in range(count):
        last = starts[i + 1] - starts[i] - 1
        longest = last + 1 if lost[starts[i]] == 0 else max(last, ceil(MOST_EVER * least[i])) + 1
        begins[i + 1] = begins[i] + longest
    raised = np.zeros(begins[count], np.int64)
    for i in range(count):
        start, last, requests = starts[i], starts[i + 1] - starts[i] - 1, lost[starts[i]]
        for n in range(begins[i + 1] - begins[i]):
            more = requests * share * max(1.0, n / least[i]) ** -slope
            raised[begins[i] + n] = min(requests, lost[start + min(n, last)] + round(more))
    return begins, raised


def excess_lines(found: Mapping[Role, Excess], interval_s: float) -> Iterator[str]:
    """A sentence per pool, as operators read it."""
    for role, each in found.items():
        since = f"{each.intervals * interval_s / 60.0:.0f} min"
        effect = (
            f"{each.larger:.2f} times as many replicas as without are held for it"
            if each.planned
            else "more replicas do not help, none are held for it"
        )
        missed = f"{100.0 * each.share:.1f} % of the requests of {since} missed their SLO"
        yield f"{role}: {missed} beyond what replays explain; {effect}"
