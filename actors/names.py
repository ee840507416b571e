"""Names that other programs rely on: the Ray namespace, the actors, and how all of them are created."""

from typing import Any

NAMESPACE = "headway"

METRIC_COLLECTOR = "MetricCollector"
PREDICTOR = "Predictor"
INTERPOLATOR = "Interpolator"
PLANNER = "Planner"
VIRTUAL_CONNECTOR = "VirtualConnectorCoordinator"
VIRTUAL_CONNECTOR_CLIENT = "VirtualConnectorClient"
LATENCY_TRAINER = "LatencyTrainer"
GATEWAY_ADDRESS = "gateway/address"
"""Key in the store under which the gateway's host writes `http://host:port`."""

ROUTER_PREFIX = "Router:"
"""Routers are named after the model whose requests they route: one shard a model."""

ACTORS = (
    METRIC_COLLECTOR,
    PREDICTOR,
    INTERPOLATOR,
    PLANNER,
    VIRTUAL_CONNECTOR,
    VIRTUAL_CONNECTOR_CLIENT,
    LATENCY_TRAINER,
)
"""All but the routers, whose names depend on the model (`router`)."""


def router(model: str) -> str:
    """The name of a model's router."""
    return ROUTER_PREFIX + model


def detached(name: str) -> dict[str, Any]:
    """Options of a named actor that outlives its creator and restarts however often it dies."""
    return {
        "name": name,
        "namespace": NAMESPACE,
        "lifetime": "detached",
        "get_if_exists": True,
        "max_restarts": -1,
        "max_task_retries": 3,
        "num_cpus": 0,
    }
