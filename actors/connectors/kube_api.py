"""Calls of a Kubernetes API server for objects of any resource, through the official client.

Its errors become

    ConnectorError
    ├── Unreachable        no answer, too late, 429 or 5xx, or the answer is not from a Kubernetes API server
    │   └── Conflict       409: somebody changed the object since it was read; read it again
    └── Refused            other 4xx, no configuration
        ├── Forbidden      401, 403: names the rule that is missing
        └── Missing        404

The client is synchronous; calls run in a thread. urllib3's own retries are off: they would multiply the
timeout, and the planner asserts its targets again at the next tick anyway.
"""

import asyncio
import json
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from actors.connectors.protocol import ConnectorError, Refused, Unreachable

if TYPE_CHECKING:
    from kubernetes.client import ApiException, CustomObjectsApi

Manifest = Mapping[str, Any]
"""An object as the API server returns it: parsed JSON."""

MERGE_PATCH = "application/merge-patch+json"
TOKEN = "HEADWAY_KUBERNETES_TOKEN"
FIELD_MANAGER = "headway"
"""The name under which the API server keeps what we wrote, in `metadata.managedFields`."""
ANONYMOUS = 'User "system:anonymous"'
"""What a 403 says to a request without credentials, such as that of a kubeconfig whose plugin failed."""
CREDENTIALS = f"which is the service account's, {TOKEN} with api_url, or the kubeconfig's"
HEADER = "Invalid header value"
UNVERIFIED = "CERTIFICATE_VERIFY_FAILED"
ADMISSION = "admission webhook"
"""What a 403 says when not the rights are missing, but an operator's validation refuses the change."""
MISSHAPEN = (TypeError, AttributeError, KeyError, ValueError)
"""What the client raises over a kubeconfig that is YAML of another shape."""
CLIENT_NAMES = ("ApiClient", "ApiException", "Configuration", "CoreV1Api", "CustomObjectsApi")
OWN_SCALING = {
    kind: f"let KServe scale it with KEDA ({section}) by headway_target_replicas, "
    "and set connector.kind virtual (docs/targets.md#kserve)"
    for kind, section in (
        ("InferenceService", "spec.predictor.autoScaling"),
        ("LLMInferenceService", "spec.scaling.keda"),
    )
}
"""What to do with kinds that own the counts of their Deployments and have no scale subresource."""
_IMPORTING = threading.Lock()


class Conflict(Unreachable):
    """The object changed between the read and the patch."""


class Forbidden(Refused):
    """No valid token, or a missing right."""


class Missing(Refused):
    """No such object, or no such resource."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """A resource of the Kubernetes API."""

    group: str
    version: str
    plural: str
    kind: str

    def __str__(self) -> str:
        return f"{self.plural}.{self.group}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """One object: its resource, namespace and name."""

    resource: Resource
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.resource.kind} {self.namespace}/{self.name}"


class KubeApi:
    """One API server. Making it does no I/O."""

    def __init__(self, api_url: str | None = None, token: str | None = None) -> None:
        self._api_url = api_url
        self._token = token or os.environ.get(TOKEN)
        self._api: CustomObjectsApi | None = None

    async def one(
        self,
        method: str,
        place: Location,
        *,
        timeout_s: float,
        scale: bool = False,
        body: Mapping[str, Any] | None = None,
    ) -> Manifest:
        """GET, PATCH (a merge) or POST one object, or its scale subresource; the object then."""
        resource, namespace = place.resource, place.namespace
        part = "/scale" if scale else ""
        deed = f"{method} {resource}{part} {place.name} in namespace {namespace}"
        arguments: dict[str, Any] = {"plural": resource.plural, "namespace": namespace}
        if method != "POST":
            arguments["name"] = place.name
        if body is not None:
            arguments |= {"body": dict(body), "field_manager": FIELD_MANAGER}
        if method == "PATCH":
            arguments["_content_type"] = MERGE_PATCH
        verb = {"GET": "get", "PATCH": "patch", "POST": "create"}[method]
        rule = f'resources: ["{resource.plural}{part}"], verbs: ["{verb}"]'
        answer = await self.call(
            f"{verb}_namespaced_custom_object{'_scale' if scale else ''}",
            deed,
            f'a Role in namespace {namespace} with the rule apiGroups: ["{resource.group}"], {rule}',
            timeout_s=timeout_s,
            group=resource.group,
            version=resource.version,
            **arguments,
        )
        if not isinstance(answer.get("metadata"), Mapping):
            raise Unreachable(f"{deed}: the answer is no Kubernetes object")
        return answer

    async def items(self, resource: Resource, namespace: str, timeout_s: float) -> list[Manifest]:
        """All objects of a resource in a namespace."""
        answer = await self.call(
            "list_namespaced_custom_object",
            f"LIST {resource} in namespace {namespace}",
            f'a Role in namespace {namespace} with the rule apiGroups: ["{resource.group}"], '
            f'resources: ["{resource.plural}"], verbs: ["list"]',
            timeout_s=timeout_s,
            group=resource.group,
            version=resource.version,
            namespace=namespace,
            plural=resource.plural,
        )
        return [item for item in answer.get("items") or () if isinstance(item, Mapping)]

    async def resource_of(self, group: str, version: str, kind: str, timeout_s: float) -> Resource:
        """The resource of a kind, by discovery. Refused without one, or without a scale subresource."""
        answer = await self.call(
            "get_api_resources",
            f"GET /apis/{group}/{version}",
            "discovery, which system:discovery grants to every user",
            timeout_s=timeout_s,
            group=group,
            version=version,
        )
        found = [mapping(item) for item in answer.get("resources") or ()]
        plurals = [str(item.get("name")) for item in found if item.get("kind") == kind]
        plural = next((name for name in plurals if "/" not in name), None)
        if plural is None:
            known = sorted({str(item["kind"]) for item in found if "/" not in str(item.get("name"))})
            raise Refused(f"{group}/{version} has no kind {kind}; it has {', '.join(known) or 'none'}")
        if f"{plural}/scale" not in (item.get("name") for item in found):
            way = f": {OWN_SCALING[kind]}" if kind in OWN_SCALING else ""
            raise Refused(f"{kind} of {group}/{version} has no scale subresource{way}")
        return Resource(group=group, version=version, plural=plural, kind=kind)

    async def call(
        self,
        method: str,
        deed: str,
        rule: str,
        *,
        timeout_s: float,
        **arguments: Any,  # noqa: ANN401 - the client's
    ) -> Manifest:
        """The client's method, off the event loop. `rule` is named where the right to do it is missing."""
        answer = await asyncio.to_thread(self._blocking, method, deed, rule, timeout_s, arguments)
        if not isinstance(answer, Mapping):
            raise Unreachable(f"{deed}: the answer is no Kubernetes object")
        return answer

    def _blocking(
        self, method: str, deed: str, rule: str, timeout_s: float, arguments: Mapping[str, Any]
    ) -> object:
        from urllib3.exceptions import HTTPError

        client = official_client()
        try:
            function: Callable[..., object] = getattr(self._connected(), method)
            answer = function(_request_timeout=timeout_s, **arguments)
        except client.ApiException as error:
            raise _translated(deed, rule, error) from error
        except (HTTPError, OSError) as error:
            raise Unreachable(f"{deed}: {_one_line(error)}") from error
        except ValueError as error:
            if HEADER in str(error):
                # Without the error itself: it shows the header, which is the token.
                raise Refused(f"{deed}: the token, {CREDENTIALS}, holds a line break") from None
            raise Unreachable(f"{deed}: the answer is not understood: {_one_line(error)}") from error
        if not isinstance(answer, Mapping) and self._api is not None:
            # Where the client has a model of its own for the answer, its plain form is what is read here.
            plain: object = self._api.api_client.sanitize_for_serialization(answer)
            return plain
        return answer

    def _connected(self) -> "CustomObjectsApi":
        if self._api is None:
            client = official_client()
            found = configuration(self._api_url, self._token)
            self._api = client.CustomObjectsApi(client.ApiClient(found))
        return self._api


