"""Routings written in Python: an object that picks a replica for each request.

The compiled built-ins (`layout.Routing`) are much faster; this interface is for policies that are not in the kernel.
"""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from headway.planning.types import Role
from headway.simulation.fleet import ROLES
from headway.simulation.layout import World


class PlacementView:
    """The request to place and the ready replicas of its pool; valid during one call of `pick`."""

    __slots__ = ("_request", "_world", "replicas", "role")

    def __init__(self, world: World) -> None:
        clock = world.clock[0]
        code = int(clock["asked_role"])
        self._world = world
        self._request = world.requests[int(clock["asked_request"])]
        self.role: Role = ROLES[code]
        self.replicas: NDArray[np.int32] = world.ready[code, : int(clock["ready"][code])]

    @property
    def now_s(self) -> float:
        """The time."""
        return float(self._world.clock[0]["now_s"])

    @property
    def number(self) -> int:
        """The request's number in the trace, from 0."""
        return int(self._request["number"])

    @property
    def input_tokens(self) -> int:
        """Prompt length."""
        return int(self._request["input_tokens"])

    def running(self) -> NDArray[np.int64]:
        """Sequences in each replica's decode batch."""
        running: NDArray[np.int64] = self._world.replicas["running"][self.replicas]
        return running

    def waiting(self) -> NDArray[np.int64]:
        """Requests in each replica's queue, one under prefill included."""
        waiting: NDArray[np.int64] = self._world.replicas["waiting"][self.replicas]
        return waiting

    def prompt_tokens(self) -> NDArray[np.int64]:
        """Prompt tokens outstanding at each replica."""
        tokens: NDArray[np.int64] = self._world.replicas["prompt_tokens"][self.replicas]
        return tokens

    def kv_usage(self) -> NDArray[np.float64]:
        """KV usage of each replica, 0..1."""
        tokens = self._world.replicas["kv_tokens"][self.replicas]
        usage: NDArray[np.float64] = tokens / float(self._world.settings[0]["kv_capacity_tokens"])
        return usage


class RoutingPolicy(Protocol):
    """Chooses where a request goes."""

    @property
    def name(self) -> str:
        """The name that results carry."""

    def pick(self, placement: PlacementView) -> int:
        """Position in `placement.replicas` of the replica to use."""
