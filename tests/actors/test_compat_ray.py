"""The private parts of Ray that are used are there; the failure says what is lost without one."""

import importlib
from collections.abc import Mapping
from functools import reduce

import pytest

PRIVATE: Mapping[str, str] = {
    "ray._private.state:actors": "restarts and hosts in the status document",
    "ray._private.state:available_resources_per_node": "which replicas find room on a node",
    "ray.experimental.internal_kv:_internal_kv_get": "the store",
    "ray.experimental.internal_kv:_internal_kv_put": "the store",
    "ray.experimental.internal_kv:_internal_kv_del": "the store",
    "ray.experimental.internal_kv:_internal_kv_list": "the store",
    "ray.serve._private.common:DeploymentID": "replica counts set through Serve's controller",
    "ray.serve._private.exceptions:DeploymentIsBeingDeletedError": "why counts are refused",
    "ray.serve._private.exceptions:ExternalScalerDisabledError": "why counts are refused",
    "ray.serve._private.controller:ServeController.get_deployment_details": "replicas of Ray Serve read",
    "ray.serve._private.controller:ServeController.update_deployment_replicas": "counts of Ray Serve set",
    "ray.serve._private.controller:ServeController.get_serve_instance_details": "external scaling turned on",
    "ray.serve._private.controller:ServeController.list_deployments_internal": "external scaling turned on",
    "ray.serve._private.controller:ServeController.deploy_applications": "external scaling turned on",
    "ray.serve.generated.serve_pb2:ApplicationArgs": "external scaling turned on",
    "ray.serve.generated.serve_pb2:DeploymentArgs": "external scaling turned on",
    "ray.serve.handle:DeploymentBroadcastResponse._fetch_replica_results_async": "gateways read one by one",
    "ray.core.generated.common_pb2:ActorDiedErrorContext": "restarts of replicas",
    "ray.core.generated.common_pb2:NodeDeathInfo": "hosts that ended in an orderly way",
}
"""What is used, as MODULE:NAME, and what is lost without it."""


@pytest.mark.parametrize("place", PRIVATE)
def test_the_installed_ray_has_it(place: str) -> None:
    module, _, names = place.partition(":")
    try:
        reduce(getattr, names.split("."), importlib.import_module(module))
    except (ImportError, AttributeError) as error:
        pytest.fail(f"this Ray has no {place} ({error}); lost: {PRIVATE[place]}")
