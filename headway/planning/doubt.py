"""What was measured under doubt: it counts at once, and is forgotten first. Pure.

Theory. Where two witnesses of an interval's requests contradict each other (`actors.collector.assembling`),
`least_requests` came by all of them, and `requests` by one. A plan rises by the larger at once. Which of them
is true shows later, and what a slip has taught must not outlive it. Once a sure interval has followed, the
one in doubt counts as

    settled = median(least_requests, requests, requests/s of that sure interval x its own length)

Of what witnesses allow it is the nearest to what is sure: under a steady load that load, and of a peak what
all of them saw. Predictors and the policy go on from their state before the first interval in doubt, and
learn settled ones in place of what was seen: no level, loss curve or factor remembers a slip, and no raise
that it asked for waits for its release.

MOST intervals in doubt before a sure one are no slip, and stay as they were seen: to learn them anew takes a
decision each, about half a second under the largest loads, in the time of one. An interval of which nothing
is known, or less than WHOLE of one, makes nothing sure, and LONGEST of all kinds are waited for.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import isfinite

import numpy as np

from headway.planning.forecasting import WHOLE
from headway.planning.types import Observation, Traffic

MOST, LONGEST = 4, 20
ARRIVED = ("arrival_s", "input_tokens", "slo_ttft_s", "slo_itl_s", "slo_class")


def in_doubt(requests: float, least: float) -> bool:
    """True where fewer came by one witness than by another; `least` is NaN where none contradicts."""
    return least < requests


def makes_sure(requests: float, least: float, length: float) -> bool:
    """True for an interval that settles those before it, `length` times the policy's."""
    return isfinite(requests) and not in_doubt(requests, least) and length >= WHOLE


def open_still(doubts: Sequence[bool]) -> bool:
    """True while intervals wait for a sure one; `doubts` says which of them are in doubt."""
    return 0 < sum(doubts) < MOST and len(doubts) < LONGEST


def settled(requests: float, least: float, expected: float) -> float:
    """The requests of an interval of which a sure one lets so many be expected; see the module."""
    return min(max(expected, least), requests) if in_doubt(requests, least) else requests


def settled_by(sure: Observation, observation: Observation) -> Observation:
    """The observation after a sure one, without forecasts that were made of it as it was seen."""
    expected, seen = sure.requests / sure.interval_s * observation.interval_s, observation.requests
    requests, traffic = settled(seen, observation.least_requests, expected), observation.traffic
    if traffic is not None and requests < seen:
        traffic = _thinned(traffic, requests / seen)
    return replace(observation, requests=requests, forecast=None, ahead={}, traffic=traffic)


def _thinned(traffic: Traffic, share: float) -> Traffic:
    """A share of what arrived, chosen at random: what is left of a Poisson process is one."""
    count = len(traffic.arrival_s)
    kept = np.sort(np.random.default_rng(count).permutation(count)[: round(share * count)])
    columns = {name: getattr(traffic, name) for name in ARRIVED}
    return replace(traffic, **{name: column[kept] for name, column in columns.items() if column is not None})
