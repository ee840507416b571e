"""The arguments of `serve run` -> settings that may travel to any node.

    serve run serve_apps.disagg:build config=headway.yaml gateway.port=8001 slo.ttft_ms=200

`config` names a file; every other key is a setting by its dotted name, or, in a Serve config file, a nested
mapping of settings. Values from a command line are text and read as YAML. Files that settings name are
looked for here and now, beside the config file, and travel as absolute paths; names of shipped profiles
stay names.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import yaml

from actors.collector.presets import preset
from headway.config import ConfigError, FleetConfig, HeadwayConfig, load_config, load_fleet, resolve_profile
from headway.config.models import with_key
from headway.config.presets import ENGINE_PRESETS
from headway.engine.kinds import check_sleepers, engine_kind

Topology = Literal["disaggregated", "aggregated"]
EXTERNAL = "external"
"""The engine kind of a fleet that others started."""

GPU_PROFILES = "routing.gpu_profiles"
FILE_SETTINGS = (
    "engine.profile",
    "engine.vllm.model",
    "gateway.tokenizer",
    "gateway.keys_file",
    "gateway.tls.cert",
    "gateway.tls.key",
    "metrics.ca_file",
    "metrics.cert_file",
    "metrics.key_file",
    "metrics.token_file",
    "planner.load_predictor_warmup_trace",
)
"""Settings that may name a file or a directory; engine kinds declare further ones."""


def read_arguments(arguments: Mapping[str, Any], topology: Topology) -> HeadwayConfig:
    """The settings. ConfigError, one line, where they are wrong or belong to the other topology."""
    path, overrides = _file_and_settings(arguments)
    config = _of_topology(path, overrides, topology)
    config = beside(path, {**overrides, **_pools(config)})
    check_started_here(config)
    return config


def read_fleet(path: str, application: str, *, attached: bool = False) -> FleetConfig:
    """The settings of a fleet that this application serves; of an `attached` one others run the engines.

    ConfigError as `read_arguments`.
    """
    elsewhere = {"engine.kind": EXTERNAL} if attached else {}
    fleet = load_fleet(path, {"fleet.application": application, **elsewhere})
    found = dict[str, HeadwayConfig]()
    for name, config in fleet.deployments.items():
        try:
            found[name] = _over(config, _absolute(config, path))
            (check_started_elsewhere if attached else check_started_here)(found[name])
        except ConfigError as error:
            raise ConfigError(f"{path}: deployments.{name}: {error}") from error
    return FleetConfig(common=_over(fleet.common, _absolute(fleet.common, path)), deployments=found)


def check_started_here(config: HeadwayConfig) -> None:
    """ConfigError for engines that are not started here, or cannot be by these settings."""
    refuse_fleets_of_others(config)
    resolve_profile(config.engine.profile)
    # Imported here: a control plane alone has no GPU profiles, and would load them with all that they need.
    from headway.routing.fleet.gpu_profiles import named_profiles

    named_profiles(config)
    engine_kind(config).check_settings(config)
    check_sleepers(config)


def read_control_arguments(arguments: Mapping[str, Any]) -> HeadwayConfig:
    """The settings of a control plane alone, whose engines others start. ConfigError as `read_arguments`."""
    path, overrides = _file_and_settings(arguments)
    overrides["engine.kind"] = EXTERNAL
    config = beside(path, {**overrides, **_pools(load_config(path, overrides))})
    try:
        check_started_elsewhere(config)
    except ConfigError as error:
        raise ConfigError(f"{path or 'options'}: {error}") from error
    return config


def check_started_elsewhere(config: HeadwayConfig) -> None:
    """ConfigError for a control plane alone that would see or move nothing."""
    if problems := control_problems(config):
        raise ConfigError("; ".join(problems))
    resolve_profile(config.engine.profile)


def control_problems(config: HeadwayConfig) -> list[str]:
    """Settings with which a control plane alone would see or move nothing, a line each with what to do."""
    problems = []
    if config.metrics.source == "gateway" and not config.metrics.url:
        problems.append(
            "metrics.source: gateway needs metrics.url here, the address of a Headway gateway that runs "
            "elsewhere; or use prometheus with a url and a preset, or engines"
        )
    problems += _source_problems(config)
    if config.connector.kind == "ray_serve" and not config.connector.ray_serve.application:
        problems.append(
            "connector.kind: ray_serve scales the replicas of headway up, and here are none; name the "
            "application and its deployments in connector.ray_serve, or use virtual or kubernetes"
        )
    return problems


def _source_problems(config: HeadwayConfig) -> list[str]:
    """Engines that would be counted twice, or not at all, and names that do not suffice, a line each."""
    metrics, pools = config.metrics, " and ".join(config.pools)
    try:
        preset(metrics.preset, metrics.overrides)
    except ConfigError as error:
        return [str(error)]
    if metrics.source == "engines" and set(metrics.engines) != set(config.pools):
        given = " and ".join(metrics.engines)
        return [f"metrics.engines: has {given}, but pools has {pools}: name the engines of each pool"]
    if metrics.role_labels and set(metrics.role_labels) != set(config.pools):
        given = " and ".join(metrics.role_labels)
        return [f"metrics.role_labels: has {given}, but pools has {pools}: give the labels of each pool"]
    twice = metrics.source == "prometheus" and metrics.preset in ENGINE_PRESETS and len(config.pools) > 1
    if twice and not metrics.role_labels:
        return [
            "metrics.role_labels: needed, as each request passes a prefill and a decode engine of "
            f"{metrics.preset}: labels that tell them apart, such as {{prefill: {{pod: ~prefill-.*}}, "
            "decode: {pod: ~decode-.*}}; or pools: {mixed: {}} where each engine does both"
        ]
    return []


def refuse_fleets_of_others(config: HeadwayConfig) -> None:
    """ConfigError for settings that describe a fleet of others, where engines would be started."""
    kind, metrics = engine_kind(config), config.metrics
    if kind.elsewhere:
        raise ConfigError(
            f"engine.kind: {config.engine.kind} engines are not started here: "
            "use headway attach, or serve_apps.control"
        )
    if kind.simulated and metrics.preset != "headway":
        raise ConfigError(
            f"metrics.preset: {metrics.preset} names the metrics of a fleet that runs elsewhere, and "
            f"engine.kind {config.engine.kind} would start simulated engines as {config.model!r}: use "
            "headway attach (serve_apps.control) for that fleet, or metrics.preset headway for this one"
        )


def _file_and_settings(arguments: Mapping[str, Any]) -> tuple[str | None, dict[str, Any]]:
    """The path of the configuration file, and the settings beside it by their dotted names."""
    given = dict(arguments)
    path = given.pop("config", None)
    if path is not None and not isinstance(path, str):
        raise ConfigError(f"config: should be the path of a file, not {path!r}")
    return path, dict(_flat(given))


def beside(path: str | None, overrides: Mapping[str, Any] = MappingProxyType({})) -> HeadwayConfig:
    """The settings of a file, with the files that they name, looked for beside it, as absolute paths."""
    config = load_config(path, overrides)
    return load_config(path, {**overrides, **_pools(config), **_absolute(config, path)})


def _of_topology(path: str | None, overrides: Mapping[str, Any], topology: Topology) -> HeadwayConfig:
    config = load_config(path, overrides)
    aggregated = set(config.pools) == {"mixed"}
    if aggregated == (topology == "aggregated"):
        return config
    if not aggregated and "pools" not in config.model_fields_set:
        return load_config(path, {**overrides, "pools.mixed": {}})
    other = "serve_apps.agg" if aggregated else "serve_apps.disagg"
    raise ConfigError(
        f"{path or 'options'}: pools: {' and '.join(config.pools)} are served by {other}, not here"
    )


def _pools(config: HeadwayConfig) -> dict[str, Any]:
    return {"pools": {role: pool.model_dump(exclude_unset=True) for role, pool in config.pools.items()}}


def _absolute(config: HeadwayConfig, path: str | None) -> dict[str, Any]:
    base = Path(path).parent if path else Path()
    profiles = config.routing.gpu_profiles
    found: dict[str, Any] = {}
    if profiles:
        found[GPU_PROFILES] = {kind: _found(base, value) or value for kind, value in profiles.items()}
    for key in (*FILE_SETTINGS, *engine_kind(config).file_settings):
        if place := _found(base, _setting(config, key)):
            found[key] = place
    return found


def _over(config: HeadwayConfig, changes: Mapping[str, Any]) -> HeadwayConfig:
    """The settings with others in their place, by dotted key."""
    tree: dict[str, Any] = config.model_dump(exclude_unset=True)
    for key, value in changes.items():
        tree = with_key(tree, key, value)
    return HeadwayConfig.model_validate(tree)


def _setting(config: HeadwayConfig, key: str) -> str | None:
    value: Any = config
    for part in key.split("."):
        # The settings of an installed engine kind, `engine.options`, are a mapping; sections may be null.
        value = value.get(part) if isinstance(value, Mapping) else getattr(value, part, None)
    return value if isinstance(value, str) else None


def _found(base: Path, value: str | None) -> str | None:
    """The absolute path of what is there."""
    return str((base / value).absolute()) if value and (base / value).exists() else None


def _flat(tree: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", _read(f"{above}{key}", value)


def _read(key: str, value: Any) -> Any:  # noqa: ANN401 - whatever YAML can say
    if not isinstance(value, str):
        return value
    try:
        return yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise ConfigError(f"options: {key}: {value!r} is not YAML") from error
