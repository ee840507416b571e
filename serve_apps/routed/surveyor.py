"""What all replicas have, for a router that began anew and hears of it from the first gateway that speaks."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from ray.serve.handle import DeploymentHandle

from actors.routing.messages import OnReplica
from headway.planning import Role
from headway.routing.types import Placement, RouteRequest
from serve_apps.engines.protocol import RunningRequest
from serve_apps.gateway.backend import BackendError
from serve_apps.membership import Membership
from serve_apps.serve_call import ask, lean


class Surveyor:
    """Asks every replica of the pools."""

    def __init__(
        self, handles: Mapping[Role, DeploymentHandle[Any]], pools: Mapping[Role, Membership]
    ) -> None:
        self._running = {role: lean(handle, "running") for role, handle in handles.items()}
        self._pools = pools

    async def __call__(self) -> Sequence[OnReplica]:
        """Requests that came with a route, of the replicas that answer."""
        named = [(role, member.replica) for role, pool in self._pools.items() for member in pool.members]
        answers = await asyncio.gather(*(self._ask(role, replica) for role, replica in named))
        found: dict[str, OnReplica] = {}
        for (_, replica), requests in zip(named, answers, strict=True):
            for one in requests:
                if one.route is not None:
                    seen = _seen(one, one.route, replica)
                    found[one.request_id] = joined(found.get(one.request_id), seen)
        return tuple(found.values())

    async def _ask(self, role: Role, replica: str) -> Sequence[RunningRequest]:
        try:
            answer: Sequence[RunningRequest] = await ask(self._running[role].options(session_id=replica))
        except BackendError:
            return ()
        return answer


def _seen(one: RunningRequest, route: RouteRequest, replica: str) -> OnReplica:
    """What one replica knows; where it goes on, or came from, is not part of it."""
    placement = Placement(
        request_id=one.request_id,
        prefill_replica=replica,
        decode_replica=replica,
        profile="",
        reason="found",
    )
    return OnReplica(route, placement, one.phase == "decode", one.output_tokens)


def joined(before: OnReplica | None, seen: OnReplica) -> OnReplica:
    """A request that two replicas may have: the one that computes its prompt, and the one that decodes."""
    if before is None:
        return seen
    first, then = (before, seen) if seen.computed else (seen, before)
    placement = then.placement._replace(prefill_replica=first.placement.prefill_replica)
    return then._replace(placement=placement)
