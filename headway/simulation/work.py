"""What prompt tokens add to an iteration that runs anyway: the prefill work curve.

TTFT(u) of a whole prompt on an idle engine is the cost of an iteration plus the work of u tokens. Where
iterations carry tokens of several prompts, or decodes as well, only the work adds up:

    W(u)   the running maximum of TTFT over the samples, continued to 0 tokens with its slope at the first
           ones (not below 0, nor above the shortest ITL), and above the last sample as TTFT is
    chunk  from `done` to `done + n` tokens of a prompt adds W(done + n) − W(done) >= 0
    W(0)   is the cost of an iteration without work, when no decode batch pays for it

So no token is free and no chunk takes negative time, also where samples fall or begin at some length.
"""

import numpy as np
from numpy.typing import NDArray

from interp import PrefillTable

FloatArray = NDArray[np.float64]


def work_s(table: PrefillTable, tokens: FloatArray) -> FloatArray:
    """W at `tokens`, less W(0): seconds that whole prompts add."""
    nodes, seconds = table.work_nodes()
    beyond = np.maximum(tokens - nodes[-1], 0.0)
    growth = table.linear_s_per_token + table.quadratic_s_per_token2 * (tokens + nodes[-1])
    work: FloatArray = np.interp(tokens, nodes, seconds) + beyond * growth - seconds[0]
    return work
