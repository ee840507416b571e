"""Routings written in Python: an object that picks a replica for each request.

The compiled built-ins (`layout.Routing`) are much faster; this is for policies that are not in the kernel.
"""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from headway.planning.types import Role
from headway.simulation.fleet import ROLES
from headway.simulation.layout import KernelState


class PlacementView:
    """The request to place and the ready replicas of its pool; valid during one call of `pick`.

    `replicas` are slot numbers, which are used again; `serials` tells replicas apart. These and the load
    methods return one value for each ready replica, in the same order.
    """

    def __init__(self, state: KernelState) -> None:
        self.arrays = state
        clock, units, requests = state.clock, state.replicas, state.requests
        self._now, self._role, self._request = clock["now_s"], clock["asked_role"], clock["asked_request"]
        self._answer, self._ready = clock["answer"], clock["ready"]
        self._number, self._input_tokens = requests["number"], requests["input_tokens"]
        self._running, self._waiting = units["running"], units["waiting"]
        self._serials = units["serial"]
        self._prompt_tokens, self._kv_tokens = units["prompt_tokens"], units["kv_tokens"]
        self._capacity = float(state.settings["kv_capacity_tokens"][0])

    @property
    def role(self) -> Role:
        """The pool in which the request continues."""
        return ROLES[self._role.item()]

    @property
    def replicas(self) -> NDArray[np.int32]:
        """The ready replicas of that pool; at least one."""
        role = self._role.item()
        return self.arrays.ready[role, : self._ready[0, role]]

    @property
    def now_s(self) -> float:
        """The time."""
        return float(self._now[0])

    @property
    def number(self) -> int:
        """The request's number in the trace, from 0."""
        return int(self._number[self._request[0]])

    @property
    def input_tokens(self) -> int:
        """Prompt length."""
        return int(self._input_tokens[self._request[0]])

    def serials(self) -> NDArray[np.int64]:
        """A number for each replica that no other replica of the run has."""
        serials: NDArray[np.int64] = self._serials[self.replicas]
        return serials

    def running(self) -> NDArray[np.int64]:
        """Sequences in each replica's decode batch."""
        running: NDArray[np.int64] = self._running[self.replicas]
        return running

    def waiting(self) -> NDArray[np.int64]:
        """Requests in each replica's queue, one under prefill included."""
        waiting: NDArray[np.int64] = self._waiting[self.replicas]
        return waiting

    def prompt_tokens(self) -> NDArray[np.int64]:
        """Prompt tokens outstanding at each replica."""
        tokens: NDArray[np.int64] = self._prompt_tokens[self.replicas]
        return tokens

    def kv_usage(self) -> NDArray[np.float64]:
        """KV usage of each replica, 0..1."""
        usage: NDArray[np.float64] = self._kv_tokens[self.replicas] / self._capacity
        return usage

    def answer(self, position: int) -> None:
        """Send the request to `replicas[position]`. IndexError for a position that there is not."""
        if position < 0:
            raise IndexError(f"a routing picked position {position}")
        self._answer[0] = self.replicas[position]


class RoutingPolicy(Protocol):
    """Chooses where a request goes."""

    @property
    def name(self) -> str:
        """The name that results carry."""

    def pick(self, placement: PlacementView) -> int:
        """Position in `placement.replicas` of the replica to use."""
