"""Scales pools through the Kubernetes API: a Dynamo graph deployment, a KubeRay RayService, or for each pool
one object with a scale subresource.

`set_targets` reads an object, computes a merge patch of the replica counts alone, and sends it with the
resourceVersion that was read. Controllers write these objects too (their status counts), so the server may
answer 409: then the object is read again and the patch computed anew, a few times. Nothing is sent where
nothing differs, so that calling every tick is cheap. Where pools have objects of their own, one that fails
does not keep the others from being set; its error is raised then. Each call ends within
`connector.timeout_s`, retries included.

The services of roles and the meaning of the counts stand in `dynamo_graph`, `ray_service`, `scaled_object`.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

from actors.connectors.dynamo_graph import DynamoGraph
from actors.connectors.kube_api import Conflict, KubeApi, Location, Manifest, mapping, number
from actors.connectors.kube_object import (
    DYNAMO_ADAPTER,
    SCALABLE,
    find,
    group_and_version,
    locate,
    namespace_of,
)
from actors.connectors.other_controllers import Claim, edited_by, scaled_by_others
from actors.connectors.protocol import (
    Action,
    ConnectorError,
    ConnectorKind,
    Editor,
    PoolCounts,
    Ready,
    Refused,
    Unreachable,
)
from actors.connectors.ray_service import RayServiceApplication
from actors.connectors.scaled_object import ScaledObject
from headway.config import HeadwayConfig
from headway.planning import Role

ATTEMPTS = 5
FIRST_PAUSE_S = 0.02
DEFAULT_APPLICATION = "headway"
LeftS = Callable[[], float]


class Target(Protocol):
    """Replica counts in one kind of object."""

    def counts(self, manifest: Manifest) -> Mapping[Role, PoolCounts]:
        """The pools by spec and status; Refused where the structure is wrong."""

    def patch(self, manifest: Manifest, targets: Mapping[Role, int]) -> dict[str, Any] | None:
        """The `spec` of a merge patch that sets these counts; None if they are set. Refused as above."""

    def problems(self, manifest: Manifest) -> list[str]:
        """Reasons why the object is not ready to be scaled, each with its place; empty if it is."""

    def adapters(self, manifest: Manifest) -> Mapping[Role, str]:
        """Roles whose count is set through a scaling adapter, and its name."""

    def places(self, manifest: Manifest) -> Mapping[Role, tuple[str, ...]]:
        """The field of each role's count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One object and how it is understood. `indirect`: its count shows in its scale subresource alone."""

    place: Location
    target: Target
    scale: bool = False
    indirect: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A part and its adapters as they were read."""

    part: Part
    manifest: Manifest
    adapters: Mapping[Role, tuple[Location, Manifest]] = field(default_factory=dict)

    def counts(self) -> dict[Role, PoolCounts]:
        """The pools; where there is an adapter, its count is the desired one."""
        counts = dict(self.part.target.counts(self.manifest))
        for role, (_, adapter) in self.adapters.items():
            before = counts[role]
            desired = number(mapping(adapter.get("spec")).get("replicas"), before.desired)
            live = before.ready + before.draining
            ready = min(live, desired)
            counts[role] = replace(
                before,
                desired=desired,
                starting=desired - ready,
                ready=ready,
                draining=max(0, live - desired),
            )
        return counts


class KubernetesConnector:
    """Carries targets to the objects. Making it does no I/O: faults show in its calls."""

    def __init__(
        self, config: HeadwayConfig, application: str = DEFAULT_APPLICATION, token: str | None = None
    ) -> None:
        self._settings = config.connector.kubernetes
        self._timeout_s = config.connector.timeout_s
        self._roles = tuple(Role(name) for name in config.pools)
        self._model = config.model
        self._application = application
        self._api = KubeApi(self._settings.api_url, token)
        self._found: Sequence[Part] = ()
        self._claim = Claim(self._api, application)

    async def set_targets(self, targets: Mapping[Role, int], reasons: Mapping[str, Any]) -> Action:
        """Patch the counts that differ. The reasons stay in the planner's log."""
        for role, count in targets.items():
            if role not in self._roles:
                raise Refused(f"no pool {role.value}: the settings have {', '.join(self._roles)}")
            if count < 0:
                raise Refused(f"{role.value}: {count} replicas")
        async with self._within() as left_s:
            parts = await self._parts(left_s)
            done = await asyncio.gather(
                *(self._patched(part, targets, left_s) for part in parts), return_exceptions=True
            )
        for failed in done:
            if isinstance(failed, BaseException):
                raise failed
        return _together([action for action in done if isinstance(action, Action)])

    async def state(self) -> Mapping[Role, PoolCounts]:
        """The pools now."""
        async with self._within() as left_s:
            seen = await self._seen(left_s)
        counts: dict[Role, PoolCounts] = {}
        for one in seen:
            with _naming(one.part.place):
                counts |= one.counts()
        return {role: counts[role] for role in self._roles}

    async def ready(self) -> Ready:
        """Ready if the objects exist, are whole, serve the model and have their first replicas.

        The reason then holds what Deployments say of replicas that do not come up.
        """
        reasons, short = [], []
        try:
            async with self._within() as left_s:
                for part in await self._parts(left_s):
                    manifest = await self._read(part, left_s)
                    if problems := part.target.problems(manifest):
                        reasons.append(f"{part.place}: {'; '.join(problems)}")
                    else:
                        await self._adapters(part, manifest, left_s)
                    if isinstance(part.target, ScaledObject) and (said := part.target.shortage(manifest)):
                        short.append(f"{part.place}: {said}")
        except ConnectorError as error:
            return Ready(ok=False, reason=str(error))
        return Ready(ok=not reasons, reason="; ".join(reasons or short))

    async def editors(self, since_s: float) -> Mapping[Role, Editor]:
        """Others that wrote a count since then, by the server's record of fields and their managers."""
        async with self._within() as left_s:
            seen = await self._seen(left_s)
        found: dict[Role, Editor] = {}
        for one in seen:
            for role, place in one.part.target.places(one.manifest).items():
                adapter = one.adapters.get(role)
                manifest, path = (adapter[1], ("spec", "replicas")) if adapter else (one.manifest, place)
                if editor := edited_by(manifest, path, since_s):
                    found[role] = editor
        return found

    async def rivals(self, *, claim: bool) -> Sequence[str]:
        """Autoscalers that name one of the objects, and other control planes that hold its Lease."""
        async with self._within() as left_s:
            seen = await self._seen(left_s)
            places = [one.part.place for one in seen]
            places += [adapter for one in seen for adapter, _ in one.adapters.values()]
            return [
                *await scaled_by_others(self._api, places, left_s),
                *await self._claim.rivals(places, left_s, take=claim),
            ]

    async def _read(self, part: Part, left_s: LeftS) -> Manifest:
        """The object now, with `spec.replicas` and `status.replicas` where its count is elsewhere."""
        if not part.indirect:
            return await self._api.one("GET", part.place, timeout_s=left_s())
        manifest, scale = await asyncio.gather(
            self._api.one("GET", part.place, timeout_s=left_s()),
            self._api.one("GET", part.place, timeout_s=left_s(), scale=True),
        )
        shown = {
            key: {
                **mapping(manifest.get(key)),
                "replicas": number(mapping(scale.get(key)).get("replicas"), 0),
            }
            for key in ("spec", "status")
        }
        return {**manifest, **shown}

    async def _seen(self, left_s: LeftS) -> list[Seen]:
        return await asyncio.gather(*(self._see(part, left_s) for part in await self._parts(left_s)))

    async def _see(self, part: Part, left_s: LeftS) -> Seen:
        manifest = await self._read(part, left_s)
        return Seen(part=part, manifest=manifest, adapters=await self._adapters(part, manifest, left_s))

    async def _adapters(
        self, part: Part, manifest: Manifest, left_s: LeftS
    ) -> dict[Role, tuple[Location, Manifest]]:
        with _naming(part.place):
            named = part.target.adapters(manifest)
        namespace = part.place.namespace
        places = [
            Location(resource=DYNAMO_ADAPTER, namespace=namespace, name=name) for name in named.values()
        ]
        read = await asyncio.gather(*(self._api.one("GET", each, timeout_s=left_s()) for each in places))
        return dict(zip(named, zip(places, read, strict=True), strict=True))

    async def _patched(self, part: Part, targets: Mapping[Role, int], left_s: LeftS) -> Action:
        where = str(part.place)
        for attempt in range(ATTEMPTS):
            seen = await self._see(part, left_s)
            try:
                versions = await self._send(seen, targets, left_s)
            except Conflict:
                await asyncio.sleep(FIRST_PAUSE_S * 2**attempt)
                continue
            if not versions:
                return Action(status="unchanged", detail={"object": where})
            with _naming(part.place):
                roles = part.target.places(seen.manifest)
            replicas = {role.value: count for role, count in targets.items() if role in roles}
            version = ", ".join(versions)
            detail = {"object": where, "replicas": replicas, "resource_version": version}
            return Action(status="sent", detail=detail)
        raise Unreachable(f"{where}: changed by others during each of {ATTEMPTS} attempts")

    async def _send(self, seen: Seen, targets: Mapping[Role, int], left_s: LeftS) -> list[str]:
        """Patch the object and its adapters as far as they differ; the new resource versions."""
        part, versions = seen.part, []
        with _naming(part.place):
            own = {role: count for role, count in targets.items() if role not in seen.adapters}
            spec = part.target.patch(seen.manifest, own)
        if spec is not None:
            versions.append(await self._merge(part.place, seen.manifest, spec, left_s, scale=part.scale))
        for role, (adapter, manifest) in seen.adapters.items():
            count = targets.get(role)
            if count is not None and mapping(manifest.get("spec")).get("replicas") != count:
                versions.append(await self._merge(adapter, manifest, {"replicas": count}, left_s, scale=True))
        return versions

    async def _merge(
        self, place: Location, manifest: Manifest, spec: Mapping[str, Any], left_s: LeftS, *, scale: bool
    ) -> str:
        """Merge `spec` into the object; its new resource version. Conflict if it is not the one read."""
        version = mapping(manifest.get("metadata")).get("resourceVersion")
        body = {"metadata": {"resourceVersion": version}, "spec": spec}
        answer = await self._api.one("PATCH", place, timeout_s=left_s(), scale=scale, body=body)
        return str(mapping(answer.get("metadata")).get("resourceVersion", ""))

    async def _parts(self, left_s: LeftS) -> Sequence[Part]:
        """The objects, looked for until they are found once."""
        if not self._found:
            if self._settings.target == "scale":
                self._found = [await self._scaled(role, left_s) for role in self._roles]
            else:
                location = locate(self._settings, os.environ)
                target: Target = (
                    DynamoGraph(self._roles, self._model)
                    if self._settings.target == "dynamo"
                    else RayServiceApplication(self._roles, self._model, self._application)
                )
                self._found = [Part(place=location, target=target)]
        return self._found

    async def _scaled(self, role: Role, left_s: LeftS) -> Part:
        named, place = self._settings.objects.get(role.value), f"connector.kubernetes.objects.{role.value}"
        if named is None:
            raise Refused(f"{place}: needed with target scale")
        try:
            location, indirect = await find(
                named, namespace_of(self._settings, os.environ), self._api, left_s()
            )
        except Refused as error:
            raise Refused(f"{place}: {error}") from error
        target = ScaledObject(role, self._model, tells_ready=location.resource.kind in SCALABLE)
        return Part(place=location, target=target, scale=True, indirect=indirect)

    def _where(self) -> str:
        if self._settings.target == "scale":
            return ", ".join(f"{one.kind} {one.name}" for one in self._settings.objects.values())
        return str(locate(self._settings, os.environ))

    @asynccontextmanager
    async def _within(self) -> AsyncIterator[LeftS]:
        """Ends its block after the timeout with Unreachable; yields how many seconds one request may take."""
        where, end_s = self._where(), time.monotonic() + self._timeout_s
        try:
            async with asyncio.timeout(self._timeout_s):
                # Never 0: to the client that means no limit.
                yield lambda: max(end_s - time.monotonic(), 1e-3)
        except TimeoutError as error:
            raise Unreachable(f"{where}: no answer within {self._timeout_s:g} s") from error


