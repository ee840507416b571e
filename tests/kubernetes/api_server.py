"""A double of the Kubernetes API server for custom objects, on real HTTP in a thread of its own.

It does what the real one does where the connector depends on it: GET and merge PATCH (RFC 7386) of one
object by group, version, namespace, plural and name; content type checked (415); `metadata.resourceVersion`
in a patch is a precondition (409); every change raises the version, a changed spec the generation, a patch
that changes nothing neither; errors are Status objects; tokens (401), rights (403) and a schema's minimum
(422) are checked. On top of it come faults: other writers, slow answers, dropped connections, error
statuses, answers that are no JSON.
"""

import asyncio
import copy
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from tests.http_thread import served

MERGE_PATCH = "application/merge-patch+json"
REASONS = {400: "BadRequest", 401: "Unauthorized", 403: "Forbidden", 404: "NotFound", 409: "Conflict"}
Key = tuple[str, str, str, str, str]


@dataclass(frozen=True)
class Request:
    """One request as it arrived."""

    method: str
    path: str
    query: str
    content_type: str
    authorization: str
    body: Any


@dataclass
class ApiServer:
    """The double's state; tests change it between calls. `url` is set once it listens."""

    url: str = ""
    token: str | None = None
    verbs: set[str] = field(default_factory=lambda: {"get", "patch"})
    objects: dict[Key, dict[str, Any]] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)
    statuses: dict[str, int] = field(default_factory=dict)
    """Methods that are answered with an error, before anything else is looked at."""
    delay_s: float = 0.0
    denies: str | None = None
    """An admission webhook that denies each PATCH with these words."""
    drop: bool = False
    garbage: bool = False
    before_patch: Callable[[dict[str, Any]], None] | None = None
    """Another writer: runs when a PATCH arrives, before its resourceVersion is checked."""
    _version: int = 1000

    def put(self, manifest: dict[str, Any], plural: str) -> None:
        """Create or replace an object."""
        group, version = manifest["apiVersion"].split("/")
        metadata = manifest["metadata"]
        key = (group, version, metadata["namespace"], plural, metadata["name"])
        stored = copy.deepcopy(manifest)
        stored["metadata"].setdefault("generation", 1)
        self.objects[key] = stored
        self.touch(stored)

    def touch(self, stored: dict[str, Any]) -> None:
        """Give the object a new version, as any write does."""
        self._version += 1
        stored["metadata"]["resourceVersion"] = str(self._version)

    @property
    def only(self) -> dict[str, Any]:
        """The one object there is."""
        (stored,) = self.objects.values()
        return stored

    def patches(self) -> list[Request]:
        """The PATCH requests so far."""
        return [request for request in self.requests if request.method == "PATCH"]

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer one request."""
        raw = await request.read()
        self.requests.append(
            Request(
                method=request.method,
                path=request.path,
                query=request.query_string,
                content_type=request.content_type,
                authorization=request.headers.get("Authorization", ""),
                body=json.loads(raw) if raw else None,
            )
        )
        if self.delay_s:
            await asyncio.sleep(self.delay_s)
        if self.drop:
            assert request.transport is not None
            request.transport.close()
        if self.garbage:
            return web.Response(text="<html>log in</html>", content_type="text/html")
        if status := self.statuses.get(request.method):
            return _status(status, f"made to answer {status}")
        return self._answer(request, self.requests[-1])

    def _answer(self, request: web.Request, seen: Request) -> web.Response:
        if self.token is not None and seen.authorization != f"Bearer {self.token}":
            return _status(401, "Unauthorized")
        scale = seen.path.endswith("/scale")
        key = _key(seen.path.removesuffix("/scale"))
        verb = {"GET": "get", "PATCH": "patch"}.get(seen.method)
        if key is None or verb is None:
            return _status(404, "the server could not find the requested resource")
        if verb not in self.verbs:
            user = "system:serviceaccount:prod:headway"
            return _status(
                403,
                f'{key[3]}.{key[0]} "{key[4]}" is forbidden: User "{user}" cannot {verb} resource "{key[3]}"',
            )
        stored = self.objects.get(key)
        if stored is None:
            return _status(404, f'{key[3]}.{key[0]} "{key[4]}" not found')
        if scale and verb == "patch" and seen.body.get("spec", {}).keys() != {"replicas"}:
            return _status(422, "a scale has spec.replicas alone")
        return web.json_response(stored) if verb == "get" else self._patch(stored, seen)

    def _patch(self, stored: dict[str, Any], seen: Request) -> web.Response:
        if seen.content_type != MERGE_PATCH:
            return _status(415, f"the body of the request was in an unknown format {seen.content_type}")
        if self.denies is not None:
            return _status(403, f'admission webhook "graphs.example" denied the request: {self.denies}')
        if self.before_patch is not None:
            self.before_patch(stored)
        wanted = seen.body.get("metadata", {}).get("resourceVersion")
        if wanted is not None and wanted != stored["metadata"]["resourceVersion"]:
            return _status(
                409, "the object has been modified; please apply your changes to the latest version"
            )
        merged = merge(stored, seen.body)
        for name, service in (merged["spec"].get("services") or {}).items():
            if isinstance(service.get("replicas"), int) and service["replicas"] > 100:
                return _status(422, f"spec.services.{name}.replicas: Invalid value: should be at most 100")
        if merged != stored:
            changed_spec = merged["spec"] != stored["spec"]
            stored.clear()
            stored.update(merged)
            stored["metadata"]["generation"] += 1 if changed_spec else 0
            self.touch(stored)
        return web.json_response(stored)


def merge(target: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    merged = copy.deepcopy(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge(merged.get(key), value)
    return merged


def _key(path: str) -> Key | None:
    match path.strip("/").split("/"):
        case ["apis", group, version, "namespaces", namespace, plural, name]:
            return (group, version, namespace, plural, name)
    return None


def _status(code: int, message: str) -> web.Response:
    body = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": REASONS.get(code, "Unknown"),
        "code": code,
    }
    return web.json_response(body, status=code)


@contextmanager
def serving() -> Iterator[ApiServer]:
    """An API server on a free port of loopback, for the length of the block."""
    server = ApiServer()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", server.handle)
    with served(app) as (server.url, _):
        yield server
