"""Utilisation of replicas in a run: busy share and KV usage, each 5 s of virtual time.

The kernel stops for a look and is not touched: a stretch of iterations under way is looked into, not
closed, so that a run with samples is the run without. A replica is sampled from the first look that finds it
in service.
"""

from collections import deque
from typing import Any, NamedTuple

import numpy as np

from headway.engine.kernel.layout import DRAINING, SERVING
from headway.simulation.fleet import ROLES, Fleet
from headway.simulation.observing import observe

SAMPLE_S = 5.0
"""Seconds between two samples."""

MOST_SAMPLES = 720
"""The latest samples that are kept of a replica: an hour's."""


class UtilisationSample(NamedTuple):
    """A replica at one time: the share of the time since the last sample that it computed, and KV usage."""

    at_s: float
    busy: float
    kv_usage: float


class UtilisationSamples:
    """One replica's samples, SAMPLE_S apart at least, from `start_s` on, when it began to serve.

    `busy_s` is what it had computed by then. Means and maximum are of all samples, kept or not.
    """

    def __init__(self, start_s: float = 0.0, busy_s: float = 0.0) -> None:
        self._began = self._last = start_s, busy_s
        self.samples: deque[UtilisationSample] = deque(maxlen=MOST_SAMPLES)
        self._taken, self._sum_kv_usage, self._max_kv_usage = 0, 0.0, 0.0

    def offer(self, at_s: float, busy_s: float, kv_usage: float) -> None:
        """Take a sample if one is due. `busy_s` is the total of seconds that it has computed so far."""
        if at_s - self._last[0] < SAMPLE_S:
            return
        self.samples.append(UtilisationSample(at_s, _share(self._last, (at_s, busy_s)), kv_usage))
        self._last = at_s, busy_s
        self._taken += 1
        self._sum_kv_usage += kv_usage
        self._max_kv_usage = max(self._max_kv_usage, kv_usage)

    def summary(self) -> dict[str, Any]:
        """As JSON-able data: the means, the maximum, and the samples [at_s, busy, kv_usage]; there is one."""
        return {
            "mean_busy": _share(self._began, self._last),
            "mean_kv_usage": self._sum_kv_usage / self._taken,
            "max_kv_usage": self._max_kv_usage,
            "samples": [list(sample) for sample in self.samples],
        }


def _share(before: tuple[float, float], after: tuple[float, float]) -> float:
    """The part of the time that was busy; rounding does not leave [0, 1]."""
    return min(max((after[1] - before[1]) / (after[0] - before[0]), 0.0), 1.0)


class Utilisation:
    """Samples of all replicas that ever served in one run, by name."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._capacity = float(fleet.arrays.settings[0]["kv_capacity_tokens"])
        self._looks = 0
        self.of_replica: dict[str, UtilisationSamples] = {}

    @property
    def due_s(self) -> float:
        """When to look next."""
        return self._looks * SAMPLE_S

    def look(self) -> None:
        """Take the samples of now."""
        state, now_s = self._fleet.arrays, float(self._fleet.arrays.clock[0]["now_s"])
        self._looks += 1
        units = state.replicas
        busy_s, kv_tokens = np.empty(len(units)), np.empty(len(units))
        observe(self._fleet.handle, busy_s, kv_tokens)
        for slot in np.flatnonzero(np.isin(units["state"], (SERVING, DRAINING))).tolist():
            name = f"{ROLES[int(units['role'][slot])]}-{int(units['serial'][slot])}"
            samples = self.of_replica.get(name)
            if samples is None:
                samples = self.of_replica[name] = UtilisationSamples(
                    start_s=now_s, busy_s=float(busy_s[slot])
                )
            samples.offer(now_s, float(busy_s[slot]), float(kv_tokens[slot]) / self._capacity)

    def summary(self) -> dict[str, Any]:
        """By replica; those that never came to a sample are left out."""
        return {name: each.summary() for name, each in self.of_replica.items() if each.samples}
