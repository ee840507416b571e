"""The pods of a label selector, as addresses: one list call to the Kubernetes API server.

A pod counts while its phase is Running and it has an address, whether it is ready or not: one that loads its
model does not answer yet, and one that drains still serves. It needs the right to list pods
(`examples/kubernetes/attach.yaml`).
"""

import asyncio
import json
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from actors.collector.discovery import DiscoveryError
from actors.connectors.kube_api import TOKEN, configuration, mapping, official_client
from actors.connectors.kube_object import namespace_of
from actors.connectors.protocol import Refused
from headway.config.connector import KubernetesSettings
from headway.config.metrics import EngineAddresses

if TYPE_CHECKING:
    from kubernetes.client import CoreV1Api

RUNNING = "Running"


class Pods:
    """Looks pods up. Making it does no I/O."""

    def __init__(self, settings: KubernetesSettings) -> None:
        self._settings = settings
        self._api: CoreV1Api | None = None

    async def __call__(self, engines: EngineAddresses, timeout_s: float) -> Sequence[str]:
        """`host:port` of each pod that the selector matches. DiscoveryError."""
        return await asyncio.to_thread(self._blocking, engines, timeout_s)

    def _blocking(self, engines: EngineAddresses, timeout_s: float) -> Sequence[str]:
        from urllib3.exceptions import HTTPError

        namespace = engines.namespace or namespace_of(self._settings, os.environ)
        client = official_client()
        where = f"pods {engines.selector} in namespace {namespace}"
        try:
            answer = self._connected().list_namespaced_pod(
                namespace,
                label_selector=engines.selector,
                _request_timeout=timeout_s,
                _preload_content=False,
            )
            listed = json.loads(answer.data)
        except client.ApiException as error:
            needed = "; needed: a Role with pods, verbs: [list]" if error.status in (401, 403) else ""
            raise DiscoveryError(f"{where}: {error.status} {error.reason}{needed}") from None
        except (HTTPError, OSError, ValueError, Refused) as error:
            raise DiscoveryError(f"{where}: {error}") from None
        items = mapping(listed).get("items")
        return sorted(
            f"[{ip}]:{engines.port}" if ":" in ip else f"{ip}:{engines.port}"
            for pod in (items if isinstance(items, list) else [])
            if (ip := _address(mapping(pod)))
        )

    def _connected(self) -> "CoreV1Api":
        if self._api is None:
            found = configuration(self._settings.api_url, os.environ.get(TOKEN))
            client = official_client()
            self._api = client.CoreV1Api(client.ApiClient(found))
        return self._api


def _address(pod: Mapping[str, Any]) -> str:
    status = mapping(pod.get("status"))
    return str(status.get("podIP") or "") if status.get("phase") == RUNNING else ""
