"""Private interfaces of Ray Serve, for handles: all that we use of them, of Ray 2.60.

`HeadwayRouter` in `request_router` overrides private methods, too: Serve has no other way to choose a
replica at once. `tests/serve_apps/test_compat_serve.py` names what has changed where a new Ray breaks this.
"""

from collections.abc import Mapping
from typing import Any

from ray.serve.handle import DeploymentHandle

LEAN: Mapping[str, Any] = {
    "_by_reference": False,
    "request_serialization": "pickle",
    "response_serialization": "pickle",
}
"""Calls travel over gRPC instead of as Ray tasks."""


def lean(handle: DeploymentHandle[Any], method: str, *, stream: bool = False) -> DeploymentHandle[Any]:
    """The handle for one method, on this event loop and over gRPC: a fraction of the default's CPU.

    A loop must have no second handle of a deployment but those that the first's `options` gives, as it may
    wait for its configuration for ever. Serve gives up a new handle's first poll, answered or not, when the
    poll that a loop's handles share brings new targets (Ray 2.60: 16 of 150 with targets every 100 ms).
    """
    if not handle.is_initialized:
        handle._init(_run_router_in_separate_loop=False)  # type: ignore[no-untyped-call]
    return handle.options(method_name=method, stream=stream, **LEAN)


def cancel(response: Any) -> None:  # noqa: ANN401 - one of Serve's two kinds of response
    """Cancel a call, however far it is; nothing happens to one that has ended."""
    response.cancel()
    # Serve forgets a call that a replica has taken before anything waited for it.
    taken = response._replica_result_future
    if taken.done() and not taken.cancelled() and taken.exception() is None:
        taken.result().cancel()
