"""How outside systems follow the coordinator from a Ray driver, worker or actor.

`VirtualConnectorClient` is for plain code, `AsyncVirtualConnectorClient` for coroutines. `wait` outlasts a
coordinator that restarts or is not there yet: it asks again until its time is over, and only then says that
nobody answered. The other calls ask once. All of them may be repeated safely.
"""

import asyncio
import time
from collections.abc import Mapping
from typing import Any

from actors.calling import ActorGone, NamedActor, TooSlow
from actors.names import VIRTUAL_CONNECTOR
from actors.virtual.decision import ScalingDecision
from actors.virtual.errors import CoordinatorUnreachable

CALL_TIMEOUT_S = 10.0
SLICE_S = 30.0
"""One call waits no longer; then it asks again, so that a lost call is noticed."""
RETRY_S = 0.2

AnyDecision = ScalingDecision | Mapping[str, Any] | int
"""A decision, its document, or its id."""


class _Patience:
    """The time that a wait has, None for ever."""

    def __init__(self, timeout_s: float | None) -> None:
        self._deadline_s = None if timeout_s is None else time.monotonic() + timeout_s

    def left_s(self) -> float:
        return SLICE_S if self._deadline_s is None else max(0.0, self._deadline_s - time.monotonic())

    def slice_s(self) -> float:
        return min(SLICE_S, self.left_s())


class VirtualConnectorClient:
    """For plain code. A call ends within `timeout_s`, `wait` within that much more than its own time."""

    def __init__(self, timeout_s: float = CALL_TIMEOUT_S) -> None:
        self._coordinator = NamedActor(VIRTUAL_CONNECTOR)
        self._timeout_s = timeout_s

    def wait(self, timeout_s: float | None = None, after: int | None = None) -> ScalingDecision | None:
        """The newest decision that is not answered, at once if there is one; None when the time is over.

        With `after`, the newest one above that id, answered or not. None as `timeout_s` waits for ever.
        """
        patience = _Patience(timeout_s)
        while True:
            slice_s = patience.slice_s()
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
        counted: bool = self._call("complete", id_of(decision))["counted"]
        return counted

    def fail(self, decision: AnyDecision, reason: str) -> bool:
        """It could not be carried out. Whether this was the answer that counts; UnknownDecision."""
        counted: bool = self._call("fail", id_of(decision), reason)["counted"]
        return counted

    def state(self) -> dict[str, Any]:
        """All that the coordinator knows."""
        state: dict[str, Any] = self._call("state")
        return state

    def _call(self, method: str, *args: object, extra_s: float = 0.0) -> Any:  # noqa: ANN401
        try:
            return self._coordinator.call_now(method, *args, timeout_s=self._timeout_s + extra_s)
        except (ActorGone, TooSlow) as error:
            raise CoordinatorUnreachable(str(error)) from error


class AsyncVirtualConnectorClient:
    """For coroutines. Cancelling a call ends it in the coordinator too."""

    def __init__(self, timeout_s: float = CALL_TIMEOUT_S) -> None:
        self._coordinator = NamedActor(VIRTUAL_CONNECTOR)
        self._timeout_s = timeout_s

    async def wait(self, timeout_s: float | None = None, after: int | None = None) -> ScalingDecision | None:
        """As `VirtualConnectorClient.wait`."""
        patience = _Patience(timeout_s)
        while True:
            slice_s = patience.slice_s()
            try:
                found = await self._call("next", after, slice_s, extra_s=slice_s)
            except CoordinatorUnreachable:
                if patience.left_s() <= 0.0:
                    raise
                await asyncio.sleep(min(RETRY_S, patience.left_s()))
                continue
            if found is not None or patience.left_s() <= 0.0:
                return found and ScalingDecision.of(found)

    async def get(self) -> ScalingDecision | None:
        """The newest decision, answered or not; None before the first."""
        found = await self._call("get")
        return found and ScalingDecision.of(found)

    async def complete(self, decision: AnyDecision) -> bool:
        """As `VirtualConnectorClient.complete`."""
        counted: bool = (await self._call("complete", id_of(decision)))["counted"]
        return counted

    async def fail(self, decision: AnyDecision, reason: str) -> bool:
        """As `VirtualConnectorClient.fail`."""
        counted: bool = (await self._call("fail", id_of(decision), reason))["counted"]
        return counted

    async def state(self) -> dict[str, Any]:
        """All that the coordinator knows."""
        state: dict[str, Any] = await self._call("state")
        return state

    async def _call(self, method: str, *args: object, extra_s: float = 0.0) -> Any:  # noqa: ANN401
        try:
            return await self._coordinator.call(method, *args, timeout_s=self._timeout_s + extra_s)
        except (ActorGone, TooSlow) as error:
            raise CoordinatorUnreachable(str(error)) from error


def id_of(decision: AnyDecision) -> int:
    """The id of a decision in any of its forms."""
    if isinstance(decision, ScalingDecision):
        return decision.decision_id
    return decision["decision_id"] if isinstance(decision, Mapping) else decision
