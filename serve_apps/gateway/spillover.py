"""A call that finds no place at one deployment, and the next one, which takes it.

    a later one has replicas    the first one's router is told so (`RouteRequest.spills`): it places a request
                                now, or turns it away at once
    none has any                nothing changes for the first one; what it turns away in the end, or has no
                                replica for, goes on all the same, and has the next one start some

The client sees none of it. The time of a call begins where it came first; the first one counts it as load,
and the next one as its own request.
"""

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, NamedTuple, Protocol

from starlette.types import Message, Receive, Scope, Send

from serve_apps.access import Holder
from serve_apps.faults import Fault, Outcome
from serve_apps.gateway.responses import Channel, Header


class Before(NamedTuple):
    """What a call that is handed on has had: its arrival, why, its channel, and who hears how it ends."""

    arrived_s: float
    refusal: Fault
    channel: Channel
    told: Sequence[Callable[[Outcome], None]]


NEXT, BEFORE = "headway.next", "headway.before"
"""Keys of a scope: the `Spillover`, if there is one, and the `Before` of a call that was handed on."""


class Target(Protocol):
    """The application of one deployment, as far as calls are handed to it."""

    async def admitted(
        self, scope: Scope, receive: Receive, send: Send, request_id: Header, holder: Holder
    ) -> None:
        """One request of the holder of a key, with the header of its id."""


class Call(NamedTuple):
    """A call for output whose body was read."""

    scope: Scope
    body: bytes
    receive: Receive
    send: Send
    request_id: Header
    holder: Holder

    async def by(self, app: Target, after: "Spillover | None" = None) -> None:
        """Have it served."""
        scope, again = {**self.scope, NEXT: after}, _again(self.body, self.receive)
        await app.admitted(scope, again, self.send, self.request_id, self.holder)


class Spillover(NamedTuple):
    """Where a call goes that finds no place. `ready` says whether it, or one after it, holds so many tokens
    and has replicas, so that nothing waits here; else it takes what is turned away.
    """

    call: Call
    ready: Callable[[int], Coroutine[Any, Any, bool]]
    served: Callable[[Call], Awaitable[None]]

    async def serve(self, before: Before) -> None:
        """Serve the call, which has been elsewhere."""
        await self.served(self.call._replace(scope={**self.call.scope, BEFORE: before}))


def _again(body: bytes, receive: Receive) -> Receive:
    """`receive` that begins with a body that was read already."""
    left: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def received() -> Message:
        return left.pop() if left else await receive()

    return received
