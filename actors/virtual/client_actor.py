"""The client as a named actor, for programs that have Ray Client and nothing of ours.

Everything that goes in or out is made of built-in types, errors too: such a program could not unpickle
others.
`UnknownDecision` becomes LookupError, a coordinator that does not answer ConnectionError.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from actors.virtual.client import CALL_TIMEOUT_S, AsyncVirtualConnectorClient
from actors.virtual.errors import CoordinatorUnreachable, ScalingError, UnknownDecision


class VirtualConnectorClientActor:
    """`AsyncVirtualConnectorClient` with plain values; decisions are dictionaries."""

    def __init__(self, timeout_s: float = CALL_TIMEOUT_S) -> None:
        self._client = AsyncVirtualConnectorClient(timeout_s)

    async def wait(self, timeout_s: float | None = None, after: int | None = None) -> dict[str, Any] | None:
        """The newest decision that is not answered (or is above `after`); None when the time is over."""
        with _built_in_errors():
            decision = await self._client.wait(timeout_s, after)
        return None if decision is None else decision.document()

    async def get(self) -> dict[str, Any] | None:
        """The newest decision, None before the first."""
        with _built_in_errors():
            decision = await self._client.get()
        return None if decision is None else decision.document()

    async def complete(self, decision: Mapping[str, Any] | int) -> bool:
        """The decision, or the one of this id, was carried out."""
        with _built_in_errors():
            return await self._client.complete(decision)

    async def fail(self, decision: Mapping[str, Any] | int, reason: str) -> bool:
        """The decision, or the one of this id, could not be carried out."""
        with _built_in_errors():
            return await self._client.fail(decision, reason)

    async def state(self) -> dict[str, Any]:
        """All that the coordinator knows."""
        with _built_in_errors():
            return await self._client.state()


@contextmanager
def _built_in_errors() -> Iterator[None]:
    try:
        yield
    except UnknownDecision as error:
        raise LookupError(str(error)) from None
    except CoordinatorUnreachable as error:
        raise ConnectionError(str(error)) from None
    except ScalingError as error:
        raise RuntimeError(str(error)) from None
