"""Replicas that are slower or faster than their peers, as their own reports show.

Each report of a replica (`observed_latency`) is held against the corrected surfaces (`refinement`):

    e = ln(measured / corrected)        m, v: mean and variance over the replica's latest reports, of weight w

New reports count fully, those before at most KEPT; what lies back counts half after HALF_LIFE_S, so that a
replica without traffic is tried again in the end. The typical replica is the lower median of all m of a
phase, by which it does not matter what the surfaces leave out for all of them. A replica counts as another
than its peers where

    |m − typical| > max(ln APART, SURE √(max(v, v of all) / w), WIDE · spread of the others)

the spread being 1.48 times the median distance from their median. Then its slowness, relative to the typical
replica, is exp((m − typical) w / (w + DOUBT)), within MOST_RATIO. So a fleet of which no replica clearly
differs has none, and decides as if nothing were observed. What a slow replica reports is no matter of the
common surfaces: `typical_reports` leaves it out.

The answer to a report (`ReplicaWatch.standing`) is what the replica then says of itself wherever it says its
load: how slow it is, and by how many requests an empty batch counts. So gateways place by it without asking
anybody.

A batch of n with mean context c takes about a + b n (`batch_line`). In mixed replicas a prompt of work W,
shared by the iterations of its own output, adds W / output to b.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, isnan, log, nan
from typing import NamedTuple

import numpy as np

from headway.config import HeadwayConfig, Role
from headway.engine.observed_latency import LatencyReport, Phase
from headway.engine.refinement import MOST_RATIO, Refinement, Seen, measured, unexplained
from headway.engine.surfaces import prompt_work_s
from interp import Profile
from interp.arrays import FloatArray

GONE_S = 60.0
"""Least time without a report after which a replica is gone."""

APART, SURE, WIDE = 1.2, 3.0, 4.0
KEPT, HALF_LIFE_S, DOUBT = 8.0, 600.0, 0.5
LEAST = 2.0
"""Weight from which on a replica is judged, and is a peer: three reports, as older ones count less."""

MOST_REPLICAS = 4096
"""Replicas that are remembered of each phase; the one heard of longest ago goes first."""


class Observed(NamedTuple):
    """What one replica reported of one phase: a weight at a time, and by it the means of e and its square."""

    weight: float
    at_s: float
    mean: float
    square: float

    def aged(self, now_s: float) -> "Observed":
        """The same at a later time."""
        weight = self.weight * 0.5 ** (max(0.0, now_s - self.at_s) / HALF_LIFE_S)
        return Observed(weight, max(now_s, self.at_s), self.mean, self.square)

    def with_one(self, e: float) -> "Observed":
        """With one more report."""
        before = min(self.weight, KEPT)
        step = 1.0 / (before + 1.0)
        mean, square = self.mean + step * (e - self.mean), self.square + step * (e * e - self.square)
        return Observed(before + 1.0, self.at_s, mean, square)


class Apart(NamedTuple):
    """A replica that clearly differs: by how many times longer it takes than the typical one, since when."""

    slowness: float
    since_s: float


Differing = Mapping[Phase, Mapping[str, Apart]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSpeeds:
    """Everything that replicas have shown of themselves, by phase and replica, and those that differ."""

    observed: Mapping[Phase, Mapping[str, Observed]] = field(default_factory=dict)
    apart: Differing = field(default_factory=dict)

    @property
    def differ(self) -> bool:
        """True if any replica differs."""
        return any(self.apart.values())

    def of_role(self, role: Role) -> Mapping[str, Apart]:
        """The replicas of a pool that differ; of mixed ones the slower of their phases counts."""
        phases = {Role.PREFILL: (Phase.PREFILL,), Role.DECODE: (Phase.DECODE,)}.get(role, tuple(Phase))
        found: dict[str, Apart] = {}
        for phase in phases:
            for replica, each in self.apart.get(phase, {}).items():
                known = found.get(replica)
                if known is None or each.slowness > known.slowness:
                    found[replica] = each
        return found

    def with_reports(
        self,
        refinement: Refinement,
        seen: Seen,
        now_s: float,
        present: Collection[str] | None = None,
    ) -> "ReplicaSpeeds":
        """After more reports at `now_s`, held against their profile as `refinement` corrects it.

        Of replicas that are not `present` nothing is kept; None keeps all.
        """
        observed: dict[Phase, Mapping[str, Observed]] = {}
        for phase in Phase:
            known = _present(self.observed.get(phase, {}), present)
            if (reports := seen.get(phase)) is not None:
                e = unexplained(refinement, phase, reports)
                known = _with_seen(known, reports.replicas, e, now_s)
            observed[phase] = known
        apart = {phase: _apart(observed[phase], self.apart.get(phase, {}), now_s) for phase in Phase}
        return ReplicaSpeeds(observed=observed, apart=apart)

    def typical_reports(self, seen: Seen) -> Seen:
        """Those of replicas that do not differ in that phase."""
        if not self.differ:
            return seen
        typical = {}
        for phase, reports in seen.items():
            apart = self.apart.get(phase, {})
            if chosen := [at for at, replica in enumerate(reports.replicas) if replica not in apart]:
                typical[phase] = reports.where(chosen)
        return typical


def _present(known: Mapping[str, Observed], present: Collection[str] | None) -> Mapping[str, Observed]:
    if present is None:
        return known
    return {replica: each for replica, each in known.items() if replica in present}


def _with_seen(
    known: Mapping[str, Observed], replicas: Sequence[str], e: FloatArray, now_s: float
) -> Mapping[str, Observed]:
    observed = dict(known)
    for replica, each in zip(replicas, e.tolist(), strict=True):
        if not replica:
            continue
        # Taken out and put in again: the order of the dict is the order in which replicas were last heard of.
        before = observed.pop(replica, Observed(0.0, now_s, 0.0, 0.0)).aged(now_s)
        observed[replica] = before.with_one(each)
    for replica in list(observed)[: max(0, len(observed) - MOST_REPLICAS)]:
        del observed[replica]
    return observed


def _apart(
    observed: Mapping[str, Observed], before: Mapping[str, Apart], now_s: float
) -> Mapping[str, Apart]:
    """The replicas of a phase that differ from their peers."""
    aged = {replica: each.aged(now_s) for replica, each in observed.items()}
    peers = {replica: each for replica, each in aged.items() if each.weight >= LEAST}
    if len(peers) < 2:
        return {}
    ranked = sorted(each.mean for each in peers.values())
    typical = ranked[(len(ranked) - 1) // 2]
    if max(ranked[-1] - typical, typical - ranked[0]) <= log(APART):
        return {}
    weight, _, mean, square = np.array(list(peers.values())).T
    distance = mean - typical
    variance = np.maximum(0.0, square - mean**2)
    error = np.sqrt(np.maximum(variance, weight @ variance / weight.sum()) / weight)
    found: dict[str, Apart] = {}
    for at, replica in enumerate(peers):
        size = abs(float(distance[at]))
        if size > max(log(APART), SURE * float(error[at])) and size > WIDE * _spread(np.delete(mean, at)):
            shrunk = float(distance[at] * weight[at] / (weight[at] + DOUBT))
            slowness = exp(max(-log(MOST_RATIO), min(log(MOST_RATIO), shrunk)))
            since_s = before[replica].since_s if replica in before else now_s
            found[replica] = Apart(slowness, since_s)
    return found


def _spread(means: FloatArray) -> float:
    return 1.4826 * float(np.median(np.abs(means - np.median(means))))


class Lengths(NamedTuple):
    """Mean tokens of prompts and outputs; NaN where that is not known."""

    isl_tokens: float = nan
    osl_tokens: float = nan

    @property
    def context_tokens(self) -> float:
        """Mean context of a request while it decodes: ISL + OSL / 2."""
        return self.isl_tokens + self.osl_tokens / 2.0


class BatchLine(NamedTuple):
    """Seconds of an iteration of n requests, about `idle_s` + `each_s` n, up to `most` requests."""

    idle_s: float
    each_s: float
    most: float

    @property
    def idle_requests(self) -> float:
        """The requests that would take as long as an empty batch does."""
        return self.idle_s / self.each_s

    def worth(self, slowness: float, itl_s: float) -> float:
        """What a replica so much slower does of what another does, both with all that `itl_s` allows."""
        ours, theirs = (self._rate(each, itl_s) for each in (slowness, 1.0))
        return min(1.0, ours / theirs) if theirs > 0.0 else min(1.0, 1.0 / slowness)

    def _rate(self, slowness: float, itl_s: float) -> float:
        requests = max(0.0, min(self.most, (itl_s / slowness - self.idle_s) / self.each_s))
        return requests / (slowness * (self.idle_s + self.each_s * requests))


def batch_line(profile: Profile, role: Role, lengths: Lengths, max_batch_size: float) -> BatchLine:
    """The line through batches of one and of as many as fit, at the mean context."""
    capacity, context = float(profile.decode.table.max_kv_tokens), max(1.0, lengths.context_tokens)
    most = max(2.0, min(max_batch_size, capacity / context))
    usage = np.minimum(1.0, np.array([1.0, most]) * context / capacity)
    one_s, most_s = profile.decode.itl_s(usage, np.full(2, context)).tolist()
    each_s = max((most_s - one_s) / (most - 1.0), one_s / MOST_IDLE)
    idle_s = max(0.0, one_s - each_s)
    if role is Role.MIXED:
        work_s = prompt_work_s(profile.prefill.table, np.array([lengths.isl_tokens]))
        each_s += float(work_s[0]) / max(1.0, lengths.osl_tokens)
    return BatchLine(idle_s, each_s, most)


MOST_IDLE = 10_000.0
"""Bound of a flat batch line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DifferingReplica:
    """A replica that takes `slowness` times as long as the others of its pool, to two digits, since then."""

    replica: str
    slowness: float
    since_s: float


