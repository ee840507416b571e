"""The engines whose metrics are read: given addresses, every address of a name, pods by their labels.

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
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from actors.connectors.kube_api import TOKEN, configuration, mapping, official_client
from actors.connectors.kube_object import namespace_of
from actors.connectors.protocol import Refused
from headway.config.live import EngineAddresses, KubernetesSettings
from headway.planning import Role

if TYPE_CHECKING:
    from kubernetes.client import CoreV1Api

REFRESH_S = 5.0
RUNNING = "Running"

Find = Callable[[EngineAddresses, float], Awaitable[Sequence[str]]]
"""Addresses by one way, within so many seconds. DiscoveryError."""

_log = logging.getLogger(__name__)


class DiscoveryError(Exception):
    """A name or a selector cannot be looked up now; the text says which and why."""


async def resolved(engines: EngineAddresses, timeout_s: float) -> Sequence[str]:
    """`host:port` for every address of the name."""
    host, _, port = (engines.dns or "").rpartition(":")
    look_up = asyncio.get_running_loop().getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
    try:
        async with asyncio.timeout(timeout_s):
            found = await look_up
    except (OSError, TimeoutError) as error:
        raise DiscoveryError(f"{engines.dns}: {error or 'no answer in time'}") from None
    hosts = sorted({str(place[4][0]) for place in found})
    return [f"[{each}]:{port}" if ":" in each else f"{each}:{port}" for each in hosts]


class Discovery:
    """The engines by address, with their roles."""

    def __init__(
        self,
        engines: Mapping[Role, EngineAddresses],
        pods: Find,
        *,
        timeout_s: float,
        clock: Callable[[], float],
        names: Find = resolved,
    ) -> None:
        self._engines = engines
        self._finders: Sequence[tuple[Callable[[EngineAddresses], Any], Find]] = (
            (lambda each: each.dns, names),
            (lambda each: each.selector, pods),
        )
        self._timeout_s, self._clock = timeout_s, clock
        self._looked_s = float("-inf")
        self._found: dict[tuple[Role, int], Sequence[str]] = {}
        self.faults: dict[tuple[Role, int], str] = {}

    async def engines(self) -> Mapping[str, Role]:
        """The address of each engine's metrics."""
        if self._clock() - self._looked_s >= REFRESH_S:
            await self._look()
            self._looked_s = self._clock()
        given = {url(address): role for role, each in self._engines.items() for address in each.addresses}
        found = {url(address): role for (role, _), each in self._found.items() for address in each}
        return {**given, **found}

    async def _look(self) -> None:
        wanted = [
            (role, way, each, find)
            for role, each in self._engines.items()
            for way, (asked, find) in enumerate(self._finders)
            if asked(each)
        ]
        await asyncio.gather(*(self._look_for(*each) for each in wanted))

    async def _look_for(self, role: Role, way: int, engines: EngineAddresses, find: Find) -> None:
        try:
            self._found[role, way] = await find(engines, self._timeout_s)
            self.faults.pop((role, way), None)
        except DiscoveryError as error:
            if (role, way) not in self.faults:
                _log.warning("engines are not looked up: %s", error)
            self.faults[role, way] = str(error)


def url(address: str) -> str:
    """The address of an engine's metrics."""
    whole = address if "://" in address else f"http://{address}"
    return whole if whole.rstrip("/").endswith("/metrics") else f"{whole.rstrip('/')}/metrics"


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
