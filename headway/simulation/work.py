"""What prompt tokens add to an iteration that runs anyway: the prefill work curve.

TTFT(u) of a whole prompt on an idle engine is the cost of an iteration plus the work of u tokens. Where
iterations carry tokens of several prompts, or decodes as well, only the work adds up:

    W(u)   the running maximum of TTFT over the samples, continued to 0 tokens with the slope of its first
           segment (not below 0), and above the last sample as TTFT is
    chunk  from `done` to `done + n` tokens of a prompt adds W(done + n) − W(done) >= 0
    W(0)   is the cost of an iteration without work, when no decode batch pays for it

So no token is free and no chunk takes negative time, also where samples fall or begin at some length.
"""

import numpy as np
from numpy.typing import NDArray

from interp import PrefillTable

FloatArray = NDArray[np.float64]


def work_nodes(table: PrefillTable) -> tuple[FloatArray, FloatArray]:
    """Tokens and seconds of the curve's nodes, the first at 0 tokens; linear in between."""
    tokens, seconds = np.asarray(table.isl_tokens), np.maximum.accumulate(table.ttft_s)
    slope = (seconds[1] - seconds[0]) / (tokens[1] - tokens[0])
    start = max(0.0, float(seconds[0] - slope * tokens[0]))
    return np.concatenate([[0.0], tokens]), np.concatenate([[start], seconds])


def work_s(table: PrefillTable, tokens: FloatArray) -> FloatArray:
    """W at `tokens`, less W(0): seconds that whole prompts add."""
    nodes, seconds = work_nodes(table)
    beyond = np.maximum(tokens - nodes[-1], 0.0)
    growth = table.linear_s_per_token + table.quadratic_s_per_token2 * (tokens + nodes[-1])
    work: FloatArray = np.interp(tokens, nodes, seconds) + beyond * growth - seconds[0]
    return work
