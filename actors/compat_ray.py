"""The private interfaces of Ray that the actors use, behind one function each. Nothing else here.

They may change with any release of Ray. tests/actors/test_compat_ray.py lists them, and names those that an
installed Ray lacks, and what is lost with each.
"""

from collections.abc import Mapping
from typing import Any

CONTROLLER, SERVE_NAMESPACE = "SERVE_CONTROLLER_ACTOR", "serve"
"""Serve's controller actor, whose methods are private: `ray.get_actor(CONTROLLER, SERVE_NAMESPACE)`."""


def actors_table() -> Mapping[str, Mapping[str, Any]]:
    """Ray's table of actors by id, those that died included. Blocks while it asks the GCS."""
    from ray._private.state import actors

    table: Mapping[str, Mapping[str, Any]] = actors()
    return table


def free_by_node() -> Mapping[str, Mapping[str, float]]:
    """The resources that are free on each node, by its id. Blocks while it asks the GCS."""
    from ray._private.state import available_resources_per_node

    free: Mapping[str, Mapping[str, float]] = available_resources_per_node()  # type: ignore[no-untyped-call]
    return free


def internal_kv() -> Any:  # noqa: ANN401 - a module
    """Ray's internal key-value store: `_internal_kv_get`, `_put`, `_del`, `_list`."""
    from ray.experimental import internal_kv as module

    return module


def deployment_id(application: str, name: str) -> Any:  # noqa: ANN401 - of Serve
    """Serve's name for a deployment."""
    from ray.serve._private.common import DeploymentID

    return DeploymentID(name=name, app_name=application)


def scaling_is_off(error: BaseException | None) -> bool:
    """True for Serve's refusal to take counts for an application without `external_scaler_enabled`."""
    from ray.serve._private.exceptions import ExternalScalerDisabledError

    return isinstance(error, ExternalScalerDisabledError)


def is_going(error: BaseException | None) -> bool:
    """True for Serve's refusal to take a count for a deployment that is deleted, or is not there any more."""
    from ray.serve._private.exceptions import DeploymentIsBeingDeletedError

    return isinstance(error, DeploymentIsBeingDeletedError | ValueError)


def scaling_turned_on() -> bytes:
    """The flag of an application that takes counts from outside, as Serve's controller takes it."""
    from ray.serve.generated.serve_pb2 import ApplicationArgs  # type: ignore[attr-defined] # generated

    return bytes(ApplicationArgs(external_scaler_enabled=True).SerializeToString())


def deployed_again(
    name: str,
    info: Any,  # noqa: ANN401 - Serve's DeploymentInfo
    replicas: int,
    user_config: Mapping[str, Any] | None = None,
) -> bytes:
    """A deployment as it stands, with its count of replicas now, as Serve's controller takes it.

    With another `user_config`, if it has one.
    """
    from ray.serve.generated.serve_pb2 import DeploymentArgs  # type: ignore[attr-defined] # generated

    config = info.deployment_config
    if config.autoscaling_config is None:
        # As many as there are now, not as many as it was deployed with.
        config = config.model_copy(update={"num_replicas": replicas})
    if user_config is not None and config.user_config is not None:
        config = config.model_copy(update={"user_config": user_config})
    arguments = DeploymentArgs(
        deployment_name=name,
        deployment_config=config.to_proto_bytes(),
        replica_config=info.replica_config.to_proto_bytes(),
        deployer_job_id=str(info.deployer_job_id),
        ingress=bool(info.ingress),
    )
    if info.route_prefix is not None:
        arguments.route_prefix = info.route_prefix
    for flag in ("ingress_request_router", "uses_multiplexing"):
        setattr(arguments, flag, bool(getattr(info, flag, False)))
    return bytes(arguments.SerializeToString())


async def replica_results(handle: Any, method: str, *args: object, **named: object) -> list[Any]:  # noqa: ANN401
    """A call of all replicas of a deployment, each with its own answer (`get_async`).

    Serve's own `results_async` has one time for all: one replica that hangs would hide the others' answers.
    """
    found: list[Any] = await handle.broadcast(method, *args, **named)._fetch_replica_results_async()
    return found
