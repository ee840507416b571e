"""The fluid bound: GPU-seconds that no fleet can do the work with less than.

Σ work / best throughput under the SLO: a fleet that is never idle, never queues and is infinitely divisible.
Prompt tokens that the run's own prefix caches saved are not in it.
"""

import numpy as np
from numpy.typing import NDArray

from headway.engine.surfaces import prompt_work_s
from headway.planning.types import Slo
from interp import Profile

CONTEXT_GRID = 4096
ANY_ITL_S = 1e9


class FluidBound:
    """GPU-seconds that the work done needs at least, with every GPU at its best throughput under the SLO.

    Prompts cost their TTFT where a replica prefills one at a time; where iterations are shared only their
    work (`engine.surfaces`). Decode tokens cost one over the best throughput at the request's mean context;
    where no batch meets the ITL target, one over the best without a target: the figure stays a bound.
    """

    def __init__(self, profile: Profile, slo: Slo, *, shared_iterations: bool) -> None:
        self.gpu_seconds = 0.0
        self._prefill, self._shared = profile.prefill, shared_iterations
        longest = max(2.0, float(profile.decode.table.max_kv_tokens))
        self._contexts = np.geomspace(1.0, longest, CONTEXT_GRID)
        best = profile.decode.best_throughput_per_gpu(slo.itl_s, self._contexts)
        any_itl = profile.decode.best_throughput_per_gpu(ANY_ITL_S, self._contexts)
        throughput = np.where(best.feasible, best.throughput_per_gpu, any_itl.throughput_per_gpu)
        self._seconds_per_token = 1.0 / np.maximum(throughput, 1e-12)

    def add(
        self,
        computed_tokens: NDArray[np.int64],
        decoded_tokens: NDArray[np.int64],
        context: NDArray[np.float64],
    ) -> None:
        """Add requests: prompt tokens computed, tokens decoded, and mean context while decoding."""
        if self._shared:
            work = prompt_work_s(self._prefill.table, computed_tokens.astype(np.float64))
            prefill_s = work * self._prefill.gpus_per_engine
        else:
            prefill_s = computed_tokens / np.asarray(self._prefill.throughput_per_gpu(computed_tokens))
        decode_s = decoded_tokens * np.interp(context, self._contexts, self._seconds_per_token)
        self.gpu_seconds += float(prefill_s.sum() + decode_s.sum())
