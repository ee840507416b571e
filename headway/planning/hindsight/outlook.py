"""What the policy knows when it decides, before it is said how many GPUs there are."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isnan

from headway.planning.hindsight.judging import Judgement
from headway.planning.hindsight.state import HindsightState
from headway.planning.types import Observation, Role

LATELY = 10
"""Intervals over which the rate of requests is averaged."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Outlook:
    """One observation, the state with what it taught, and of the pools that have a past the judgements."""

    observation: Observation
    state: HindsightState
    judged: Mapping[Role, Judgement]
    leads_s: Mapping[Role, float]

    @property
    def lead_s(self) -> float:
        """The longest lead."""
        return max(self.leads_s.values())

    @property
    def idle(self) -> bool:
        """Whether no request came for the longest run-up."""
        return len(self.state.recent.arrival_s) == 0

    @property
    def rate_rps(self) -> float:
        """Requests/s of late; 1 where none were ever measured, so that an unknown load counts."""
        intervals = [pool.history.requests[-LATELY:] for pool in self.state.pools.values()]
        known = [float(requests.mean()) for requests in intervals if len(requests)]
        requests = max(known, default=self.observation.requests)
        return 1.0 if isnan(requests) else requests / self.observation.interval_s
