"""What Ray says of a node's accelerator, over a double of Ray."""

from types import SimpleNamespace

import pytest
from ray.exceptions import RaySystemError

from serve_apps import deployments
from serve_apps.deployments import gpu_type_of_node

HERE = "node-1"


def ray_saying(labels, resources, *, running=True):
    context = SimpleNamespace(get_node_labels=lambda: labels, get_node_id=lambda: HERE)
    others = {"NodeID": "node-2", "Resources": {"accelerator_type:A100": 1.0}}
    return SimpleNamespace(
        is_initialized=lambda: running,
        get_runtime_context=lambda: context,
        nodes=lambda: [others, {"NodeID": HERE, "Resources": resources}],
    )


@pytest.mark.parametrize(
    ("labels", "resources", "told"),
    [
        ({"ray.io/accelerator-type": "H100"}, {"accelerator_type:L20": 1.0}, "H100"),
        ({"ray.io/node-id": HERE}, {"CPU": 4.0, "accelerator_type:L20": 1.0}, "L20"),
        ({}, {"CPU": 4.0}, ""),
    ],
)
def test_the_label_comes_first_then_the_resource_of_this_node(monkeypatch, labels, resources, told):
    monkeypatch.setattr(deployments, "ray", ray_saying(labels, resources))
    assert gpu_type_of_node() == told


def test_without_ray_none_is_started(monkeypatch):
    absent = ray_saying({"ray.io/accelerator-type": "H100"}, {}, running=False)
    monkeypatch.setattr(deployments, "ray", absent)
    assert gpu_type_of_node() == ""


def test_a_replica_starts_although_ray_does_not_say(monkeypatch):
    def fail():
        raise RaySystemError("the GCS is away")

    silent = ray_saying({}, {})
    silent.nodes = fail
    monkeypatch.setattr(deployments, "ray", silent)
    assert gpu_type_of_node() == ""
