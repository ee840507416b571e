"""A file of a fleet: settings that all its deployments have in common, and what each has of its own.

    fleet: {gpus: 28}                                  # or by GPU type: {H100: 20, L20: 8}
    gateway: {port: 8000}
    slo: {ttft_ms: 500}
    deployments:
      chat: {model: llama-3.1-8b, share: {priority: 1}}
      summaries: {model: qwen-2.5-7b, slo: {ttft_ms: 5000}}

Each deployment's settings lie over the common ones, key by key; its pools replace common ones of another
form. One gateway serves all: who may come in and where it listens is said once.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.config.base import ConfigError, shown
from headway.config.models import DEFAULTS, DISAGGREGATED, HeadwayConfig, config_tree, validated, with_key
from headway.config.planner import MOST_GPUS

NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")
MOST = 1000
ONCE = (
    "fleet",
    *(
        f"gateway.{key}"
        for key in (
            "allow_anonymous",
            "api_keys",
            "host",
            "hosts",
            "keys_file",
            "max_per_node",
            "port",
            "replicas",
            "tls",
        )
    ),
)
"""Settings that no deployment has of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetConfig:
    """The settings of a fleet: `deployments` by name, each whole, and what they have in `common`."""

    common: HeadwayConfig
    deployments: Mapping[str, HeadwayConfig]

    @property
    def budgets(self) -> Mapping[str, int | None]:
        """GPUs by type, "" where there is one budget for all or none."""
        return {each.fleet.gpu_type: each.fleet.gpus for each in self.deployments.values()}

    @property
    def before(self) -> Mapping[str, str]:
        """By deployment that takes what spills over, the one whose requests they are."""
        found = {each.spillover: name for name, each in self.deployments.items()}
        return {to: name for to, name in found.items() if to is not None}

    def of_budget(self, gpu_type: str) -> Mapping[str, HeadwayConfig]:
        """The deployments that share it."""
        return {name: each for name, each in self.deployments.items() if each.fleet.gpu_type == gpu_type}


def is_fleet(path: str | Path | None) -> bool:
    """True for a file of a fleet. ConfigError where it cannot be read."""
    return path is not None and "deployments" in config_tree(path)


def load_fleet(path: str | Path, overrides: Mapping[str, Any] = DEFAULTS) -> FleetConfig:
    """The settings in a file; `overrides` hold for every deployment.

    ConfigError has one line: file, deployment, dotted key, what is wrong; its `faults` have all.
    """
    tree = config_tree(path)
    deployments = tree.pop("deployments", None)
    if not isinstance(deployments, Mapping) or not deployments:
        raise ConfigError(f"{path}: deployments: should hold a name and settings of each deployment")
    if len(deployments) > MOST:
        raise ConfigError(f"{path}: deployments: {len(deployments)} are more than {MOST}")
    by_type = _by_type(path, tree)
    found, faults = dict[str, HeadwayConfig](), list[str]()
    for name, own in deployments.items():
        try:
            each = _deployment(path, str(name), tree, own, overrides)
            found[str(name)] = each if by_type is None else _with_budget(path, str(name), each, by_type)
        except ConfigError as error:
            faults += error.faults or [str(error)]
    if faults := list(dict.fromkeys(faults)):
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        raise ConfigError(faults[0] + more, faults)
    # Of these the common part need not be whole.
    shared = {key: value for key, value in tree.items() if key not in ("metrics", "connector")}
    common = validated(shared, lambda key: f"{path}: {key}")
    fleet = FleetConfig(common=common, deployments=found)
    _check_together(path, fleet)
    return fleet


def _by_type(path: str | Path, tree: dict[str, Any]) -> Mapping[str, int] | None:
    """The budgets by GPU type, taken out of the tree; None where there is one for all, or none."""
    section = tree.get("fleet")
    if not isinstance(section, Mapping) or not isinstance(given := section.get("gpus"), Mapping):
        return None
    if not given:
        raise ConfigError(f"{path}: fleet.gpus: names no GPU type")
    if "gpu_type" in section:
        raise ConfigError(f"{path}: fleet.gpu_type: is that of each deployment's engine.gpu_type")
    for gpu_type, gpus in given.items():
        if not (isinstance(gpu_type, str) and gpu_type.strip() and gpu_type.isprintable()):
            raise ConfigError(f"{path}: fleet.gpus: {shown(gpu_type)} is no name of a GPU type")
        if not isinstance(gpus, int) or isinstance(gpus, bool) or not 0 < gpus <= MOST_GPUS:
            raise ConfigError(f"{path}: fleet.gpus.{gpu_type}: should be a number of GPUs, not {shown(gpus)}")
    tree["fleet"] = {key: value for key, value in section.items() if key != "gpus"}
    return {str(gpu_type): gpus for gpu_type, gpus in given.items()}


def _with_budget(
    path: str | Path, name: str, config: HeadwayConfig, by_type: Mapping[str, int]
) -> HeadwayConfig:
    """The same with the budget of its GPU type."""
    own = config.engine.gpu_type
    if own is None or own not in by_type:
        raise ConfigError(
            f"{path}: deployments.{name}.engine.gpu_type: should be one of fleet.gpus, "
            f"{', '.join(by_type)}, not {'null' if own is None else shown(own)}"
        )
    fleet = config.fleet.model_copy(update={"gpus": by_type[own], "gpu_type": own})
    return config.model_copy(update={"fleet": fleet})


