"""The event loop: arrivals and ends in order of time, until every request has been served.

At the same instant an end comes before an arrival, so that the newcomer finds the room; of several ends, the
request that arrived first. Every request is served: nothing is shed, and the run goes on after the last
arrival.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headway.simulation.queueing.arrivals import Arrivals, Floats
from headway.simulation.queueing.dispatch import make_dispatch
from headway.simulation.queueing.fleet import Fleet
from headway.simulation.queueing.model import Setup
from headway.simulation.queueing.policies import Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What happened to each request, in order of arrival: waits and service in seconds, where it ran."""

    arrivals: Arrivals
    wait_s: Floats
    service_s: Floats
    consumer: npt.NDArray[np.int64]

    @property
    def end_s(self) -> Floats:
        """When each request ended."""
        end_s: Floats = self.arrivals.time_s + self.wait_s + self.service_s
        return end_s


def simulate(setup: Setup, arrivals: Arrivals, policy: Policy, generator: np.random.Generator) -> Run:
    """Serve all arrivals under one policy; the generator is drawn from by random-push alone."""
    fleet = Fleet(setup, arrivals)
    dispatch = make_dispatch(policy, fleet, generator)
    for request, at_s in enumerate(fleet.arrival_s):
        while (end_s := fleet.next_end_s) <= at_s:
            dispatch.freed(fleet.end_next(), end_s)
        dispatch.arrived(request, at_s)
    while (end_s := fleet.next_end_s) < np.inf:
        dispatch.freed(fleet.end_next(), end_s)
    return Run(
        arrivals=arrivals,
        wait_s=np.array(fleet.started_s) - arrivals.time_s,
        service_s=np.array(fleet.service_s),
        consumer=np.array(fleet.consumer, np.int64),
    )
