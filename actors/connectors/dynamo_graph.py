"""A Dynamo graph deployment (`nvidia.com/v1alpha1`): services by role, their counts, whether it is whole.

Shape: `spec.services.NAME.{componentType, subComponentType, replicas, extraPodSpec.mainContainer}`, and in
the status `conditions[Ready]` and `services.NAME.{replicas, readyReplicas, availableReplicas}`. A service
belongs to a role, first rule that fits:

    prefill, decode    subComponentType is the role; else componentType is it (as the operator writes when it
                       converts from v1beta1); else a legacy name without subComponentType (table below)
    mixed              the one service of componentType `worker`

The table holds the names that Dynamo's planner knew per backend before services carried a subComponentType.
Source: ai-dynamo/dynamo, `dynamo/planner/defaults.py` over its history (`WORKER_COMPONENT_NAMES`), and the
planner design in seeds/001: vLLM `VllmPrefillWorker`; TensorRT-LLM `TRTLLMPrefillWorker`, later `prefill`;
SGLang `SGLangPrefillWorker`, later `prefill`; the mocker `prefill`; decode alike.

Scaling adapters. Of a service with `scalingAdapter.enabled` the operator takes the count from the object
`DynamoGraphDeploymentScalingAdapter` named GRAPH-SERVICE (in lower case), lets nobody change it in the
graph, and copies it there. So the adapter's scale subresource is patched, and its `spec.replicas` is what was
asked for last; ready replicas are in the graph's status. Source: ai-dynamo/dynamo, the operator's v1alpha1
types and `generateAdapterName`.

Counts: desired is the spec's `replicas` (1 if absent, as Kubernetes does). Ready is `availableReplicas` if
the status has it, else `readyReplicas` (which of the two exists depends on what the operator made of the
service), at most desired; from an operator so old that its status knows no services, it is desired once the
Ready condition holds, else 0. Starting is what desired lacks. Draining is how many live replicas exceed
desired: those whose pods end already are no longer in the status, so draining is a lower bound, and a surge
of a rolling update counts into it.

Model: `args` and `command` of the main container are lists whose items may each be one word or a piece of
shell (`["-c", "python -m dynamo.vllm --model M"]`). `MODEL_FLAGS` are those of Dynamo's workers (vLLM,
SGLang, TensorRT-LLM) and of its mocker in order of precedence: the name that requests carry comes before the
name or path that the weights are loaded from.
"""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from actors.connectors.kube_api import Manifest, condition, mapping, number
from actors.connectors.protocol import PoolCounts, Refused
from headway.planning import Role

LEGACY_NAMES: Mapping[Role, tuple[str, ...]] = {
    Role.PREFILL: ("VllmPrefillWorker", "TRTLLMPrefillWorker", "SGLangPrefillWorker", "prefill"),
    Role.DECODE: ("VllmDecodeWorker", "TRTLLMDecodeWorker", "SGLangDecodeWorker", "decode"),
}
FRONTEND = "frontend"
WORKER = "worker"
MODEL_FLAGS = ("--served-model-name", "--model-name", "--model", "--model-path")


class DynamoGraph:
    """Reads and patches graph deployments that should serve `model` with pools of these roles."""

    def __init__(self, roles: Sequence[Role], model: str) -> None:
        self._roles = tuple(roles)
        self._model = model

    def counts(self, manifest: Manifest) -> Mapping[Role, PoolCounts]:
        """The pools; Refused if a role has no service or several."""
        return {role: _counts(manifest, name) for role, name in self._services(manifest, self._roles).items()}

    def patch(self, manifest: Manifest, targets: Mapping[Role, int]) -> dict[str, Any] | None:
        """Replica counts only, both roles in one patch; None if they are set."""
        names = self._services(manifest, tuple(targets))
        changed = {
            names[role]: {"replicas": count}
            for role, count in targets.items()
            if _desired(manifest, names[role]) != count
        }
        return {"services": changed} if changed else None

    def adapters(self, manifest: Manifest) -> Mapping[Role, str]:
        """The names of the scaling adapters, of services that have one enabled."""
        graph = mapping(manifest.get("metadata")).get("name")
        return {
            role: f"{graph}-{name.lower()}"
            for role, name in self._services(manifest, self._roles).items()
            if _adapted(manifest, name)
        }

    def places(self, manifest: Manifest) -> Mapping[Role, tuple[str, ...]]:
        """The fields that hold the counts."""
        services = self._services(manifest, self._roles)
        return {role: ("spec", "services", name, "replicas") for role, name in services.items()}

    def problems(self, manifest: Manifest) -> list[str]:
        """Missing or duplicate services, other models, services without a ready replica."""
        problems = []
        for role in self._roles:
            try:
                _one(role, manifest)
            except Refused as error:
                problems.append(str(error))
        return [*problems, *self._model_problems(manifest)] or self._readiness_problems(manifest)

    def _services(self, manifest: Manifest, roles: Sequence[Role]) -> dict[Role, str]:
        return {role: _one(role, manifest) for role in roles}

    def _model_problems(self, manifest: Manifest) -> list[str]:
        """Names are compared without case: Dynamo's metrics carry them in lower case."""
        services = _all_services(manifest)
        found = {
            name: model
            for role in self._roles
            for name in _candidates(role, services)
            if (model := served_model(services[name])) is not None
        }
        if len({model.lower() for model in found.values()}) > 1:
            each = ", ".join(f"{name} {model!r}" for name, model in found.items())
            return [f"services serve different models: {each}"]
        return [
            f"service {name!r} serves model {model!r}, but the settings name {self._model!r}"
            for name, model in found.items()
            if model.lower() != self._model.lower()
        ]

    def _readiness_problems(self, manifest: Manifest) -> list[str]:
        """Ready, or at least one replica of each pool and of the front end.

        The Ready condition is false while any service scales; waiting for it would stop the planner.
        """
        if _is_ready(manifest):
            return []
        services = _all_services(manifest)
        fronts = [name for name, service in services.items() if service.get("componentType") == FRONTEND]
        waiting = [
            name
            for name in (*self._services(manifest, self._roles).values(), *fronts)
            if _desired(manifest, name) > 0 and _counts(manifest, name).ready == 0
        ]
        if not waiting:
            return []
        ready = condition(manifest, "Ready")
        said = f": {ready['message']}" if ready and ready.get("message") else ""
        return [f"no ready replica of {', '.join(map(repr, waiting))} yet{said}"]


