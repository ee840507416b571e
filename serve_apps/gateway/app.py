"""The gateway as one ASGI application.

    app = make_app(config, backend)        # raises ConfigError, ProfileError
    app.state.set_slo(ttft_s=0.2, itl_s=0.02)

Access is checked first. `OPEN_PATHS` are open: probes, Prometheus and our collector carry no keys, and what
they read holds no content of requests. Everything else needs a key once there is one, unknown paths included:
what is open is listed, not what is protected. Without keys only this machine gets in.

Requests for output then go straight to their endpoint, without routing or middleware; everything else is a
Starlette application. Every response carries `x-request-id` (the client's own, where it is a sane one) and
`x-headway-engine`. `/metrics/requests?seconds=S` is for our own collector: the latest requests, one by one.
"""

import hmac
import math
import os
import re
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import sha256

from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import Message, Receive, Scope, Send

from actors.collector.exposition import encode
from headway.config import ConfigError, GatewaySettings, HeadwayConfig
from serve_apps.gateway.backend import Backend, Broken, Fault, Unauthorized, error_body
from serve_apps.gateway.generation import Generation
from serve_apps.gateway.responses import CHAT_COMPLETIONS, COMPLETIONS, Channel, HeaderList
from serve_apps.gateway.state import GatewayState, make_state

VARIABLE = "HEADWAY_API_KEYS"
OPEN_PATHS = frozenset({"/health", "/ready", "/metrics", "/metrics/requests"})
Headers = Iterable[tuple[bytes, bytes]]


class Access:
    """API keys, compared in constant time; without any every request is let in."""

    def __init__(self, keys: Sequence[str]) -> None:
        # Digests have one length, so that a comparison does not reveal how long a key is.
        self._digests = tuple(sha256(key.encode()).digest() for key in keys)

    def allows(self, headers: Headers) -> bool:
        """True if `Authorization: Bearer KEY` holds one of the keys; all are compared, whichever fits."""
        if not self._digests:
            return True
        offered = sha256(_bearer(headers)).digest()
        fits = False
        for digest in self._digests:
            fits |= hmac.compare_digest(digest, offered)
        return fits


def _bearer(headers: Headers) -> bytes:
    for name, value in headers:
        if name == b"authorization":
            scheme, _, key = value.partition(b" ")
            return key.strip() if scheme.lower() == b"bearer" else b""
    return b""


def make_access(settings: GatewaySettings, environ: Mapping[str, str] = os.environ) -> Access:
    """Keys of the settings and of HEADWAY_API_KEYS. ConfigError: none, yet open to other machines."""
    configured = [key.get_secret_value() for key in settings.api_keys]
    keys = configured + [key.strip() for key in environ.get(VARIABLE, "").split(",") if key.strip()]
    for key in keys:
        if not key.strip("* "):
            # What a SecretStr prints as: settings were dumped to JSON and read back.
            raise ConfigError("gateway.api_keys: a key is empty or masked (only asterisks)")
    if not keys and not settings.loopback and not settings.allow_anonymous:
        raise ConfigError(
            f"gateway.host: {settings.host} is open to other machines, but there are no API keys; set"
            f" gateway.api_keys or {VARIABLE}, or gateway.allow_anonymous: true"
        )
    return Access(keys)


class Service:
    """The endpoints that ask about the gateway instead of the model."""

    def __init__(self, state: GatewayState) -> None:
        self._state = state

    async def models(self, _: Request) -> Response:
        """The one model, as a list."""
        return JSONResponse({"object": "list", "data": [self._state.identity.entry()]})

    async def model(self, request: Request) -> Response:
        """One model by its name."""
        name, identity = request.path_params["name"], self._state.identity
        identity.check(name)
        return JSONResponse(identity.entry())

    async def health(self, _: Request) -> Response:
        """The process answers."""
        return JSONResponse({"status": "ok", "engine": self._state.identity.engine})

    async def ready(self, _: Request) -> Response:
        """200 while requests can be served, else 503 with the reason."""
        readiness = self._state.traffic.backend.ready()
        if readiness.ok:
            return JSONResponse({"status": "ready"})
        wait_s = math.ceil(self._state.settings.retry_after_s)
        body = {"status": "not ready", "reason": readiness.reason}
        return JSONResponse(body, status_code=503, headers={"retry-after": str(wait_s)})

    async def metrics(self, request: Request) -> Response:
        """Everything measured, in the form that the scraper asks for."""
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(self._state.registry), headers={"content-type": content_type})

    async def requests(self, request: Request) -> Response:
        """The requests of the last `seconds`; without that, all that are kept."""
        text = request.query_params.get("seconds", "inf")
        try:
            seconds = float(text)
        except ValueError:
            seconds = math.nan
        if math.isnan(seconds):
            raise HTTPException(400, f"seconds: {text!r} is no number")
        return Response(encode(self._state.metrics.log.recent(seconds)), media_type="application/json")

    async def elsewhere(self, _: Request) -> Response:
        """Generation is served before routing; what comes here had another root path."""
        raise HTTPException(404)


def make_service(state: GatewayState, extra_routes: Sequence[BaseRoute]) -> Starlette:
    """The Starlette application of everything but generation."""
    service = Service(state)
    routes = [
        Route("/v1/models", service.models),
        Route("/v1/models/{name:path}", service.model),
        Route("/health", service.health),
        Route("/ready", service.ready),
        Route("/metrics", service.metrics),
        Route("/metrics/requests", service.requests),
        # Only other methods than POST get here, which Starlette refuses with 405.
        Route(COMPLETIONS.path, service.elsewhere, methods=["POST"]),
        Route(CHAT_COMPLETIONS.path, service.elsewhere, methods=["POST"]),
        *extra_routes,
    ]
    app = Starlette(
        routes=routes, exception_handlers={HTTPException: _routing, Fault: _fault, Exception: _broken}
    )
    app.router.redirect_slashes = False
    return app


async def _routing(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    detail = error.detail if isinstance(error, HTTPException) else ""
    text = f"{request.method} {request.url.path}: {detail}"
    code = {404: "not_found", 405: "method_not_allowed"}.get(status)
    kind = "invalid_request_error" if status < 500 else "server_error"
    headers = dict(error.headers or {}) if isinstance(error, HTTPException) else {}
    return _json(status, error_body(text, kind, None, code), headers)


async def _fault(_: Request, error: Exception) -> Response:
    fault = error if isinstance(error, Fault) else Broken("The gateway failed; its log says why")
    headers = {name.decode(): value.decode() for name, value in fault.headers()}
    return _json(fault.status, fault.body(), headers)


async def _broken(request: Request, _: Exception) -> Response:
    return await _fault(request, Broken("The gateway failed; its log says why"))


def _json(status: int, body: bytes, headers: dict[str, str]) -> Response:
    return Response(body, status_code=status, headers=headers, media_type="application/json")


_SANE_ID = re.compile(rb"[A-Za-z0-9._:+/=@-]{1,128}")


class GatewayApp:
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
) -> GatewayApp:
    """The gateway over `backend`, with further routes behind the same keys. ConfigError, ProfileError."""
    access = make_access(config.gateway)
    return GatewayApp(make_state(config, backend, clock), access, extra_routes)


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
