"""Replay of a prefill pool that computes prompts one at a time: FIFO to the replica that is free first.

Waits follow Kiefer and Wolfowitz: the workload vector of a G/G/n queue, here as a heap of the times at which
the replicas become free, so a request costs log n steps.
"""

import numpy as np

from interp.arrays import FloatArray
from interp.jit import compiled


@compiled
def prefill_waits(arrival_s: FloatArray, prompt_s: FloatArray, replicas: int) -> FloatArray:
    """Seconds that each prompt waits for one of `replicas`, f8[N], which are idle at first."""
    free_s, wait_s = np.full(replicas, -np.inf), np.empty(len(arrival_s))
    for request in range(len(arrival_s)):
        start_s = max(arrival_s[request], free_s[0])
        wait_s[request] = start_s - arrival_s[request]
        _replace_least(free_s, start_s + prompt_s[request])
    return wait_s


@compiled
def _replace_least(heap: FloatArray, value: float) -> None:
    place, size = 0, len(heap)
    while 2 * place + 1 < size:
        child = 2 * place + 1
        if child + 1 < size and heap[child + 1] < heap[child]:
            child += 1
        if value <= heap[child]:
            break
        heap[place] = heap[child]
        place = child
    heap[place] = value