def _together(actions: Sequence[Action]) -> Action:
    """One answer for all objects."""
    if len(actions) == 1:
        return actions[0]
    sent = [action for action in actions if action.status == "sent"]
    status: Literal["sent", "unchanged"] = "sent" if sent else "unchanged"
    detail: dict[str, Any] = {"object": ", ".join(action.detail["object"] for action in sent or actions)}
    if sent:
        detail["replicas"] = {k: v for action in sent for k, v in action.detail["replicas"].items()}
        detail["resource_version"] = ", ".join(action.detail["resource_version"] for action in sent)
    return Action(status=status, detail=detail)


@contextmanager
def _naming(where: Location) -> Iterator[None]:
    """Puts the object in front of a refusal."""
    try:
        yield
    except Refused as error:
        raise Refused(f"{where}: {error}") from error


def _problems(config: HeadwayConfig) -> list[str]:
    """Gaps in the names of objects, a line each."""
    settings, at = config.connector.kubernetes, "connector.kubernetes.objects"
    if settings.target != "scale":
        try:
            locate(settings, os.environ)
        except Refused as error:
            return [str(error)]
        return [f"{at}: only read with target scale, but target is {settings.target}"] * bool(
            settings.objects
        )
    problems = [
        f"{at}.{role}: needed with target scale" for role in config.pools if role not in settings.objects
    ]
    problems += [
        f"{at}.{role}: there is no pool {role}" for role in settings.objects if role not in config.pools
    ]
    taken: dict[tuple[object, ...], str] = {}
    for role, named in settings.objects.items():
        try:
            group = group_and_version(named)[0]
        except Refused as error:
            problems.append(f"{at}.{role}.{error}")
            continue
        other = taken.setdefault((group, named.kind, named.namespace, named.name), role)
        if other != role:
            problems.append(
                f"{at}.{role}: {named.kind} {named.name} is {other}'s already; each pool has its own"
            )
    return problems


KUBERNETES = ConnectorKind(make=KubernetesConnector, problems=_problems)
