"""One object with a scale subresource, which is one pool: a Deployment, a StatefulSet, a LeaderWorkerSet, or
an object of any custom resource that has one.

Counts: desired is `spec.replicas` (1 if absent, as Kubernetes does). Ready is `status.readyReplicas`, at most
desired; the API leaves it out at 0. A LeaderWorkerSet counts groups there, each a leader and its workers.
A resource that has never shown the field tells only how many replicas exist (`status.replicas`): those are
taken for ready. Starting is what desired lacks. Draining is `status.terminatingReplicas`, where the server
tells it, and the live replicas above desired: elsewhere pods that end already are no longer in the status, so
it is a lower bound, and the surge of a rolling update counts into it.

An object that another one owns as its controller gets its count from there: it is refused, with the owner.

Model: the flags of the engines' command lines (`dynamo_graph.MODEL_FLAGS`), or the word after `serve`, in
any container of the pod template. Where none is found, or it is a path, nothing is compared.
"""

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

from actors.connectors.dynamo_graph import command_words, flagged_model
from actors.connectors.kube_api import OWN_SCALING, Manifest, condition, mapping, number
from actors.connectors.protocol import PoolCounts, Refused
from headway.planning import Role

REPLICAS = ("spec", "replicas")
TEMPLATES = (
    ("template",),
    ("leaderWorkerTemplate", "leaderTemplate"),
    ("leaderWorkerTemplate", "workerTemplate"),
)
"""Below `spec`: the pod templates of Deployments and StatefulSets, and of LeaderWorkerSets."""


class ScaledObject:
    """Reads one scaled object, and says how to patch its scale subresource."""

    def __init__(self, role: Role, model: str, *, tells_ready: bool) -> None:
        self._role = role
        self._model = model
        self._tells_ready = tells_ready

    def counts(self, manifest: Manifest) -> Mapping[Role, PoolCounts]:
        """The pool."""
        status = mapping(manifest.get("status"))
        self._tells_ready |= "readyReplicas" in status
        live, desired = number(status.get("replicas"), 0), self._desired(manifest)
        answering = number(status.get("readyReplicas"), 0) if self._tells_ready else live
        ready = min(answering, desired)
        ending = number(status.get("terminatingReplicas"), 0)
        counts = PoolCounts(
            desired=desired,
            starting=desired - ready,
            ready=ready,
            draining=max(0, max(live, answering) - desired) + ending,
        )
        return {self._role: counts}

    def patch(self, manifest: Manifest, targets: Mapping[Role, int]) -> dict[str, Any] | None:
        """The `spec` of the scale subresource; None if it is set. Refused for an object with an owner."""
        count = targets.get(self._role)
        if count is None or count == self._desired(manifest):
            return None
        if owned := _owner_problem(manifest):
            raise Refused(owned)
        return {"replicas": count}

    def problems(self, manifest: Manifest) -> list[str]:
        """An owner, another model, or no ready replica yet."""
        if owned := _owner_problem(manifest):
            return [owned]
        model = next(_models(manifest), None)
        if model is not None and model.lower() != self._model.lower():
            return [f"serves model {model!r}, but the settings name {self._model!r}"]
        counts = self.counts(manifest)[self._role]
        if counts.desired == 0 or counts.ready > 0:
            return []
        return [f"no ready replica yet{_reason(manifest)}"]

    def shortage(self, manifest: Manifest) -> str:
        """How many replicas are ready, where the conditions say why not all are; else empty."""
        counts, reason = self.counts(manifest)[self._role], _reason(manifest)
        return f"{counts.ready} of {counts.desired} ready{reason}" if counts.starting and reason else ""

    def adapters(self, manifest: Manifest) -> Mapping[Role, str]:
        """None: the object has its own scale subresource."""
        del manifest
        return {}

    def places(self, manifest: Manifest) -> Mapping[Role, tuple[str, ...]]:
        """The field that holds the count."""
        del manifest
        return {self._role: REPLICAS}

    def _desired(self, manifest: Manifest) -> int:
        return number(mapping(manifest.get("spec")).get("replicas"), 1)


def _owner_problem(manifest: Manifest) -> str:
    owners = mapping(manifest.get("metadata")).get("ownerReferences")
    for owner in owners if isinstance(owners, list) else []:
        if mapping(owner).get("controller") is True:
            kind = str(owner.get("kind"))
            way = OWN_SCALING.get(kind, "name that one")
            return f"belongs to {kind} {owner.get('name')}, which sets its count: {way}"
    return ""


def _reason(manifest: Manifest) -> str:
    """What the object's conditions say, worst first."""
    for kind, bad in (("ReplicaFailure", "True"), ("Progressing", "False"), ("Available", "False")):
        found = condition(manifest, kind)
        if found is not None and found.get("status") == bad and found.get("message"):
            return f": {found['message']}"
    return ""


def _models(manifest: Manifest) -> Iterator[str]:
    for path in TEMPLATES:
        node = mapping(manifest.get("spec"))
        for key in path:
            node = mapping(node.get(key))
        containers = mapping(node.get("spec")).get("containers")
        for container in containers if isinstance(containers, list) else []:
            words = command_words(mapping(container))
            model = flagged_model(words) or _served(words)
            if model is not None and not model.startswith(("/", ".", "$")):
                yield model


def _served(words: list[str]) -> str | None:
    """`vllm serve MODEL`; an image whose entry point is that has only the flags."""
    for word, following in pairwise(words):
        if word == "serve" and not following.startswith("-"):
            return following
    return None
