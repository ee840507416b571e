"""All that we use of Ray Serve's private interfaces, of Ray 2.60: of handles, and of the router behind them.

Handles are lean (`lean`). Cancelling the task that waits in `ask` cancels the call, however far it is, and
Serve carries that to the replica. Errors of Ray, Serve, gRPC, sockets and the engines become `Lost` or a
BackendError here and nowhere else:

    Lost(BackendError)     the replica died, is dying, or cannot be reached; another may be tried
    ├── EngineLost         its engine failed
    └── NotStarted         it was gone before it took the call: nothing has run

`HeadwayRouter` chooses the replica: the one that `handle.options(session_id=REPLICA)` names, or else one by
profile, those of `routing.profile`, over the loads in `serve_apps.membership`. It overrides private methods:
Serve has no other way to choose a replica at once. Serve's own queue-length cache and its backoff are not
used: only where there is no replica, or the chosen one cannot be reached, does a request wait here. The
caller bounds that wait by cancelling.

`tests/serve_apps/test_compat_serve.py` names what has changed where a new Ray breaks this.
"""

import asyncio
import time
from collections.abc import Mapping
from typing import Any

from grpc.aio import AioRpcError  # type: ignore[import-untyped]
from ray import serve
from ray.exceptions import RayActorError, RayError
from ray.serve.exceptions import (
    BackPressureError,
    DeploymentUnavailableError,
    RayServeException,
    ReplicaUnavailableError,
    RequestCancelledError,
)
from ray.serve.handle import DeploymentHandle
from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from serve_apps.engines.protocol import EngineError, EngineFailed, PromptTooLong, Refused
from serve_apps.gateway.backend import BackendError, NotReady, Overloaded, RefusedByEngine, TooLong
from serve_apps.membership import NO_REPLICA_S, Membership, NoReplica, Profile, ReplicaGone, membership

LEAN: Mapping[str, Any] = {
    "_by_reference": False,
    "request_serialization": "pickle",
    "response_serialization": "pickle",
}
"""Calls travel over gRPC instead of as Ray tasks."""
RETRY_S = 0.05
"""Seconds before a call whose replica could not be reached looks for another."""


def handle_of(deployment: str, application: str) -> DeploymentHandle[Any]:
    """The handle of a deployment, whether Serve knows it yet or not. Blocks."""
    return serve.get_deployment_handle(deployment, application, _check_exists=False)


def lean(handle: DeploymentHandle[Any], method: str) -> DeploymentHandle[Any]:
    """The handle for one method, on this event loop and over gRPC: a fraction of the default's CPU.

    A loop must have no second handle of a deployment but those that the first's `options` gives, as it may
    wait for its configuration for ever. Serve gives up a new handle's first poll, answered or not, when the
    poll that a loop's handles share brings new targets (Ray 2.60: 16 of 150 with targets every 100 ms).
    """
    if not handle.is_initialized:
        handle._init(_run_router_in_separate_loop=False)  # type: ignore[no-untyped-call]
    return handle.options(method_name=method, **LEAN)


def cancel(response: Any) -> None:  # noqa: ANN401 - one of Serve's two kinds of response
    """Cancel a call, however far it is; nothing happens to one that has ended."""
    response.cancel()
    # Serve forgets a call that a replica has taken before anything waited for it.
    taken = response._replica_result_future
    if taken.done() and not taken.cancelled() and taken.exception() is None:
        taken.result().cancel()


REPLICA_LOST = (
    RayActorError,
    ReplicaUnavailableError,
    RequestCancelledError,
    ReplicaGone,
    EngineFailed,
    AioRpcError,
    # Serve's own for a connection that breaks before the replica has answered whether it takes the call.
    RuntimeError,
    # Sent by a replica that shuts down; where we cancel ourselves it is not translated.
    asyncio.CancelledError,
)

FOREIGN = (*REPLICA_LOST, NoReplica, EngineError, RayError, RayServeException)


class Lost(BackendError):
    """The replica died, is dying, or cannot be reached."""


class EngineLost(Lost):
    """The replica's engine failed."""


class NotStarted(Lost):
    """The replica was gone before it took the call."""


async def ask(handle: DeploymentHandle[Any], *arguments: Any) -> Any:  # noqa: ANN401 - as the method returns
    """Call a method that returns one value. Lost, or a BackendError."""
    response = handle.remote(*arguments)
    try:
        return await response
    except FOREIGN as error:
        # The call may run on, unheard: it holds a place in the engine until it is cancelled.
        cancel(response)
        if isinstance(error, asyncio.CancelledError) and _cancelling():
            raise
        raise translated(error) from error


def lost(error: BaseException) -> Lost:
    """The error as the loss of a replica."""
    if isinstance(error, EngineFailed):
        return EngineLost(f"the engine failed: {error}")
    kind = NotStarted if isinstance(error, ReplicaGone) else Lost
    return kind(f"{type(error).__name__}: {error}")


def _cancelling() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def translated(error: BaseException) -> Exception:
    """The error as callers know it: Lost, or another BackendError."""
    if isinstance(error, PromptTooLong):
        return TooLong(str(error))
    if isinstance(error, Refused):
        return RefusedByEngine(error.status, error.body)
    if isinstance(error, NoReplica | DeploymentUnavailableError):
        return NotReady(str(error))
    if isinstance(error, BackPressureError):
        return Overloaded(str(error))
    if isinstance(error, REPLICA_LOST):
        return lost(error)
    return BackendError(str(error))


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
