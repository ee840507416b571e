"""One custom object of a Kubernetes cluster: where it is, and how it is read and patched.

Location. A Dynamo operator gives each container of a graph the graph's name in `DYN_PARENT_DGD_K8S_NAME`, so
a control plane that runs as one of the graph's services needs no setting. The namespace is, in this order:
the setting, `POD_NAMESPACE` (downward API), the service account's own file, `default`.

Access goes through the official client, whose errors become

    ConnectorError
    ├── Unreachable        no answer, too late, 429 or 5xx, or the answer is not from a Kubernetes API server
    │   └── Conflict       409: somebody changed the object since it was read; read it again
    └── Refused            401, 403 (names the rule that is missing), 404, 422 and other 4xx, no configuration

The client is synchronous; calls run in a thread. urllib3's own retries are off: they would multiply the
timeout, and the planner asserts its targets again at the next tick anyway.
"""

import asyncio
import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from actors.connectors.protocol import ConnectorError, Refused, Unreachable
from headway.config.live import KubernetesSettings

if TYPE_CHECKING:
    from kubernetes.client import ApiException, CustomObjectsApi

Manifest = Mapping[str, Any]
"""An object as the API server returns it: parsed JSON."""

PARENT_GRAPH = "DYN_PARENT_DGD_K8S_NAME"
POD_NAMESPACE = "POD_NAMESPACE"
SERVICE_ACCOUNT_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")

