"""One pool of replicas that do both phases.

    serve run serve_apps.agg:app
    serve run serve_apps.agg:build config=headway.yaml gateway.port=8001

`app` is made when it is asked for, so that importing this module does nothing.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ray.serve import Application

    app: Application


def build(arguments: Mapping[str, Any]) -> "Application":
    """The application of these arguments (`serve_apps.arguments`). ConfigError names what is wrong."""
    from serve_apps.builders import build_application

    return build_application(arguments, "aggregated")


def __getattr__(name: str) -> "Application":
    if name == "app":
        return build({})
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
