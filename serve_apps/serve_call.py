"""Calls through Serve handles, lean, and with errors that the gateway knows.

    Lost(BackendError)     the replica died, is dying, or cannot be reached; another may be tried
    └── Untaken            it was gone before it took the call: nothing has run

`lean` handles call over gRPC on the caller's event loop, which takes a fraction of the CPU of Serve's
default. Errors of Ray, Serve, gRPC and the engines become `Lost` or a BackendError here and nowhere else.
Cancelling whoever waits in `ask` cancels the call, and Serve carries that to the replica.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

from grpc.aio import AioRpcError  # type: ignore[import-untyped]
from ray.exceptions import RayActorError, RayError
from ray.serve.exceptions import (
    BackPressureError,
    DeploymentUnavailableError,
    RayServeException,
    ReplicaUnavailableError,
    RequestCancelledError,
)
from ray.serve.handle import DeploymentHandle

from serve_apps.engines.protocol import EngineError, EngineFailed, PromptTooLong
from serve_apps.gateway.backend import BackendError, NotReady, Overloaded, TooLong
from serve_apps.membership import NoReplica, ReplicaGone

LEAN: Mapping[str, Any] = {
    "_by_reference": False,
    "request_serialization": "pickle",
    "response_serialization": "pickle",
}

REPLICA_LOST = (
    RayActorError,
    ReplicaUnavailableError,
    RequestCancelledError,
    ReplicaGone,
    EngineFailed,
    AioRpcError,
    # Serve's own for a connection that breaks before the replica has said whether it takes the call.
    RuntimeError,
    # Sent by a replica that shuts down; where we cancel ourselves it is not translated.
    asyncio.CancelledError,
)
FOREIGN = (*REPLICA_LOST, NoReplica, EngineError, RayError, RayServeException)


class Lost(BackendError):
    """The replica died, is dying, or cannot be reached."""


class Untaken(Lost):
    """The replica was gone before it took the call."""


def lean(handle: DeploymentHandle[Any], method: str, *, stream: bool = False) -> DeploymentHandle[Any]:
    """The handle for one method, on this event loop and over gRPC."""
    if not handle.is_initialized:
        handle._init(_run_router_in_separate_loop=False)  # type: ignore[no-untyped-call]
    return handle.options(method_name=method, stream=stream, **LEAN)


async def ask(handle: DeploymentHandle[Any], *arguments: Any) -> Any:  # noqa: ANN401 - as the method returns
    """Call a method that returns one value. Lost, or a BackendError."""
    response = handle.remote(*arguments)
    try:
        return await response
    except FOREIGN as error:
        cancel(response)
        if isinstance(error, asyncio.CancelledError) and _cancelling():
            raise
        raise _translated(error) from error


def cancel(response: Any) -> None:  # noqa: ANN401 - one of Serve's two kinds of response
    """Cancel a call, however far it is; nothing happens to one that has ended."""
    response.cancel()
    # Serve forgets a call that a replica has taken while nobody has waited for it yet.
    taken = response._replica_result_future
    if taken.done() and not taken.cancelled() and taken.exception() is None:
        taken.result().cancel()


def lost(error: BaseException) -> Lost:
    """The error as the loss of a replica."""
    kind = Untaken if isinstance(error, ReplicaGone) else Lost
    return kind(f"{type(error).__name__}: {error}")


def _cancelling() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _translated(error: BaseException) -> Exception:
    if isinstance(error, PromptTooLong):
        return TooLong(str(error))
    if isinstance(error, NoReplica | DeploymentUnavailableError):
        return NotReady(str(error))
    if isinstance(error, BackPressureError):
        return Overloaded(str(error))
    if isinstance(error, REPLICA_LOST):
        return lost(error)
    return BackendError(str(error))