def _translated(deed: str, rule: str, error: "ApiException") -> ConnectorError:
    status, said = error.status or 0, _one_line(_words(error))
    text = f"{deed}: {status} {said}" if status else f"{deed}: {said}"
    if status == 409:
        return Conflict(text)
    if status == 401 or (status == 403 and ANONYMOUS in said):
        return Forbidden(f"{text}; needed: a valid token, {CREDENTIALS}")
    if status == 403 and ADMISSION not in said:
        return Forbidden(f"{text}; needed: {rule} (examples/kubernetes/rbac.yaml)")
    if status == 404:
        return Missing(f"{text}; no such object, or its resource is not installed")
    if 400 <= status < 500 and status != 429:
        return Refused(text)
    if UNVERIFIED in said:
        text += "; its authority is taken from the kubeconfig, or from the file that SSL_CERT_FILE names"
    return Unreachable(text)


def _words(error: "ApiException") -> str:
    """The message of the server, which sends a Status object as body; a proxy sends text."""
    body = error.body.decode(errors="replace") if isinstance(error.body, bytes) else str(error.body or "")
    try:
        return str(mapping(json.loads(body)).get("message") or error.reason or "")
    except ValueError:
        text = "" if body.startswith("<") else body[:200]
        return ": ".join(filter(None, (str(error.reason or ""), text)))


def _one_line(text: object) -> str:
    return " ".join(str(text).split())


def official_client() -> Any:  # noqa: ANN401 - the client has no types
    """The package `kubernetes.client`, with the names that we use imported.

    It imports each part when its name is first used, and the parts import one another. Two threads that
    did so at once have met as `_DeadlockError`.
    """
    with _IMPORTING:
        from kubernetes import client

        for name in CLIENT_NAMES:
            getattr(client, name)
    return client


def configuration(api_url: str | None, token: str | None) -> Any:  # noqa: ANN401 - the client has no types
    """Where the API server is: the address given, in-cluster configuration, or the kubeconfig."""
    client = official_client()
    from kubernetes import config
    from yaml import YAMLError

    configured = client.Configuration()
    if api_url is not None:
        configured.host = api_url.rstrip("/")
        if token:
            configured.api_key = {"authorization": f"Bearer {token.strip()}"}
    else:
        try:
            config.load_incluster_config(client_configuration=configured)
        except config.ConfigException:
            try:
                config.load_kube_config(client_configuration=configured)
            # The file is read without looking whether it has the shape of a kubeconfig.
            except (config.ConfigException, OSError, YAMLError, *MISSHAPEN) as error:
                raise Refused(
                    "neither an in-cluster configuration nor a usable kubeconfig, and "
                    f"connector.kubernetes.api_url is not set: {_one_line(error)}"
                ) from error
    configured.retries = False
    return configured


def mapping(value: object) -> Mapping[str, Any]:
    """The value if it is a mapping, else an empty one: manifests omit what is empty, or hold null."""
    return value if isinstance(value, Mapping) else {}


def number(value: object, otherwise: int) -> int:
    """The value if it is a whole number."""
    return value if isinstance(value, int) and not isinstance(value, bool) else otherwise


def condition(manifest: Manifest, kind: str) -> Mapping[str, Any] | None:
    """The condition of this type in the object's status."""
    conditions = mapping(manifest.get("status")).get("conditions")
    for item in conditions if isinstance(conditions, list) else []:
        if mapping(item).get("type") == kind:
            return mapping(item)
    return None
