"""Utilisation of simulated replicas: busy share and KV usage, each 5 s of virtual time (document 004).

The kernel stops for them and is not touched: a stretch of iterations under way is looked into, not closed, so
that a run with samples is the run without. A replica is sampled from the first look that finds it in service.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from headway.engine.decode_batch import iterations_until
from headway.routing.records import SAMPLE_S, UtilisationSamples
from headway.simulation.fleet import ROLES, Fleet
from headway.simulation.layout import DECODING, DRAINING, IDLE, SERVING, World
from interp.jit import compiled


class Utilisation:
    """Samples of all replicas that ever served in one run, by name."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._capacity = float(fleet.world.settings[0]["kv_capacity_tokens"])
        self._looks = 0
        self.of_replica: dict[str, UtilisationSamples] = {}

    @property
    def due_s(self) -> float:
        """When to look next."""
        return self._looks * SAMPLE_S

    def look(self) -> None:
        """Take the samples of now."""
        world, now_s = self._fleet.world, float(self._fleet.world.clock[0]["now_s"])
        self._looks += 1
        units = world.replicas
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
        return {name: samples.summary() for name, samples in self.of_replica.items() if len(samples)}


@compiled
def observe(world: World, busy_s: NDArray[np.float64], kv_tokens: NDArray[np.float64]) -> None:
    """Seconds that each replica has computed, and the tokens of its batch, as of now; f8[replicas] each."""
    now_s = world.clock[0].now_s
    for replica in range(len(world.replicas)):
        unit = world.replicas[replica]
        busy_s[replica] = unit.busy_s + (0.0 if unit.phase == IDLE else now_s)
        kv_tokens[replica] = unit.kv_tokens
        if unit.phase == DECODING:
            elapsed_s = now_s - unit.checkpoint_s
            done, ends_s = iterations_until(
                world.surfaces, unit.running, unit.kv_tokens, elapsed_s, unit.planned
            )
            if ends_s > elapsed_s:
                done -= 1.0
            kv_tokens[replica] += done * unit.running
