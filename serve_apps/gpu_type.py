"""The GPU type of the node that this process runs on, as Ray names it, such as H100 or L20.

Ray labels a node with the accelerator that it finds. Who starts a node by hand may label it too, or give it
the resource `accelerator_type:NAME`.
"""

import logging

import ray
from ray.exceptions import RayError

LABEL = "ray.io/accelerator-type"
RESOURCE = "accelerator_type:"

logger = logging.getLogger(__name__)


def gpu_type_of_node() -> str:
    """The type, "" where nobody knows it."""
    if not ray.is_initialized():
        return ""  # to ask would start a cluster
    try:
        context = ray.get_runtime_context()
        labelled = context.get_node_labels().get(LABEL)
        return str(labelled) if labelled else _by_resource(context.get_node_id())
    except RayError:
        logger.warning("Ray does not say what GPU this node has", exc_info=True)
        return ""


def _by_resource(node_id: str) -> str:
    nodes = ray.nodes()  # type: ignore[no-untyped-call]
    named = (name for node in nodes if node["NodeID"] == node_id for name in node["Resources"])
    return min((name.removeprefix(RESOURCE) for name in named if name.startswith(RESOURCE)), default="")