DifferingReplicas = Mapping[Role, tuple[DifferingReplica, ...]]


class ReplicaWatch:
    """The replicas that report, by name. Not for several threads at once.

    A replica that is known to differ reports also when it has nothing to say: one not heard of for GONE_S, or
    three times as long as reports take, is gone. Nothing is stored: it is learnt again from a few reports.
    """

    def __init__(self, config: HeadwayConfig) -> None:
        self._roles = tuple(map(Role, config.pools))
        self._max_batch_size = config.engine.max_batch_size
        self._gone_s = max(GONE_S, 3.0 * config.engine.refinement.report_interval_s)
        self._heard_s: dict[str, float] = {}
        self._lengths: Lengths | None = None
        self._speeds = ReplicaSpeeds()

    def observe(self, lengths: Lengths) -> None:
        """Take the mean lengths of an interval's requests, NaN where they were not measured."""
        if not any(map(isnan, lengths)):
            self._lengths = lengths

    def take(
        self,
        reports: Sequence[LatencyReport],
        replica: str,
        known: tuple[Refinement, Profile],
        now_s: float,
    ) -> Seen:
        """Take the reports of one replica, or of several with their names in them, "" for unknown ones.

        Returned are those that say something of all engines.
        """
        named = [report._replace(replica=replica) for report in reports] if replica else reports
        self._heard_s |= {name: now_s for name in (replica, *(each.replica for each in named)) if name}
        self._heard_s = {
            name: heard_s for name, heard_s in self._heard_s.items() if now_s - heard_s <= self._gone_s
        }
        refinement, profile = known
        seen = measured(profile, named)
        self._speeds = self._speeds.with_reports(refinement, seen, now_s, self._heard_s)
        return self._speeds.typical_reports(seen)

    def differing(self) -> DifferingReplicas:
        """The replicas that differ, by role; roles without any are left out."""
        found = {role: self._speeds.of_role(role) for role in self._roles}
        return {
            role: tuple(
                DifferingReplica(
                    replica=replica, slowness=float(f"{each.slowness:.2g}"), since_s=each.since_s
                )
                for replica, each in sorted(apart.items())
            )
            for role, apart in found.items()
            if apart
        }

    def standing(self, replica: str, profile: Profile) -> Mapping[str, float]:
        """What the replica shall say of itself; nothing for one like the others."""
        for role in self._roles:
            if each := self._speeds.of_role(role).get(replica):
                return {"slowness": each.slowness, "idle_requests": self._idle_requests(role, profile)}
        return {}

    def _idle_requests(self, role: Role, profile: Profile) -> float:
        if role is Role.PREFILL or self._lengths is None:
            return 0.0
        most = float(self._max_batch_size or max(1.0, profile.decode.largest_batch))
        return batch_line(profile, role, self._lengths, most).idle_requests
