"""Which requests a router is asked for, and what it is told of them.

Every one where the profile, offload or SLO classes need a router; else those that ask for prediction-based
scheduling. Prefix blocks are made only for these, and only where replicas keep prefixes.
"""

from collections.abc import Sequence

from actors.routing.use import needs_router
from headway.config import HeadwayConfig
from headway.engine import EngineRules
from headway.routing.types import NO_SLO, Placement, RouteRequest
from serve_apps.gateway.prefix import prefix_blocks
from serve_apps.gateway.promises import Promise

BLOCK_TOKENS = EngineRules().block_tokens
"""Tokens of a prefix block, as in the simulated engines' cache."""


class Routes:
    """Makes the router's view of requests."""

    def __init__(self, config: HeadwayConfig) -> None:
        self._always = needs_router(config)
        self._prefixes = bool(config.engine.prefix_cache_tokens)

    def needed(self, promise: Promise) -> bool:
        """Whether the router is asked."""
        return self._always or promise.prediction_based

    def blocks(self, prompt: str | Sequence[int]) -> tuple[int, ...]:
        """The prompt's prefix blocks; none where replicas keep none."""
        return prefix_blocks(prompt, BLOCK_TOKENS) if self._prefixes else ()


def route_request(
    request_id: str, arrival_s: float, lengths: tuple[int, int], blocks: tuple[int, ...], promise: Promise
) -> RouteRequest:
    """The request for the router; `lengths` are its input tokens and its bound on output tokens."""
    return RouteRequest(
        request_id=request_id,
        arrival_s=arrival_s,
        input_tokens=lengths[0],
        max_tokens=lengths[1],
        slo=promise.slo or NO_SLO,
        slo_class=promise.slo_class,
        critical=promise.critical,
        prediction_based=promise.prediction_based,
        session=promise.session,
        blocks=blocks,
        block_tokens=BLOCK_TOKENS,
    )


def explanation(placement: Placement) -> list[tuple[bytes, bytes]]:
    """The headers that say where a request is served."""
    said = {
        b"x-headway-replica": placement.decode_replica,
        b"x-headway-prefill-replica": placement.prefill_replica,
        b"x-headway-route-class": placement.route_class,
        b"x-headway-route-reason": placement.reason,
        b"x-headway-predicted-ttft-ms": _milliseconds(placement.predicted_ttft_s),
        b"x-headway-predicted-tpot-ms": _milliseconds(placement.predicted_tpot_s),
        b"x-headway-queued-ms": _milliseconds(placement.queued_s),
    }
    return [(name, str(value).encode()) for name, value in said.items() if value is not None]


def _milliseconds(seconds: float | None) -> str | None:
    return None if seconds is None else f"{1e3 * seconds:.3f}"
