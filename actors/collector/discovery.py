"""Where engines are found: as given addresses, as every address of a name, or as pods by their labels.

    way           an engine is                                      looked up
    addresses     each address                                      never
    dns           each A or AAAA record                             again every REFRESH_S
    selector      each pod that runs and has an address             again every REFRESH_S, by the API server

A look-up that fails leaves the engines that were found before, and is reported: not to see a fleet is no
reason to believe that it is gone.

A pod counts while its phase is Running and it has an address, whether it is ready or not: one that loads its
model does not answer yet, and one that drains still serves. It needs the right to list pods
(`examples/kubernetes/attach.yaml`).
"""

import asyncio
import json
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from actors.collector.exposition import ROLE, metrics_url
from actors.collector.series import GROUP
from actors.connectors.kube_api import TOKEN, configuration, mapping, official_client
from actors.connectors.kube_object import namespace_of
from actors.connectors.protocol import Refused
from headway.config.live import EngineAddresses, KubernetesSettings
from headway.engine.nearest import gpu_of
from headway.planning import Role

if TYPE_CHECKING:
    from kubernetes.client import CoreV1Api

REFRESH_S = 5.0
RUNNING = "Running"

Labels = Mapping[str, str]
Find = Callable[[EngineAddresses, float], Awaitable[Mapping[str, Labels]]]
"""Addresses by one way, within so many seconds, with what is told of each. DiscoveryError."""

LWS, WORKER = "leaderworkerset.sigs.k8s.io", "worker"

_log = logging.getLogger(__name__)


class DiscoveryError(Exception):
    """A name or a selector cannot be looked up now; the text says which and why."""


async def resolved(engines: EngineAddresses, timeout_s: float) -> Mapping[str, Labels]:
    """`host:port` for every address of the name."""
    host, _, port = (engines.dns or "").rpartition(":")
    look_up = asyncio.get_running_loop().getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
    try:
        async with asyncio.timeout(timeout_s):
            found = await look_up
    except (OSError, TimeoutError) as error:
        raise DiscoveryError(f"{engines.dns}: {error or 'no answer in time'}") from None
    hosts = sorted({str(place[4][0]) for place in found})
    return {_at(each, port): {} for each in hosts}


def _at(host: str, port: object) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class Discovery:
    """The engines by address, with their roles and what else is told of them, as labels."""

    def __init__(
        self,
        engines: Mapping[Role, EngineAddresses],
        pods: Find,
        *,
        timeout_s: float,
        clock: Callable[[], float],
        names: Find = resolved,
        path: str = "/metrics",
    ) -> None:
        self._engines, self._path = engines, path
        ways = [(role, each.dns, names) for role, each in engines.items()]
        ways += [(role, each.selector, pods) for role, each in engines.items()]
        self._looks = [(role, find) for role, asked, find in ways if asked]
        self._timeout_s, self._clock = timeout_s, clock
        self._looked_s = float("-inf")
        self._found: dict[tuple[Role, Find], Mapping[str, Labels]] = {}
        self.faults: dict[tuple[Role, Find], str] = {}

    async def engines(self) -> Mapping[str, Labels]:
        """The address of each engine's metrics."""
        if not 0.0 <= self._clock() - self._looked_s < REFRESH_S:
            await asyncio.gather(*(self._look_for(*each) for each in self._looks))
            self._looked_s = self._clock()
        given = [(role, address) for role, each in self._engines.items() for address in each.addresses]
        every: list[tuple[Role, str, Labels]] = [(*each, {}) for each in given]
        every += [(role, *found) for (role, _), each in self._found.items() for found in each.items()]
        return {self._url(address, role): {**labels, ROLE: role.value} for role, address, labels in every}

    def _url(self, address: str, role: Role) -> str:
        scheme = "https" if self._engines[role].https else "http"
        return metrics_url(address if "://" in address else f"{scheme}://{address}", self._path)

    async def _look_for(self, role: Role, find: Find) -> None:
        try:
            self._found[role, find] = await find(self._engines[role], self._timeout_s)
            self.faults.pop((role, find), None)
        except DiscoveryError as error:
            if (role, find) not in self.faults:
                _log.warning("engines are not looked up: %s", error)
            self.faults[role, find] = str(error)


class Pods:
    """Looks pods up. Making it does no I/O."""

    def __init__(self, settings: KubernetesSettings) -> None:
        self._settings = settings
        self._api: CoreV1Api | None = None

    async def __call__(self, engines: EngineAddresses, timeout_s: float) -> Mapping[str, Labels]:
        """`host:port` of each pod that the selector matches. DiscoveryError."""
        return await asyncio.to_thread(self._blocking, engines, timeout_s)

    def _blocking(self, engines: EngineAddresses, timeout_s: float) -> Mapping[str, Labels]:
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
        return {
            _at(ip, port): _labels(mapping(pod))
            for pod in (items if isinstance(items, list) else [])
            if (ip := _address(mapping(pod)))
            for port in (engines.port if isinstance(engines.port, tuple) else [engines.port])
        }

    def _connected(self) -> "CoreV1Api":
        if self._api is None:
            found = configuration(self._settings.api_url, os.environ.get(TOKEN))
            client = official_client()
            self._api = client.CoreV1Api(client.ApiClient(found))
        return self._api


def _address(pod: Mapping[str, Any]) -> str:
    status = mapping(pod.get("status"))
    return str(status.get("podIP") or "") if status.get("phase") == RUNNING else ""


def _labels(pod: Mapping[str, Any]) -> Labels:
    metadata = mapping(pod.get("metadata"))
    own, chosen = mapping(metadata.get("labels")), mapping(mapping(pod.get("spec")).get("nodeSelector"))
    told = {
        "pod": metadata.get("name"),
        GROUP: own.get(f"{LWS}/group-key"),
        WORKER: own.get(f"{LWS}/worker-index"),
        "gpu": next(filter(None, (gpu_of(str(each)) for each in (*chosen.values(), *own.values()))), None),
    }
    return {name: str(value) for name, value in told.items() if value}
