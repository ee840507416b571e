"""The gateway as one ASGI application.

    app = make_app(config, backend)        # raises ConfigError, ProfileError
    app.state.set_slo(ttft_s=0.2, itl_s=0.02)

Access is checked first, for every path but the open ones (`access`). Requests for output then go straight to
their endpoint, without routing or middleware; everything else is a Starlette application. Every response
carries `x-request-id` (the client's own, where it is a sane one) and `x-headway-engine`.
"""

import re
import time
import uuid
from collections.abc import Callable, Sequence

from starlette.routing import BaseRoute
from starlette.types import Message, Receive, Scope, Send

from headway.config import HeadwayConfig
from serve_apps.gateway.access import OPEN_PATHS, Access, make_access
from serve_apps.gateway.answer import Channel, HeaderList
from serve_apps.gateway.backend import Backend
from serve_apps.gateway.faults import Unauthorized
from serve_apps.gateway.generation import Generation
from serve_apps.gateway.service import make_service
from serve_apps.gateway.state import GatewayState, make_state
from serve_apps.gateway.wire import CHAT_COMPLETIONS, COMPLETIONS

_SANE_ID = re.compile(rb"[A-Za-z0-9._:+/=@-]{1,128}")


class Gateway:
    """The ASGI application; `state` is what may be read and changed while it runs."""

    def __init__(self, state: GatewayState, access: Access, extra_routes: Sequence[BaseRoute]) -> None:
        self.state = state
        self._access = access
        self._generation = {api.path: Generation(state, api) for api in (COMPLETIONS, CHAT_COMPLETIONS)}
        self._service = make_service(state, extra_routes)
        self._engine_header = (b"x-headway-engine", state.identity.engine.encode())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One HTTP request, or the server's start and end."""
        if scope["type"] == "lifespan":
            await self._service(scope, receive, send)
        elif scope["type"] == "http":
            await self._request(scope, receive, send)
        else:
            # No route speaks WebSocket, and none that is added may get around the check of keys.
            await send({"type": "websocket.close", "code": 1008})

    async def _request(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = ((b"x-request-id", _request_id(scope)), self._engine_header)
        path = _path(scope)
        if path not in OPEN_PATHS and not self._access.allows(scope["headers"]):
            fault = Unauthorized("Send a valid API key as 'Authorization: Bearer KEY'")
            await Channel(send, headers).fail(fault)
            return
        generation = self._generation.get(path) if scope["method"] == "POST" else None
        if generation is not None:
            await generation(scope, receive, send, headers)
        else:
            await self._service(scope, receive, _adding(send, headers))


def make_app(
    config: HeadwayConfig,
    backend: Backend,
    extra_routes: Sequence[BaseRoute] = (),
    clock: Callable[[], float] = time.monotonic,
) -> Gateway:
    """The gateway over `backend`, with further routes behind the same keys. ConfigError, ProfileError."""
    access = make_access(config.gateway)
    return Gateway(make_state(config, backend, clock), access, extra_routes)


def _path(scope: Scope) -> str:
    """The path below the root path under which the application is mounted."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "").rstrip("/")
    return path[len(root) :] if root and path.startswith(root + "/") else path


def _request_id(scope: Scope) -> bytes:
    for name, value in scope["headers"]:
        if name == b"x-request-id" and _SANE_ID.fullmatch(value):
            return bytes(value)
    return b"req-" + uuid.uuid4().hex.encode()


def _adding(send: Send, headers: HeaderList) -> Send:
    """`send` that adds `headers` to the response's."""

    async def adding(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), *headers]
        await send(message)

    return adding
