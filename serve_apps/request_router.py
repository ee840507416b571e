"""The choice of a replica by Headway's Serve handles: the one that the caller names, or else by profile.

`handle.options(session_id=REPLICA)` names a replica. The profiles are those of `routing.profile`, over the
loads in `serve_apps.membership`. Serve's own queue-length cache and its backoff are not used: a choice is
made at once, and only where there is no replica, or the chosen one cannot be reached, does a request wait
here. The caller bounds that wait by cancelling.
"""

import asyncio
import time
from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from serve_apps.membership import NO_REPLICA_S, Membership, NoReplica, Profile, ReplicaGone, membership

RETRY_S = 0.05
"""Seconds before a call whose replica could not be reached looks for another."""


class HeadwayRouter(RequestRouter):
    """Routes by profile or by name, and keeps `membership`: the running replicas, and our requests there."""

    profile: Profile = "least_load"
    no_replica_s: float = NO_REPLICA_S

    def initialize_state(self, **settings: Any) -> None:  # noqa: ANN401 - Serve's signature
        """Take `request_router_kwargs`: `profile` and `no_replica_s`."""
        self.profile = settings.get("profile", self.profile)
        self.no_replica_s = settings.get("no_replica_s", self.no_replica_s)

    @property
    def _pool(self) -> Membership:
        return membership(self._deployment_id.app_name, self._deployment_id.name)

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Take the running replicas, and what they last reported."""
        self._pool.update((replica.replica_id.unique_id, replica.routing_stats) for replica in replicas)
        super().update_replicas(replicas)

    def on_send_request(self, replica_id: ReplicaID) -> None:
        """Counted when chosen; Serve's cache is not used."""

    def on_new_queue_len_info(self, replica_id: ReplicaID, num_ongoing_requests: int) -> None:
        """Serve's cache is not used."""

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        """The call has ended: answered, failed, rejected or cancelled."""
        self._pool.done(replica_id.unique_id, internal_request_id)

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        """Forget it before the controller does."""
        self._pool.remove(replica_id.unique_id)
        super().on_replica_actor_died(replica_id)

    def on_replica_actor_unavailable(self, replica_id: ReplicaID) -> None:
        """Dead or only unreachable: prefer others, and ask it whether it lives."""
        super().on_replica_actor_unavailable(replica_id)
        self._pool.suspect(replica_id.unique_id, time.monotonic())
        if replica := self._replicas.get(replica_id):
            self._event_loop.create_task(self._probe_queue_lens([replica], 0))

    async def _choose_replica_for_request(
        self, pending_request: PendingRequest, *, is_retry: bool = False
    ) -> RunningReplica:
        metadata = pending_request.metadata
        if is_retry:
            named = metadata.session_id
            if named and self._pool.has_better(named, time.monotonic()):
                raise ReplicaGone(f"{named} cannot be reached")
            await asyncio.sleep(RETRY_S)
        while (replica := self._pick(metadata.session_id)) is None:
            if not await self._pool.change(self.no_replica_s):
                raise NoReplica(f"{self._deployment_id.name} has no running replica")
        if not metadata.session_id:
            self._pool.sent(replica.replica_id.unique_id, metadata.internal_request_id)
        return replica

    def _pick(self, named: str) -> RunningReplica | None:
        wanted = named or self._pool.pick(self.profile, time.monotonic())
        if wanted is None:
            return None
        replica = self._replicas.get(ReplicaID(unique_id=wanted, deployment_id=self._deployment_id))
        if replica is None and named:
            raise ReplicaGone(named)
        return replica

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Not called: the choice is made in `_choose_replica_for_request`."""
        return [candidate_replicas]
