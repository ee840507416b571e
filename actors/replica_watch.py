"""The replicas of a deployment, as the Interpolator knows them: which are slower or faster than their peers.

Each report says whose it is (`headway.engine.replica_speeds` has the theory). The answer to a report is what
the replica then says of itself wherever it says its load: how slow it is, and by how many requests an empty
batch counts. So gateways place by it without asking anybody. A replica that is known to differ reports also
when it has nothing to say: one not heard of for GONE_S, or three times as long as reports take, is gone.

Nothing of this is stored: it is learnt again from a few reports.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isnan

from headway.config import HeadwayConfig
from headway.engine.observed_latency import LatencyReport
from headway.engine.refinement import Refinement
from headway.engine.replica_speeds import Lengths, ReplicaSpeeds, batch_line
from headway.planning import Observation, Role
from interp import Profile

GONE_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DifferingReplica:
    """A replica that takes `slowness` times as long as the others of its pool, to two digits, since then."""

    replica: str
    slowness: float
    since_s: float


Differing = Mapping[Role, tuple[DifferingReplica, ...]]


class ReplicaWatch:
    """The replicas that report. Not for several threads at once."""

    def __init__(self, config: HeadwayConfig) -> None:
        self._roles = tuple(map(Role, config.pools))
        self._max_batch_size = config.engine.max_batch_size
        self._gone_s = max(GONE_S, 3.0 * config.engine.refinement.report_interval_s)
        self._heard_s: dict[str, float] = {}
        self._lengths: Lengths | None = None
        self._speeds = ReplicaSpeeds()

    def observe(self, observation: Observation) -> None:
        """Take the lengths of an interval's requests, as far as they were measured."""
        lengths = Lengths(observation.isl_tokens, observation.osl_tokens)
        if not any(map(isnan, lengths)):
            self._lengths = lengths

    def take(
        self,
        reports: Sequence[LatencyReport],
        replica: str,
        known: tuple[Refinement, Profile],
        now_s: float,
    ) -> Sequence[LatencyReport]:
        """Take the reports of one replica, "" for an unknown one; those that say something of all engines."""
        named = [report._replace(replica=replica) for report in reports]
        if replica:
            self._heard_s[replica] = now_s
        self._heard_s = {
            name: heard_s for name, heard_s in self._heard_s.items() if now_s - heard_s <= self._gone_s
        }
        self._speeds = self._speeds.with_reports(*known, named, now_s, self._heard_s)
        return self._speeds.typical_reports(named)

    def differing(self) -> Differing:
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
