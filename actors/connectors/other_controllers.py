"""Others that control the counts of our Kubernetes objects: who edited one, autoscalers, other Headways.

Editors. `metadata.managedFields` has the manager that wrote each field last, and when. Ours is `headway`.
Servers before 1.22 do not note writes through the scale subresource there: an entry that is older than what
we wrote ourselves says nothing of a later edit, and is not named.

Autoscalers. A HorizontalPodAutoscaler or a KEDA ScaledObject whose scaleTargetRef names one of the objects.
They are listed where the service account may do so and the resource is there, else passed over.

Other Headways. Who sets the counts of an object keeps a Lease (`coordination.k8s.io/v1`) in its namespace,
`headway-KIND-NAME` in lower case, and renews it: a holder whose Lease is younger than `LEASE_S` and who is
somebody else controls the object. Two that ask at once are told apart by the Lease's resourceVersion. Without
the right to Leases nothing is kept; it is tried again after `FORBIDDEN_S`.
"""

import asyncio
import logging
import socket
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from actors.connectors.kube_api import (
    FIELD_MANAGER,
    Conflict,
    Forbidden,
    KubeApi,
    Location,
    Manifest,
    Missing,
    Resource,
    mapping,
    number,
)
from actors.connectors.protocol import Editor
from actors.store import InternalKvStore
from actors.stored import Kind, put, read

LeftS = Callable[[], float]
LEASE = Resource(group="coordination.k8s.io", version="v1", plural="leases", kind="Lease")
AUTOSCALERS = (
    # Version 1 has the scaleTargetRef too, and is on every server.
    Resource(
        group="autoscaling", version="v1", plural="horizontalpodautoscalers", kind="HorizontalPodAutoscaler"
    ),
    Resource(group="keda.sh", version="v1alpha1", plural="scaledobjects", kind="ScaledObject"),
)
IDENTITY = "connector/identity"
NAMED = Kind("identity", str)
LEASE_S = 60
FORBIDDEN_S = 300.0
"""Until Leases are tried again after a refusal: a server that has just started reads its roles first."""
CLOCKS_S = 2.0
"""By how much the clocks of server and planner may differ; the server's times are whole seconds."""

logger = logging.getLogger(__name__)


def edited_by(manifest: Manifest, path: Sequence[str], since_s: float) -> Editor | None:
    """The manager other than us that wrote a field since then; None where none shows."""
    entries = mapping(manifest.get("metadata")).get("managedFields")
    newest: Editor | None = None
    for entry in entries if isinstance(entries, list) else []:
        at_s, manager = _unix(mapping(entry).get("time")), str(entry.get("manager") or "")
        if at_s is None or at_s < since_s - CLOCKS_S or manager == FIELD_MANAGER:
            continue
        if not _holds(entry.get("fieldsV1"), path):
            continue
        if newest is None or at_s > (newest.at_s or 0.0):
            newest = Editor(by=manager, at_s=at_s)
    return newest


def _holds(fields: object, path: Sequence[str]) -> bool:
    node = mapping(fields)
    for key in path:
        if f"f:{key}" not in node:
            return False
        node = mapping(node[f"f:{key}"])
    return True


async def scaled_by_others(api: KubeApi, places: Sequence[Location], left_s: LeftS) -> list[str]:
    """A line for each autoscaler of one of the objects."""
    ours = {(place.namespace, place.resource.kind, place.name): place for place in places}
    lines = []
    for resource in AUTOSCALERS:
        for namespace in sorted({place.namespace for place in places}):
            try:
                found = await api.items(resource, namespace, left_s())
            except (Forbidden, Missing):
                continue
            for item in found:
                target = mapping(mapping(item.get("spec")).get("scaleTargetRef"))
                place = ours.get((namespace, str(target.get("kind", "Deployment")), str(target.get("name"))))
                if place is not None:
                    name = mapping(item.get("metadata")).get("name")
                    lines.append(
                        f"{resource.kind} {namespace}/{name} scales {place} too: delete it, or let it scale "
                        "and run Headway with planner.dry_run"
                    )
    return lines


class Claim:
    """Leases on the objects that this control plane sets."""

    def __init__(self, api: KubeApi, application: str) -> None:
        self._api = api
        self._application = application
        self._again_s = float("-inf")
        self._identity = ""

    async def rivals(self, places: Sequence[Location], left_s: LeftS, *, take: bool) -> list[str]:
        """A line for each object that another control plane holds; the others are held by us, with `take`."""
        lines = []
        self._identity = self._identity or await asyncio.to_thread(identity, self._application)
        for place in places:
            if time.monotonic() < self._again_s:
                break
            try:
                held = await self._held(place, left_s, take=take)
            except (Forbidden, Missing) as error:
                self._again_s = time.monotonic() + FORBIDDEN_S
                logger.info("no Lease is kept on %s: %s", place, error)
                break
            if held:
                lines.append(held)
        return lines

    async def _held(self, place: Location, left_s: LeftS, *, take: bool) -> str:
        name = f"headway-{place.resource.kind}-{place.name}".lower()
        kept = Location(resource=LEASE, namespace=place.namespace, name=name)
        own, now = self._identity, datetime.now(UTC)
        spec = {
            "holderIdentity": own,
            "renewTime": now.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "leaseDurationSeconds": LEASE_S,
        }
        try:
            lease = await self._api.one("GET", kept, timeout_s=left_s())
        except Missing:
            if take:
                body = {
                    "apiVersion": "coordination.k8s.io/v1",
                    "kind": "Lease",
                    "metadata": {"name": name},
                    "spec": spec,
                }
                await self._write("POST", kept, body, left_s)
            return ""
        given = mapping(lease.get("spec"))
        holder, renewed_s = str(given.get("holderIdentity") or ""), _unix(given.get("renewTime")) or 0.0
        age_s = now.timestamp() - renewed_s
        if holder not in ("", own) and age_s < number(given.get("leaseDurationSeconds"), LEASE_S):
            return f"another Headway ({holder}) scales {place}: Lease {name} was renewed {age_s:.0f} s ago"
        if take:
            version = mapping(lease.get("metadata")).get("resourceVersion")
            body = {"metadata": {"resourceVersion": version}, "spec": spec}
            await self._write("PATCH", kept, body, left_s)
        return ""

    async def _write(self, method: str, lease: Location, body: Mapping[str, Any], left_s: LeftS) -> None:
        try:
            await self._api.one(method, lease, timeout_s=left_s(), body=body)
        except Conflict:
            # Somebody was faster; the next look shows who.
            logger.info("the Lease %s changed while it was being written", lease.name)


def identity(application: str) -> str:
    """The control plane's name, kept in its cluster's store so that it outlives every actor."""
    import ray

    made = f"{application} started on {socket.gethostname()} ({uuid.uuid4().hex[:8]})"
    if not ray.is_initialized():
        return made
    store = InternalKvStore()
    if (kept := read(store, NAMED, IDENTITY, str)) is not None:
        return kept
    put(store, NAMED, IDENTITY, made)
    return made


def _unix(text: object) -> float | None:
    if not isinstance(text, str):
        return None
    try:
        return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
    except ValueError:
        return None
