"""The routes beside generation: models, health, readiness, metrics; and its errors in OpenAI's form.

`/metrics/requests?seconds=S` is for our own collector: the requests of the last S seconds, one by one.
"""

import math
from collections.abc import Sequence

from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from actors.collector.single_requests import encode
from serve_apps.gateway.faults import Broken, Fault, UnknownModel, error_body
from serve_apps.gateway.state import GatewayState
from serve_apps.gateway.wire import CHAT_COMPLETIONS, COMPLETIONS


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
        if name != identity.model:
            raise UnknownModel(
                f"The model {name!r} does not exist here; {identity.model!r} does", param="model"
            )
        return JSONResponse(identity.entry())

    async def health(self, _: Request) -> Response:
        """The process answers."""
        return JSONResponse({"status": "ok", "engine": self._state.identity.engine})

    async def ready(self, _: Request) -> Response:
        """Whether requests can be served; 503 with the reason where not."""
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
        return Response(encode(self._state.metrics.log.told(seconds)), media_type="application/json")

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
