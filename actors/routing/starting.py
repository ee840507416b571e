"""Both actors of routing, made together: by the control plane, or by the first gateway that needs them."""

from collections.abc import Sequence
from typing import Any

from actors import names
from actors.latency_trainer import start_trainer
from actors.router import start_router
from actors.routing.use import needs_router
from headway.config import HeadwayConfig


def routing_actors(config: HeadwayConfig) -> Sequence[str]:
    """The names of the actors that the control plane starts for routing; none where no request needs them."""
    if not needs_router(config):
        return ()
    router = names.router(config.model)
    return (router, names.LATENCY_TRAINER) if config.routing.prediction.learn else (router,)


def start_routing(config: HeadwayConfig) -> Any:  # noqa: ANN401 - the router's handle
    """The router, and the trainer where predictions are learned; what runs already is found."""
    # The actors do not need the API keys.
    settings = config.model_dump_json(exclude={"gateway": {"api_keys"}})
    router = start_router(config, settings)
    if config.routing.prediction.learn:
        start_trainer(settings)
    return router