def _all_services(manifest: Manifest) -> dict[str, Mapping[str, Any]]:
    services = mapping(mapping(manifest.get("spec")).get("services"))
    return {str(name): mapping(service) for name, service in services.items()}


def _candidates(role: Role, services: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The services of a role, by the first rule that finds any."""
    if role is Role.MIXED:
        return [name for name, service in services.items() if service.get("componentType") == WORKER]
    rules = (
        [name for name, service in services.items() if service.get("subComponentType") == role.value],
        [name for name, service in services.items() if service.get("componentType") == role.value],
        [
            name
            for name in LEGACY_NAMES[role]
            if name in services and not services[name].get("subComponentType")
        ],
    )
    return next((found for found in rules if found), [])


def _one(role: Role, manifest: Manifest) -> str:
    services = _all_services(manifest)
    found = _candidates(role, services)
    if len(found) == 1:
        return found[0]
    if found:
        raise Refused(f"spec.services: {' and '.join(map(repr, found))} are all {role.value}; one is needed")
    there = ", ".join(map(repr, services)) or "none"
    if role is Role.MIXED:
        raise Refused(f"spec.services: no service with componentType {WORKER}; there are {there}")
    legacy = ", ".join(LEGACY_NAMES[role])
    raise Refused(
        f"spec.services: no service with subComponentType {role.value}, nor one named {legacy}; "
        f"there are {there}"
    )


def _adapted(manifest: Manifest, name: str) -> bool:
    """With its scaling adapter enabled, the operator takes a service's count from the adapter alone."""
    return mapping(_all_services(manifest)[name].get("scalingAdapter")).get("enabled") is True


def _is_ready(manifest: Manifest) -> bool:
    ready = condition(manifest, "Ready")
    return ready is not None and ready.get("status") == "True"


def _desired(manifest: Manifest, name: str) -> int:
    replicas = _all_services(manifest)[name].get("replicas")
    return replicas if isinstance(replicas, int) else 1


def _counts(manifest: Manifest, name: str) -> PoolCounts:
    statuses = mapping(manifest.get("status")).get("services")
    status = mapping(mapping(statuses).get(name))
    desired = _desired(manifest, name)
    unsaid = desired if statuses is None and _is_ready(manifest) else 0
    answering = number(status.get("availableReplicas"), number(status.get("readyReplicas"), unsaid))
    ready = min(answering, desired)
    live = max(number(status.get("replicas"), answering), answering)
    return PoolCounts(desired=desired, starting=desired - ready, ready=ready, draining=max(0, live - desired))


def served_model(service: Mapping[str, Any]) -> str | None:
    """The model's name in the command line of the engine's container; None if it gives none or a variable."""
    return flagged_model(command_words(mapping(mapping(service.get("extraPodSpec")).get("mainContainer"))))


def command_words(container: Mapping[str, Any]) -> list[str]:
    """The words of a container's command line."""
    return [*_words(container.get("command")), *_words(container.get("args"))]


def flagged_model(words: Sequence[str]) -> str | None:
    """The value of the first of `MODEL_FLAGS` that a command line has; None if it has none or a variable."""
    for flag in MODEL_FLAGS:
        for position, word in enumerate(words):
            name = word.removeprefix(f"{flag}=") if word.startswith(f"{flag}=") else None
            if word == flag and position + 1 < len(words):
                name = words[position + 1]
            if name and not name.startswith("$"):
                return name
    return None


def _words(value: object) -> Iterator[str]:
    for item in [value] if isinstance(value, str) else value if isinstance(value, list) else []:
        try:
            yield from shlex.split(str(item))
        except ValueError:
            # A script with an unbalanced quote is the shell's to judge; whitespace still separates the flags.
            yield from str(item).split()
