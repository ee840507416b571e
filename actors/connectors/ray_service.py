"""A KubeRay RayService (`ray.io/v1`): replica counts live in the text of `spec.serveConfigV2`.

KubeRay puts a changed config to Ray's dashboard; Serve then takes the counts from it, and resets any
deployment without `num_replicas` to its code's default. So every pool must be listed with a number. The
text is replaced as a whole: only the object's resourceVersion keeps two writers from undoing each other.

Counts: desired is the number in the config. The status has no replica counts, only a state per deployment
(`status.activeServiceStatus.applicationStatuses.APP.serveDeploymentStatuses.NAME.status`), so:

    HEALTHY, and the operator has seen the newest spec    ready = desired
    anything else                                         ready = the smaller of desired and the last count
                                                          that was seen settled (0 before any was)

Starting is the difference to desired; draining cannot be derived and is 0. With external scaling Serve stays
HEALTHY while replicas start, so right after a change these counts run ahead; a planner in the same Ray
cluster that uses the ray_serve connector sees the true ones. Use one of the two connectors, not both: each
would undo the other.

A changed config is written from its parsed form: without the comments of the text, which the manifest that it
came from still has.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from actors.connectors.kube_api import Manifest, condition, mapping
from actors.connectors.protocol import DEPLOYMENTS, PoolCounts, Refused
from headway.planning import Role

HEALTHY = "HEALTHY"
RUNNING = "RUNNING"
COUNT = "num_replicas"


class RayServiceApplication:
    """Reads and patches RayServices that run the application `application` with pools of these roles."""

    def __init__(self, roles: Sequence[Role], model: str, application: str) -> None:
        self._roles = tuple(roles)
        self._model = model
        self._application = application
        self._settled: dict[Role, int] = {}

    def counts(self, manifest: Manifest) -> Mapping[Role, PoolCounts]:
        """The pools; Refused if the config lacks the application, a deployment or its number."""
        self._note_settled(manifest)
        pools = {}
        for role in self._roles:
            desired = self._desired(manifest, role)
            ready = min(desired, self._settled.get(role, 0))
            pools[role] = PoolCounts(desired=desired, starting=desired - ready, ready=ready, draining=0)
        return pools

    def patch(self, manifest: Manifest, targets: Mapping[Role, int]) -> dict[str, Any] | None:
        """The whole config with other numbers; None if they are set."""
        self._note_settled(manifest)
        # Of all pools, not only those in the targets: one without a number would be reset by the config.
        desired = {role: self._desired(manifest, role) for role in self._roles}
        changed = {DEPLOYMENTS[role]: count for role, count in targets.items() if desired[role] != count}
        if not changed:
            return None
        text = mapping(manifest.get("spec"))["serveConfigV2"]
        return {"serveConfigV2": with_counts(text, self._application, changed)}

    def problems(self, manifest: Manifest) -> list[str]:
        """Gaps in the config, another model, or an application that does not run yet."""
        problems = []
        for role in self._roles:
            try:
                self._desired(manifest, role)
            except Refused as error:
                problems.append(str(error))
        return (
            list(dict.fromkeys(problems)) or self._model_problems(manifest) or self._status_problems(manifest)
        )

    def _note_settled(self, manifest: Manifest) -> None:
        generation = mapping(manifest.get("metadata")).get("generation")
        observed = mapping(manifest.get("status")).get("observedGeneration")
        # A status of an older spec says nothing of this one; some have no generations to tell.
        if isinstance(generation, int) and isinstance(observed, int) and observed < generation:
            return
        statuses = mapping(_application_status(manifest, self._application).get("serveDeploymentStatuses"))
        for role in self._roles:
            healthy = mapping(statuses.get(DEPLOYMENTS[role])).get("status") == HEALTHY
            if healthy:
                self._settled[role] = self._desired(manifest, role)

    def _app(self, manifest: Manifest) -> Mapping[str, Any]:
        config = read_config(mapping(manifest.get("spec")).get("serveConfigV2"))
        found = applications(config)
        if self._application not in found:
            there = ", ".join(map(repr, found)) or "none"
            raise Refused(
                f"spec.serveConfigV2: no application named {self._application!r}; there are {there}"
            )
        return found[self._application]

    def _desired(self, manifest: Manifest, role: Role) -> int:
        name = DEPLOYMENTS[role]
        found = deployments(self._app(manifest))
        where = f"spec.serveConfigV2: application {self._application!r}, deployment {name!r}"
        if name not in found:
            there = ", ".join(map(repr, found)) or "none"
            raise Refused(f"{where}: not listed; there are {there}. List it with {COUNT}")
        count = found[name].get(COUNT)
        if isinstance(count, bool) or not isinstance(count, int):
            raise Refused(f"{where}: {COUNT} should be a number, not {count!r}")
        return count

    def adapters(self, manifest: Manifest) -> Mapping[Role, str]:
        """None: counts are in the config."""
        del manifest
        return {}

    def places(self, manifest: Manifest) -> Mapping[Role, tuple[str, ...]]:
        """The config, of all pools."""
        del manifest
        return dict.fromkeys(self._roles, ("spec", "serveConfigV2"))

    def _model_problems(self, manifest: Manifest) -> list[str]:
        """The settings may be inside the config (`args`), or in a file that is not seen from here."""
        model = mapping(self._app(manifest).get("args")).get("model")
        if model is None or model == self._model:
            return []
        return [
            f"spec.serveConfigV2: application {self._application!r} serves model {model!r}, "
            f"but the settings name {self._model!r}"
        ]

    def _status_problems(self, manifest: Manifest) -> list[str]:
        ready = condition(manifest, "Ready")
        service = mapping(manifest.get("status")).get("serviceStatus")
        if ready is not None and ready.get("status") != "True":
            said = ready.get("message") or ready.get("reason") or "no reason given"
            return [f"the RayService is not ready: {said}"]
        if ready is None and service != "Running":
            return [f"the RayService is not running: serviceStatus is {service or 'not set'}"]
        status = _application_status(manifest, self._application)
        if status.get("status") != RUNNING:
            said = f": {status['message']}" if status.get("message") else ""
            return [f"application {self._application!r} is {status.get('status') or 'not reported'}{said}"]
        return []


def _application_status(manifest: Manifest, application: str) -> Mapping[str, Any]:
    active = mapping(mapping(manifest.get("status")).get("activeServiceStatus"))
    return mapping(mapping(active.get("applicationStatuses")).get(application))


def read_config(text: object) -> Mapping[str, Any]:
    """The parsed config; Refused if it is no YAML mapping."""
    if not isinstance(text, str):
        raise Refused("spec.serveConfigV2: missing, or no text")
    try:
        config = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise Refused(f"spec.serveConfigV2: no valid YAML: {error}") from error
    if not isinstance(config, Mapping):
        raise Refused("spec.serveConfigV2: should be a mapping with the key applications")
    return config


def applications(config: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The applications by name."""
    return {
        str(mapping(item).get("name", "default")): mapping(item)
        for item in _items(config.get("applications"))
    }


def deployments(application: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The deployments of an application by name."""
    return {str(mapping(item).get("name")): mapping(item) for item in _items(application.get("deployments"))}


def with_counts(text: str, application: str, counts: Mapping[str, int]) -> str:
    """The config with `num_replicas` of these deployments set. They must be listed in it."""
    config = read_config(text)

    def counted(deployment: Mapping[str, Any]) -> Mapping[str, Any]:
        name = str(deployment.get("name"))
        return {**deployment, COUNT: counts[name]} if name in counts else deployment

    changed = [
        {**each, "deployments": [counted(one) for one in _items(each.get("deployments"))]}
        if each.get("name", "default") == application
        else each
        for each in _items(config.get("applications"))
    ]
    return yaml.safe_dump({**config, "applications": changed}, sort_keys=False)


def _items(value: object) -> list[Any]:
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []
