"""Counts of routing at one gateway, and how Prometheus reads them. All series carry the label `model`.

Placements, sheds and fallbacks are this gateway's. The queue, the gauges of `GAUGES` and the events
that could not be handled are the router's, as it last reported them, the same at every gateway. Of a figure
that is not known yet, such as the error of predictions that nothing was compared with, there is no series.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import isfinite

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from actors.routing.messages import Figures
from headway.routing.types import Placement
from serve_apps.gateway.metrics import Family, families


@dataclass(slots=True)
class RoutingCounts:
    """`placements` by profile, route class and reason; `sheds` and `fallbacks` by reason.

    `prefixes` are tokens of prompts whose engine said what it had cached, by the source of the router's
    account of that cache and by kind: `prompt` all, `expected` to be cached, `cached`, and `error`, the sum
    of absolute differences; `judged` counts these requests.
    `lives` counts the sessions with a router: above 1 it, or the way to it, was lost meanwhile.
    """

    placements: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    sheds: Counter[str] = field(default_factory=Counter)
    fallbacks: Counter[str] = field(default_factory=Counter)
    prefixes: Counter[tuple[str, str]] = field(default_factory=Counter)
    judged: Counter[str] = field(default_factory=Counter)
    sessions: int = 0
    queued: int = 0
    figures: Figures = field(default_factory=dict)

    def seen(self) -> dict[str, object]:
        """What the live page shows: how many wait, and requests turned away or placed without the router.

        Plain JSON: of predictions that nothing has been compared with yet, whose error is NaN, nothing.
        """
        known = self.figures.get("prediction", {}).items()
        predictions = {" ".join(key): value for key, value in known if isfinite(value)}
        return {
            "queued": self.queued,
            "sheds": dict(self.sheds),
            "fallbacks": dict(self.fallbacks),
            "predictions": predictions,
        }

    def placed(self, placement: Placement) -> None:
        """Count a placement."""
        self.placements[placement.profile, str(placement.route_class or ""), placement.reason] += 1

    def reused(self, placement: Placement, input_tokens: int, cached_tokens: int) -> None:
        """Compare what a placement expected of a prefix cache with what its engine found."""
        source, expected = placement.cached_by, placement.cached_tokens
        self.judged[source] += 1
        for kind, tokens in (
            ("prompt", input_tokens),
            ("expected", expected),
            ("cached", cached_tokens),
            ("error", abs(expected - cached_tokens)),
        ):
            self.prefixes[source, kind] += tokens


COUNTERS = (
    Family(
        "headway_router_placements",
        "Placements carried out by this gateway",
        "placements",
        ("profile", "route_class", "reason"),
    ),
    Family(
        "headway_router_sheds", "Requests of this gateway that the router turned away", "sheds", ("reason",)
    ),
    Family(
        "headway_router_fallback",
        "Requests that this gateway placed without the router: timeout, unreachable, error",
        "fallbacks",
        ("reason",),
    ),
    Family(
        "headway_router_prefix_tokens",
        "Prompt tokens by source (events, estimate) and kind: prompt, expected and found cached, error",
        "prefixes",
        ("source", "kind"),
    ),
    Family(
        "headway_router_prefix_requests",
        "Requests of this gateway whose expected cached tokens were compared with the engine's",
        "judged",
        ("source",),
    ),
    Family("headway_router_sessions", "Times that the router was met anew", "sessions"),
    Family(
        "headway_router_replica_busy_seconds",
        "Seconds that the replica has computed since it began, as its engine last said",
        "figures.busy_s",
        ("role", "replica"),
    ),
    Family(
        "headway_router_event_errors",
        "Events that the router could not handle, of all gateways",
        "figures.event_errors",
        ("event",),
    ),
)
GAUGES = (
    Family(
        "headway_router_queued_requests", "Requests that wait in the router, those of all gateways", "queued"
    ),
    Family(
        "headway_router_prediction",
        "How predictions came out: error and bias as shares of what was measured, and pairs",
        "figures.prediction",
        ("target", "figure"),
    ),
    Family(
        "headway_router_transfer",
        "KV transfers of offloaded prompts: measured over nominal time, and how many were measured",
        "figures.transfer",
        ("figure",),
    ),
    Family(
        "headway_router_adapter_loads",
        "Requests placed where their LoRA adapter was not, since the router began",
        "figures.adapter_loads",
    ),
)


class RoutingMetrics(Collector):
    """A collector over the counts of one gateway."""

    def __init__(self, model: str, counts: Callable[[], RoutingCounts]) -> None:
        self._model = model
        self._counts = counts

    def collect(self) -> Iterator[Metric]:
        """Everything as families of prometheus_client."""
        counts = self._counts()
        yield from families(CounterMetricFamily, COUNTERS, self._model, counts)
        yield from families(GaugeMetricFamily, GAUGES, self._model, counts)
