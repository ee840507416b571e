"""What engines and gateways tell a router unasked, in the simulator: loads, and how far requests are.

Each LOAD_S every ready replica says its load, if that has changed since it last did: requests in its batch
and those whose prompts it computes right now, all others that are there, KV usage of the batch, and the
seconds that it has computed. Each PROGRESS_S the output tokens of the requests that have more than when last
told. So it is live: stats of replicas come twice a second, gateways send progress once in a second, and
nothing that is no news. A stretch of iterations under way is looked into and not closed, as for utilisation
(`observing`).
"""

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from headway.engine.kernel.layout import DECODING, PREFILLING, SERVING, KernelState
from headway.engine.surfaces import iterations_until
from headway.planning.types import Role
from headway.routing import ReplicaLoad, ReplicaState, ReplicaUpdate
from headway.routing.types import OutputProgress
from headway.simulation.fleet import Fleet
from headway.simulation.observing import observe
from interp.jit import compiled

LOAD_S, PROGRESS_S = 0.5, 1.0
LOOKS = round(PROGRESS_S / LOAD_S)
"""Looks at loads for one at progress."""


class EngineReports:
    """What there is to tell of one run's fleet; `due_s` is when to look next."""

    def __init__(self, fleet: Fleet, gpu_type: str) -> None:
        self._fleet, self._gpu_type = fleet, gpu_type
        self._capacity = float(fleet.arrays.settings[0]["kv_capacity_tokens"])
        self._looks = 1
        self._loads: dict[str, ReplicaLoad] = {}
        self._outputs: dict[int, int] = {}

    @property
    def due_s(self) -> float:
        """When to look next."""
        return self._looks * LOAD_S

    def look(
        self, replicas: Mapping[str, tuple[int, int]], roles: Mapping[int, Role]
    ) -> tuple[list[ReplicaUpdate], list[OutputProgress]]:
        """What is new of `replicas` (slot and serial by name) and, every other time, of requests."""
        self._looks += 1
        updates = list(self._updates(replicas, roles))
        return updates, self._progress() if (self._looks - 1) % LOOKS == 0 else []

    def _updates(
        self, replicas: Mapping[str, tuple[int, int]], roles: Mapping[int, Role]
    ) -> Iterator[ReplicaUpdate]:
        units = self._fleet.arrays.replicas
        busy_s, kv_tokens = np.empty(len(units)), np.empty(len(units))
        observe(self._fleet.handle, busy_s, kv_tokens)
        computing = np.where(units["phase"] == PREFILLING, units["chunk_requests"], 0)
        running: list[int] = (units["running"] + computing).tolist()
        waiting: list[int] = (units["waiting"] - computing).tolist()
        tokens, seconds = kv_tokens.tolist(), busy_s.tolist()
        serving = (units["state"] == SERVING).tolist()
        before, self._loads = self._loads, {}
        for name, (slot, serial) in replicas.items():
            if not serving[slot]:
                continue
            load = self._loads[name] = ReplicaLoad(
                running=running[slot],
                waiting=waiting[slot],
                kv_usage=min(1.0, tokens[slot] / self._capacity),
                busy_s=seconds[slot],
            )
            if load != before.get(name):
                state = ReplicaState.READY
                yield ReplicaUpdate(
                    replica=name, role=roles[serial], state=state, gpu_type=self._gpu_type, load=load
                )

    def _progress(self) -> list[OutputProgress]:
        most, before = int(self._fleet.arrays.clock[0]["active"]), self._outputs
        told = np.empty((2, most), np.int64)
        count = outputs(self._fleet.handle, told)
        numbers, tokens_of = told[:, :count].tolist()
        self._outputs = dict(zip(numbers, tokens_of, strict=True))
        return [
            OutputProgress(str(number), tokens)
            for number, tokens in self._outputs.items()
            if tokens > before.get(number, 0)
        ]


@compiled
def outputs(state: KernelState, told: NDArray[np.int64]) -> int:
    """Fill i8[2, active] with number and output tokens so far of each request in a batch; their count."""
    now_s, count = state.clock[0].now_s, 0
    for replica in range(len(state.replicas)):
        unit = state.replicas[replica]
        if unit.running == 0:
            continue
        iteration = unit.iteration
        if unit.phase == DECODING:
            elapsed_s = (now_s - unit.checkpoint_s) / unit.decode_slowness
            done, ends_s = iterations_until(state.itl, unit.running, unit.kv_tokens, elapsed_s, unit.planned)
            iteration += int(done) - (1 if ends_s > elapsed_s else 0)
        for place in range(unit.running):
            asked = state.requests[state.finish_request[replica, place]]
            tokens = asked.output_tokens - (state.finish_iteration[replica, place] - iteration)
            if tokens > 0:
                told[0, count], told[1, count] = asked.number, tokens
                count += 1
    return count
