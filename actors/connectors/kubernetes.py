"""Scales pools through the Kubernetes API: a Dynamo graph deployment, or a KubeRay RayService.

`set_targets` reads the object, computes a merge patch of the replica counts alone, and sends it with the
resourceVersion that was read. Controllers write these objects too (their status counts), so the server may
answer 409: then the object is read again and the patch computed anew, a few times. Nothing is sent where
nothing differs, so that calling every tick is cheap. Each call ends within `connector.timeout_s`, retries
included.

The services of roles and the meaning of the counts stand in `dynamo_graph` and `ray_service`.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Protocol

from actors.connectors.dynamo_graph import DynamoGraph
from actors.connectors.kube_object import Conflict, CustomObject, Manifest, locate, mapping
from actors.connectors.protocol import (
    Action,
    ConnectorError,
    ConnectorKind,
    PoolCounts,
    Ready,
    Refused,
    Unreachable,
)
from actors.connectors.ray_service import RayServiceApplication
from headway.config import HeadwayConfig
from headway.planning import Role

ATTEMPTS = 5
FIRST_PAUSE_S = 0.02
DEFAULT_APPLICATION = "headway"


class Target(Protocol):
    """Replica counts in one kind of object."""

    def counts(self, manifest: Manifest) -> Mapping[Role, PoolCounts]:
        """The pools by spec and status; Refused where the structure is wrong."""

    def patch(self, manifest: Manifest, targets: Mapping[Role, int]) -> dict[str, Any] | None:
        """The `spec` of a merge patch that sets these counts; None if they are set. Refused as above."""

    def problems(self, manifest: Manifest) -> list[str]:
        """Reasons why the object is not ready to be scaled, each with its place; empty if it is."""


class KubernetesConnector:
    """Carries targets to one custom object. Making it does no I/O: faults show in its calls."""

    def __init__(
        self, config: HeadwayConfig, application: str = DEFAULT_APPLICATION, token: str | None = None
    ) -> None:
        self._settings = config.connector.kubernetes
        self._timeout_s = config.connector.timeout_s
        self._roles = tuple(Role(name) for name in config.pools)
        self._token = token
        self._target: Target = (
            DynamoGraph(self._roles, config.model)
            if self._settings.target == "dynamo"
            else RayServiceApplication(self._roles, config.model, application)
        )
        self._object: CustomObject | None = None

    async def set_targets(self, targets: Mapping[Role, int], reasons: Mapping[str, Any]) -> Action:
        """Patch the counts that differ. The reasons stay in the planner's log."""
        for role, count in targets.items():
            if role not in self._roles:
                raise Refused(f"no pool {role.value}: the settings have {', '.join(self._roles)}")
            if count < 0:
                raise Refused(f"{role.value}: {count} replicas")
        async with _within(self._timeout_s, self._where()) as left_s:
            return await self._patched(targets, left_s)

    async def state(self) -> Mapping[Role, PoolCounts]:
        """The pools now."""
        async with _within(self._timeout_s, self._where()) as left_s:
            manifest = await self._reached().get(left_s())
        with _naming(self._where()):
            return self._target.counts(manifest)

    async def ready(self) -> Ready:
        """Ready if the object exists, is whole, serves the model and has its first replicas."""
        try:
            where = self._where()
            async with _within(self._timeout_s, where) as left_s:
                manifest = await self._reached().get(left_s())
        except ConnectorError as error:
            return Ready(ok=False, reason=str(error))
        problems = self._target.problems(manifest)
        return Ready(ok=not problems, reason=f"{where}: {'; '.join(problems)}" if problems else "")

    async def _patched(self, targets: Mapping[Role, int], left_s: Callable[[], float]) -> Action:
        reached = self._reached()
        for attempt in range(ATTEMPTS):
            manifest = await reached.get(left_s())
            with _naming(self._where()):
                spec = self._target.patch(manifest, targets)
            if spec is None:
                return Action(status="unchanged", detail={"object": self._where()})
            # The server takes the patch only if the object is still the one that was read.
            version = mapping(manifest.get("metadata")).get("resourceVersion")
            body = {"metadata": {"resourceVersion": version}, "spec": spec}
            try:
                answer = await reached.patch(body, left_s())
            except Conflict:
                await asyncio.sleep(FIRST_PAUSE_S * 2**attempt)
                continue
            detail = {
                "object": self._where(),
                "replicas": {role.value: count for role, count in targets.items()},
                "resource_version": str(mapping(answer.get("metadata")).get("resourceVersion", "")),
            }
            return Action(status="sent", detail=detail)
        raise Unreachable(f"{self._where()}: changed by others during each of {ATTEMPTS} attempts")

    def _where(self) -> str:
        return str(self._reached().location)

    def _reached(self) -> CustomObject:
        if self._object is None:
            location = locate(self._settings, os.environ)
            self._object = CustomObject(location, self._settings.api_url, self._token)
        return self._object


@contextmanager
def _naming(where: str) -> Iterator[None]:
    """Puts the object in front of a refusal."""
    try:
        yield
    except Refused as error:
        raise Refused(f"{where}: {error}") from error


@asynccontextmanager
async def _within(timeout_s: float, where: str) -> AsyncIterator[Callable[[], float]]:
    """Ends its block after `timeout_s` with Unreachable; yields how many seconds are left for one request."""
    end_s = time.monotonic() + timeout_s
    try:
        async with asyncio.timeout(timeout_s):
            # Never 0: to the client that means no limit.
            yield lambda: max(end_s - time.monotonic(), 1e-3)
    except TimeoutError as error:
        raise Unreachable(f"{where}: no answer within {timeout_s:g} s") from error


def _location_problems(config: HeadwayConfig) -> list[str]:
    """The line that says that no object is named, if none is."""
    try:
        locate(config.connector.kubernetes, os.environ)
    except Refused as error:
        return [str(error)]
    return []


KUBERNETES = ConnectorKind(make=KubernetesConnector, problems=_location_problems)