MERGE_PATCH = "application/merge-patch+json"
TOKEN = "HEADWAY_KUBERNETES_TOKEN"
FIELD_MANAGER = "headway"
ADMISSION = "admission webhook"
"""What a 403 says when not the rights are missing, but an operator's validation refuses the change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """A custom resource of the Kubernetes API."""

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


DYNAMO_GRAPH = Resource(
    group="nvidia.com", version="v1alpha1", plural="dynamographdeployments", kind="DynamoGraphDeployment"
)
RAY_SERVICE = Resource(group="ray.io", version="v1", plural="rayservices", kind="RayService")


def locate(
    settings: KubernetesSettings,
    environment: Mapping[str, str],
    namespace_file: Path = SERVICE_ACCOUNT_NAMESPACE,
) -> Location:
    """The object that the settings and the surroundings name; Refused if nothing gives its name."""
    namespace = settings.namespace or environment.get(POD_NAMESPACE)
    if not namespace:
        with suppress(OSError):
            namespace = namespace_file.read_text(encoding="utf-8").strip()
    namespace = namespace or "default"
    if settings.target == "kuberay":
        if not settings.name:
            raise Refused("connector.kubernetes.name: needed with target kuberay, the name of the RayService")
        return Location(resource=RAY_SERVICE, namespace=namespace, name=settings.name)
    name = settings.name or environment.get(PARENT_GRAPH)
    if not name:
        raise Refused(
            f"no graph deployment is named: set connector.kubernetes.name, or {PARENT_GRAPH} as the "
            "Dynamo operator does"
        )
    return Location(resource=DYNAMO_GRAPH, namespace=namespace, name=name)


class Conflict(Unreachable):
    """The object changed between the read and the patch."""


class CustomObject:
    """One custom object, reached over HTTP."""

    def __init__(self, location: Location, api_url: str | None = None, token: str | None = None) -> None:
        self.location = location
        self._api_url = api_url
        self._token = token or os.environ.get(TOKEN)
        self._api: CustomObjectsApi | None = None

    async def get(self, timeout_s: float) -> Manifest:
        """The object now."""
        return await self._call("get", timeout_s)

    async def patch(self, body: Mapping[str, Any], timeout_s: float) -> Manifest:
        """Merge `body` into the object and return it. Conflict if `body` holds another resourceVersion."""
        return await self._call(
            "patch", timeout_s, body=dict(body), field_manager=FIELD_MANAGER, _content_type=MERGE_PATCH
        )

    async def _call(self, verb: str, timeout_s: float, **arguments: Any) -> Manifest:  # noqa: ANN401 - the client's
        answer = await asyncio.to_thread(self._blocking_call, verb, timeout_s, arguments)
        if not isinstance(answer, Mapping) or not isinstance(answer.get("metadata"), Mapping):
            raise Unreachable(f"{self._deed(verb)}: the answer is no Kubernetes object")
        return answer

    def _blocking_call(self, verb: str, timeout_s: float, arguments: Mapping[str, Any]) -> object:
        from kubernetes.client import ApiException
        from urllib3.exceptions import HTTPError

        resource = self.location.resource
        try:
            method: Callable[..., object] = getattr(self._connected(), f"{verb}_namespaced_custom_object")
            return method(
                group=resource.group,
                version=resource.version,
                namespace=self.location.namespace,
                plural=resource.plural,
                name=self.location.name,
                _request_timeout=timeout_s,
                **arguments,
            )
        except ApiException as error:
            raise self._translated(verb, error) from error
        except (HTTPError, OSError) as error:
            raise Unreachable(f"{self._deed(verb)}: {error}") from error
        except ValueError as error:
            raise Unreachable(f"{self._deed(verb)}: the answer is not understood: {error}") from error

    def _connected(self) -> "CustomObjectsApi":
        if self._api is None:
            from kubernetes.client import ApiClient, CustomObjectsApi

            self._api = CustomObjectsApi(ApiClient(_configuration(self._api_url, self._token)))
        return self._api

    def _translated(self, verb: str, error: "ApiException") -> ConnectorError:
        # The server sends a Status object as body.
        try:
            message = mapping(json.loads(error.body or "")).get("message")
        except (TypeError, ValueError):
            message = None
        status, said = error.status or 0, str(message or error.reason or "").strip()
        text = f"{self._deed(verb)}: {status} {said}"
        if status == 409:
            return Conflict(text)
        if status in (401, 403) and ADMISSION not in said:
            return Refused(f"{text}; {self._rule_needed()}")
        if status == 404:
            return Refused(f"{text}; no such {self.location.resource.kind}, or its resource is not installed")
        if 400 <= status < 500 and status != 429:
            return Refused(text)
        return Unreachable(text)

    def _deed(self, verb: str) -> str:
        location = self.location
        return f"{verb.upper()} {location.resource} {location.name} in namespace {location.namespace}"

    def _rule_needed(self) -> str:
        resource = self.location.resource
        return (
            f"needed: a valid token and a Role in namespace {self.location.namespace} with the rule "
            f'apiGroups: ["{resource.group}"], resources: ["{resource.plural}"], verbs: ["get", "patch"] '
            "(examples/kubernetes/rbac.yaml)"
        )


def _configuration(api_url: str | None, token: str | None) -> Any:  # noqa: ANN401 - the client has no types
    """Where the API server is: the address given, in-cluster configuration, or the kubeconfig."""
    from kubernetes import config
    from kubernetes.client import Configuration

    configuration = Configuration()
    if api_url is not None:
        configuration.host = api_url.rstrip("/")
        if token:
            configuration.api_key = {"authorization": f"Bearer {token}"}
    else:
        try:
            config.load_incluster_config(client_configuration=configuration)
        except config.ConfigException:
            try:
                config.load_kube_config(client_configuration=configuration)
            except (config.ConfigException, OSError) as error:
                raise Refused(
                    "neither an in-cluster configuration nor a usable kubeconfig, and "
                    f"connector.kubernetes.api_url is not set: {error}"
                ) from error
    configuration.retries = False
    return configuration


def mapping(value: object) -> Mapping[str, Any]:
    """The value if it is a mapping, else an empty one: manifests omit what is empty, or hold null."""
    return value if isinstance(value, Mapping) else {}


def condition(manifest: Manifest, kind: str) -> Mapping[str, Any] | None:
    """The condition of this type in the object's status."""
    conditions = mapping(manifest.get("status")).get("conditions")
    for item in conditions if isinstance(conditions, list) else []:
        if mapping(item).get("type") == kind:
            return mapping(item)
    return None
