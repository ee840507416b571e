"""The control plane alone, for a fleet that others started: no engines, no gateway.

    serve run serve_apps.control:build config=headway.yaml
    serve run serve_apps.control:app

`build` takes what `serve_apps.disagg:build` takes (`serve_apps.arguments`). `app` reads the file that
HEADWAY_CONFIG names: no defaults could describe a fleet of others. It is made when it is asked for,
so that importing this module does nothing.
"""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ray.serve import Application

    app: Application

VARIABLE = "HEADWAY_CONFIG"


def build(arguments: Mapping[str, Any]) -> "Application":
    """The application of these arguments. ConfigError names what is wrong, or cannot work alone."""
    from serve_apps.arguments import read_control_arguments
    from serve_apps.control_host import control_application

    return control_application(read_control_arguments(arguments))


def __getattr__(name: str) -> "Application":
    if name == "app":
        path = os.environ.get(VARIABLE)
        return build({} if path is None else {"config": path})
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
