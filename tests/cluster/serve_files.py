"""Serve config files, read as Serve reads them."""

from typing import Any

import yaml
from ray.serve.schema import ServeDeploySchema

from serve_apps.builders import LEAN_REPLICA


def the_application(text: str) -> Any:
    """The only application of a Serve config."""
    (application,) = ServeDeploySchema.model_validate(yaml.safe_load(text)).applications
    return application


def assert_replicas_are_lean(application: Any) -> None:
    """A file that gives `ray_actor_options` replaces those of the code, with the environment in them."""
    assert application.runtime_env["env_vars"] == LEAN_REPLICA
