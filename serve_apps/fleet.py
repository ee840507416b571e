"""A fleet in a Serve config file: an application of its gateway and control plane, and one of the engines of
each deployment, which has the deployment's name.

    serve_apps.fleet:build      config: /etc/headway/fleet.yaml
    serve_apps.fleet:engines    config: /etc/headway/fleet.yaml, deployment: chat

The file is read where Serve builds the application, on a node of its choice, so all have it in the same
place. Serve reads it again where the arguments of an application change: that is what `revision` is for.
`application` is the name of the first one, if that is not headway.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ray.serve import Application

    from headway.config import FleetConfig

APPLICATION = "headway"


def build(arguments: Mapping[str, Any]) -> "Application":
    """The gateway and the control plane of these arguments. ConfigError names what is wrong."""
    from serve_apps.fleet_host import fleet_application

    return fleet_application(_fleet(arguments))


def engines(arguments: Mapping[str, Any]) -> "Application":
    """The engines of one deployment. ConfigError names what is wrong."""
    from headway.config import ConfigError
    from serve_apps.builders import engines_alone

    name, fleet = str(arguments.get("deployment", "")), _fleet(arguments, "deployment")
    if name not in fleet.deployments:
        raise ConfigError(
            f"options: deployment: should be one of {', '.join(fleet.deployments)}, not {name!r}"
        )
    return engines_alone(fleet.deployments[name])


def _fleet(arguments: Mapping[str, Any], *more: str) -> "FleetConfig":
    from headway.config import ConfigError
    from serve_apps.arguments import read_fleet

    if unknown := sorted(arguments.keys() - {"config", "application", "revision", *more}):
        raise ConfigError(f"options: {unknown[0]}: unknown key; settings of a fleet are in its file")
    if not isinstance(path := arguments.get("config"), str):
        raise ConfigError("options: config: should be the path of a fleet's file")
    return read_fleet(path, str(arguments.get("application", APPLICATION)))
