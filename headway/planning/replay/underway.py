"""Requests that are already decoding when a replay begins.

Outputs may take many minutes, and a fleet that begins idle would be too empty for as long. Instead, what came
before `since_s` is there from then on as it would be: with the tokens that it has by then, at the pace of a
well used replica, and with the rest of its output to come.
"""

import numpy as np

from headway.planning.replay.engine import ReplayEngine, Requests, busy_iteration_s, prompt_s
from interp.arrays import BoolArray

SLACK = 1.5
"""By how much the pace may still change with the mix, where nothing may be lost."""


def may_last(engine: ReplayEngine, requests: Requests, since_s: float) -> BoolArray:
    """Which come after `since_s`, or may still decode then, bool[N]: for some mix of them at least."""
    if len(requests.arrival_s) == 0:
        return np.zeros(0, np.bool_)
    slowest_s = min(engine.slo.itl_s, SLACK * busy_iteration_s(engine, requests))
    lasting: BoolArray = requests.arrival_s + requests.output_tokens * slowest_s > since_s
    return lasting


def under_way(engine: ReplayEngine, requests: Requests, since_s: float) -> tuple[Requests, BoolArray]:
    """The requests as `since_s` finds them, those under way first, and which of `requests` are left, bool[N].

    Their inputs are the tokens that they have, all computed; those that would have ended are left out.
    """
    whole = requests.arrival_s > since_s
    if whole.all():
        return requests, whole
    decoding_s = np.maximum(0.0, since_s - requests.arrival_s - prompt_s(engine, requests))
    produced = np.where(whole, 0.0, decoding_s // busy_iteration_s(engine, requests))
    left = produced < requests.output_tokens
    found = Requests(
        arrival_s=np.maximum(requests.arrival_s, since_s),
        input_tokens=requests.input_tokens + produced,
        output_tokens=requests.output_tokens - produced,
    )
    return found.where(left), left
