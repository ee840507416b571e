"""The requests of one interval, one by one, made up where nobody recorded them.

Means do not say how bursty the arrivals are, nor how lengths are distributed. A source that records single
requests (the simulator, our gateway) gives them in `Observation.traffic`; with one that only counts (a
Prometheus) that is None, and this is the least that can be assumed instead: a Poisson process, which given
its count is so many independent uniform times, of requests that are all of the mean length.
"""

from math import isfinite

import numpy as np

from headway.planning.types import Observation, Traffic

__all__ = ["Traffic", "synthetic_traffic"]


def synthetic_traffic(observation: Observation) -> Traffic | None:
    """As many arrivals and completions as there were requests, a function of the observation alone.

    The generator is seeded by the interval's start in ms. None where `requests` is NaN, or there were some
    and `isl_tokens` is NaN; no completions where `osl_tokens` is; zero traffic is no requests.
    """
    requests, isl, osl = observation.requests, observation.isl_tokens, observation.osl_tokens
    if not isfinite(requests) or (requests > 0 and not isfinite(isl)):
        return None
    arrivals = max(0, round(requests))
    completions = arrivals if isfinite(osl) else 0
    start_s = observation.now_s - observation.interval_s
    generator = np.random.default_rng(abs(round(start_s * 1e3)))
    before_end_s = np.sort(generator.random(arrivals))[::-1] * observation.interval_s
    return Traffic(
        arrival_s=observation.now_s - before_end_s,
        input_tokens=np.full(arrivals, isl),
        completed_input_tokens=np.full(completions, isl),
        completed_output_tokens=np.full(completions, osl),
    )
