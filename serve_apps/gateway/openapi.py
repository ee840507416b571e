"""The published description of the gateway's API: `/openapi.json`, and `/docs` as a page without scripts.

Bodies of generation are described as engines that make text read them. vLLM's server takes more, and
unknown fields are passed over, so either understands every body that fits the description.
"""

from collections.abc import Mapping, Sequence
from html import escape
from importlib.metadata import version
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Route

from serve_apps.access import needs
from serve_apps.engines.answering.fields import PATHS, body_schema

TEXTS = {"oneOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}]}
AUXILIARY_BODIES: Mapping[str, Mapping[str, Any]] = {
    "/v1/embeddings": {"properties": {"model": {"type": "string"}, "input": TEXTS}, "required": ["input"]},
    "/tokenize": {"properties": {"prompt": {"type": "string"}}, "required": ["prompt"]},
    "/detokenize": {
        "properties": {"tokens": {"type": "array", "items": {"type": "integer", "minimum": 0}}},
        "required": ["tokens"],
    },
}
STREAM = "text/event-stream"
OTHERS = {"/": "text/html", "/metrics": "text/plain", "/v1/control/live": STREAM}
JSON = "application/json"
ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {"error": {"type": "object", "required": ["message"]}},
}


def description(routes: Sequence[BaseRoute], model: str, *, keys: bool) -> dict[str, Any]:
    """OpenAPI 3.1 of these routes; with `keys` of what each needs."""
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        if isinstance(route, Route):
            for method in sorted((route.methods or set()) - {"HEAD"}):
                path = route.path.replace(":path", "")
                paths.setdefault(path, {})[method.lower()] = _operation(route, method, keys=keys)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Headway", "version": version("headway"), "summary": f"Serves {model}."},
        "components": {"securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
        "paths": paths,
    }


def _operation(route: Route, method: str, *, keys: bool) -> dict[str, Any]:
    summary = " ".join((route.endpoint.__doc__ or "").split())
    said: dict[str, Any] = {
        "summary": "OpenAI's API: output, streamed or not." if route.path in PATHS else summary,
        "responses": {
            "200": {"description": "", "content": {OTHERS.get(route.path, JSON): {}}},
            "default": {"description": "", "content": {JSON: {"schema": ERROR}}},
        },
    }
    if keys and needs(method, route.path) is not None:
        said["security"] = [{"key": []}]
    if names := list(route.param_convertors):
        said["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names
        ]
    if route.path in PATHS:
        said["responses"]["200"]["content"][STREAM] = {}
    schema = body_schema(route.path) if route.path in PATHS else AUXILIARY_BODIES.get(route.path)
    if schema is not None:
        content = {JSON: {"schema": {"type": "object", **schema}}}
        said["requestBody"] = {"required": True, "content": content}
    return said


def routes_of(routes: Sequence[BaseRoute], model: str, *, keys: bool) -> list[BaseRoute]:
    """`/openapi.json` and `/docs` of these routes."""
    described = description(routes, model, keys=keys)
    page = _page(described)

    async def document(_: Request) -> Response:
        """This API as OpenAPI 3.1."""
        return JSONResponse(described)

    async def docs(_: Request) -> Response:
        """This API as a page."""
        return HTMLResponse(page, headers={"content-security-policy": POLICY})

    return [Route("/openapi.json", document), Route("/docs", docs)]


STYLE = (
    "body{font:15px/1.5 sans-serif;max-width:60em;margin:2em auto;padding:0 1em}"
    "code{font-size:95%}td{padding:0 1em 0 0;vertical-align:top}"
)
POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def _page(described: Mapping[str, Any]) -> str:
    info = described["info"]
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8>",
        f"<title>{info['title']}: API</title><style>{STYLE}</style>",
        f"<h1>{info['title']} {escape(info['version'])}</h1><p>{escape(info['summary'])} "
        "The same as <a href=openapi.json>openapi.json</a>.</p>",
    ]
    for path, operations in described["paths"].items():
        for method, operation in operations.items():
            parts.append(f"<h2><code>{method.upper()} {escape(path)}</code></h2>")
            key = " Needs a key." if "security" in operation else ""
            parts.append(f"<p>{escape(operation['summary'])}{key}</p>")
            if (body := operation.get("requestBody")) is not None:
                parts.append(_fields(body["content"][JSON]["schema"]))
    return "".join(parts)


def _fields(schema: Mapping[str, Any]) -> str:
    required = schema.get("required", ())
    rows = []
    for name, field in schema["properties"].items():
        needed = "<td>required" if name in required else ""
        rows.append(f"<tr><td><code>{escape(name)}</code><td>{escape(_kind(field))}{needed}")
    return f"<table>{''.join(rows)}</table>"


def _kind(field: Mapping[str, Any]) -> str:
    several = field.get("anyOf") or field.get("oneOf")
    if several:
        return " or ".join(dict.fromkeys(_kind(each) for each in several if each.get("type") != "null"))
    if "enum" in field:
        return " or ".join(map(str, field["enum"]))
    words = {"minimum": "from", "maximum": "to"}
    bounds = [f"{word} {field[name]}" for name, word in words.items() if name in field]
    return " ".join([str(field.get("type", "any")), *bounds])