def _deployment(
    path: str | Path,
    name: str,
    tree: Mapping[str, Any],
    own: Any,  # noqa: ANN401 - whatever the file holds
    overrides: Mapping[str, Any],
) -> HeadwayConfig:
    """The settings of one deployment."""
    place = f"{path}: deployments.{name}"
    if NAME.fullmatch(name) is None:
        raise ConfigError(
            f"{path}: deployments: {shown(name)} is no name: up to 40 of a-z, 0-9 and, between them, -"
        )
    own = {} if own is None else own
    if not isinstance(own, Mapping):
        raise ConfigError(f"{place}: should hold keys and values, not {shown(own)}")
    if key := next((key for key in ONCE if _has(own, key)), None):
        raise ConfigError(f"{place}.{key}: is one for all deployments; it stands outside of them")
    whole = _over(tree, own)
    if (separate := _separate(own)) is not None and separate is not _separate(tree):
        whole["pools"] = own["pools"]
    for key, value in overrides.items():
        if value is not None:
            whole = with_key(whole, key, value)
    return validated(
        whole, lambda key: f"{place}.{key}" if _has(own, key) else f"{path}: {key}" if key else place
    )


def _over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Key by key; what is no mapping in both replaces what is below."""
    found = dict(below)
    for key, value in above.items():
        under = found.get(key)
        both = isinstance(value, Mapping) and isinstance(under, Mapping)
        found[key] = _over(under, value) if both else value  # type: ignore[arg-type]
    return found


def _has(tree: Any, key: str) -> bool:  # noqa: ANN401 - whatever the file holds
    head, _, rest = key.partition(".")
    if isinstance(tree, list):  # It is not merged, so all of it is from one place.
        return True
    return isinstance(tree, Mapping) and head in tree and (not rest or _has(tree[head], rest))


def _separate(tree: Mapping[str, Any]) -> bool | None:
    """Whether its pools are prefill and decode; None: it has none."""
    pools = tree.get("pools")
    return bool(set(pools) <= DISAGGREGATED) if isinstance(pools, Mapping) and pools else None


def _check_together(path: str | Path, fleet: FleetConfig) -> None:
    """What one deployment alone does not show: models that are there twice, floors that do not fit."""
    _check_spillover(path, fleet)
    whose, before = dict[str, str](), fleet.before
    for name, each in fleet.deployments.items():
        first = name
        while first in before:
            first = before[first]
        for key, model in (("model", each.model), *(("aliases", alias) for alias in each.aliases)):
            if (other := whose.setdefault(model, first)) != first:
                raise ConfigError(f"{path}: deployments.{name}.{key}: {model!r} is that of {other}, too")
    for gpu_type, gpus in fleet.budgets.items():
        floors = {name: each.share.floor_gpus for name, each in fleet.of_budget(gpu_type).items()}
        check_fits(path, gpu_type, gpus, floors, "the floors")


def _check_spillover(path: str | Path, fleet: FleetConfig) -> None:
    """ConfigError for requests that would go nowhere, in a circle, to another model, or to the same GPUs."""
    for name, each in fleet.deployments.items():
        place, to = f"{path}: deployments.{name}.spillover", fleet.deployments.get(each.spillover or "")
        if each.spillover is None:
            continue
        if to is None:
            raise ConfigError(f"{place}: there is no deployment {shown(each.spillover)}")
        if (other := fleet.before[each.spillover]) != name:
            raise ConfigError(f"{place}: {each.spillover} takes what spills over from {other} already")
        if to.model != each.model:
            raise ConfigError(f"{place}: {each.spillover} serves {to.model!r}, not {each.model!r}")
        if to.fleet.gpus is not None and to.fleet.gpu_type == each.fleet.gpu_type:
            raise ConfigError(f"{place}: {each.spillover} has the same budget, so it has room when this has")
        if unknown := sorted(each.slo.classes.keys() - to.slo.classes.keys()):
            raise ConfigError(f"{place}: {each.spillover} has no slo.classes.{unknown[0]}; give it to both")
        after: str | None = each.spillover
        seen = {name}
        while after is not None and after not in seen:
            seen.add(after)
            after = fleet.deployments[after].spillover if after in fleet.deployments else None
        if after is not None:
            raise ConfigError(f"{place}: what spills over comes back to {after}")


def check_fits(
    path: str | Path, gpu_type: str, gpus: int | None, least: Mapping[str, int], what: str
) -> None:
    """ConfigError where a budget does not hold the GPUs that each must have."""
    if gpus is not None and sum(least.values()) > gpus:
        named = ", ".join(f"{name} {count}" for name, count in least.items() if count)
        key = f"fleet.gpus.{gpu_type}" if gpu_type else "fleet.gpus"
        raise ConfigError(f"{path}: {key}: {gpus} GPUs do not hold {what} of all ({named})")
