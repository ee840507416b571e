"""Clients with which outside systems follow the coordinator from a Ray driver, worker or actor.

`VirtualConnectorClient` is for plain code and returns `ScalingDecision`s. `AsyncVirtualConnectorClient` is
for coroutines and returns their documents; `VirtualConnectorClientActor` is the same as an actor, for
programs that have Ray Client and nothing of ours. `wait` outlasts a coordinator that restarts or does not run
yet: it asks again until its time is over, and raises CoordinatorUnreachable only then. The other calls ask
once. All of them may be repeated safely.
"""

import asyncio
import time
from collections.abc import Mapping
from typing import Any

from actors.names import VIRTUAL_CONNECTOR, ActorGone, NamedActor, TooSlow
from actors.store import StoreAway
from actors.virtual_connector.ledger import (
    BadReport,
    CoordinatorUnreachable,
    ScalingDecision,
    ScalingError,
    UnknownDecision,
)

CALL_TIMEOUT_S = 10.0
SLICE_S = 30.0
"""One call waits no longer; then it asks again, so that a lost call is noticed."""
RETRY_S = 0.2

AnyDecision = ScalingDecision | Mapping[str, Any] | int
"""A decision, its document, or its id."""


class _Patience:
    """The time that is left for a wait; None waits for ever."""

    def __init__(self, timeout_s: float | None) -> None:
        self._deadline_s = None if timeout_s is None else time.monotonic() + timeout_s

    def left_s(self) -> float:
        """Seconds for the next call: SLICE_S at most."""
        left_s = SLICE_S if self._deadline_s is None else max(0.0, self._deadline_s - time.monotonic())
        return min(SLICE_S, left_s)


class VirtualConnectorClient:
    """For plain code. A call ends within `timeout_s`, `wait` within that much more than its own time."""

    def __init__(self, timeout_s: float = CALL_TIMEOUT_S, application: str = "") -> None:
        """Of that Serve application's deployment, by default of the first."""
        self._coordinator = NamedActor(VIRTUAL_CONNECTOR, application=application)
        self._timeout_s = timeout_s

    def wait(self, timeout_s: float | None = None, after: int | None = None) -> ScalingDecision | None:
        """The newest decision that is not answered, at once if there is one; None when the time is over.

        With `after`, the newest one above that id, answered or not. None as `timeout_s` waits for ever.
        """
        patience = _Patience(timeout_s)
        while True:
            slice_s = patience.left_s()
            try:
                found = self._call("next", after, slice_s, extra_s=slice_s)
            except CoordinatorUnreachable:
                if patience.left_s() <= 0.0:
                    raise
                time.sleep(min(RETRY_S, patience.left_s()))
                continue
            if found is not None or patience.left_s() <= 0.0:
                return found and ScalingDecision.of(found)

    def get(self) -> ScalingDecision | None:
        """The newest decision, answered or not; None before the first."""
        found = self._call("get")
        return found and ScalingDecision.of(found)

    def complete(self, decision: AnyDecision) -> bool:
        """The decision was carried out. Whether this was the answer that counts; UnknownDecision."""
        return bool(self._call("complete", id_of(decision))["counted"])

    def fail(self, decision: AnyDecision, reason: str) -> bool:
        """It could not be carried out. Whether this was the answer that counts; UnknownDecision."""
        return bool(self._call("fail", id_of(decision), reason)["counted"])

    def report(self, pools: Mapping[str, Mapping[str, int]]) -> dict[str, Any]:
        """The replicas there are now: `{"decode": {"desired": 8, "starting": 0, "ready": 8, "draining": 0}}`.

        `ready` is needed; pools that are left out stay as they were reported. The counts as understood, by
        pool. BadReport names what cannot be.
        """
        return dict(self._call("report", pools))

    def state(self) -> dict[str, Any]:
        """The coordinator's whole state, as plain data."""
        return dict(self._call("state"))

    def _call(self, method: str, *args: object, extra_s: float = 0.0) -> Any:  # noqa: ANN401
        try:
            return self._coordinator.call_now(method, *args, timeout_s=self._timeout_s + extra_s)
        except (ActorGone, TooSlow, StoreAway) as error:
            raise CoordinatorUnreachable(str(error)) from error


class AsyncVirtualConnectorClient:
    """For coroutines; decisions are documents or ids. Cancelling a call ends it in the coordinator too."""

    # Built-in types in all annotations: Ray Client hands the actor's signatures to callers without our code.

    def __init__(self, timeout_s: float = CALL_TIMEOUT_S, application: str = "") -> None:
        self._coordinator = NamedActor(VIRTUAL_CONNECTOR, application=application)
        self._timeout_s = timeout_s

    async def wait(self, timeout_s: float | None = None, after: int | None = None) -> dict[str, Any] | None:
        """As `VirtualConnectorClient.wait`."""
        patience = _Patience(timeout_s)
        while True:
            slice_s = patience.left_s()
            try:
                found: dict[str, Any] | None = await self._call("next", after, slice_s, extra_s=slice_s)
            except ConnectionError:
                if patience.left_s() <= 0.0:
                    raise
                await asyncio.sleep(min(RETRY_S, patience.left_s()))
                continue
            if found is not None or patience.left_s() <= 0.0:
                return found

    async def get(self) -> dict[str, Any] | None:
        """The newest decision, answered or not; None before the first."""
        found: dict[str, Any] | None = await self._call("get")
        return found

    async def complete(self, decision: Mapping[str, Any] | int) -> bool:
        """As `VirtualConnectorClient.complete`."""
        return bool((await self._call("complete", id_of(decision)))["counted"])

    async def fail(self, decision: Mapping[str, Any] | int, reason: str) -> bool:
        """As `VirtualConnectorClient.fail`."""
        return bool((await self._call("fail", id_of(decision), reason))["counted"])

    async def report(self, pools: Mapping[str, Mapping[str, int]]) -> dict[str, Any]:
        """As `VirtualConnectorClient.report`."""
        return dict(await self._call("report", pools))

    async def state(self) -> dict[str, Any]:
        """The coordinator's whole state, as plain data."""
        return dict(await self._call("state"))

    async def _call(self, method: str, *args: object, extra_s: float = 0.0) -> Any:  # noqa: ANN401
        try:
            return await self._coordinator.call(method, *args, timeout_s=self._timeout_s + extra_s)
        except (ActorGone, TooSlow, StoreAway) as error:
            raise CoordinatorUnreachable(str(error)) from error


class VirtualConnectorClientActor(AsyncVirtualConnectorClient):
    """`AsyncVirtualConnectorClient` as an actor. Errors have built-in types: callers cannot unpickle others.

    `UnknownDecision` becomes LookupError, BadReport ValueError, and a coordinator that does not answer
    ConnectionError.
    """

    async def _call(self, method: str, *args: object, extra_s: float = 0.0) -> Any:  # noqa: ANN401
        try:
            return await super()._call(method, *args, extra_s=extra_s)
        except UnknownDecision as error:
            raise LookupError(str(error)) from None
        except BadReport as error:
            raise ValueError(str(error)) from None
        except CoordinatorUnreachable as error:
            raise ConnectionError(str(error)) from None
        except ScalingError as error:
            raise RuntimeError(str(error)) from None


def id_of(decision: AnyDecision) -> int:
    """The id of a decision in any of its forms."""
    if isinstance(decision, ScalingDecision):
        return decision.decision_id
    return decision["decision_id"] if isinstance(decision, Mapping) else decision
