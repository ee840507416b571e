"""What all requests of one gateway share."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from prometheus_client import CollectorRegistry

from headway.config import GatewaySettings, HeadwayConfig
from headway.planning import Slo
from serve_apps.gateway.backend import Backend, ReplicaLoad
from serve_apps.gateway.faults import Shed
from serve_apps.gateway.identity import Identity, identify
from serve_apps.gateway.metrics import GatewayMetrics
from serve_apps.gateway.promises import PromiseReader
from serve_apps.gateway.prompts import Prompts, make_prompts
from serve_apps.gateway.routes import Routes
from serve_apps.gateway.vllm_metrics import VllmMetrics


@dataclass(slots=True, kw_only=True)
class Traffic:
    """Requests in flight, and the backend that serves them: what gauges are read from."""

    backend: Backend
    requests: int = 0

    def replicas(self) -> Sequence[ReplicaLoad]:
        """The running replicas and their load."""
        return self.backend.replicas()

    def in_flight(self) -> int:
        """Requests being served."""
        return self.requests


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayState:
    """Settings, identity, counts and traffic of one gateway."""

    settings: GatewaySettings
    identity: Identity
    prompts: Prompts
    traffic: Traffic
    metrics: GatewayMetrics
    registry: CollectorRegistry
    promises: PromiseReader
    routes: Routes
    clock: Callable[[], float]

    @property
    def slo(self) -> Slo:
        """The targets that requests are judged by."""
        return self.metrics.slo

    def set_slo(self, ttft_s: float, itl_s: float) -> None:
        """Judge the requests that end from now on by other targets."""
        self.metrics.slo = Slo(ttft_s=ttft_s, itl_s=itl_s)

    @contextmanager
    def slot(self) -> Iterator[None]:
        """One request in flight; Shed where there are too many already."""
        traffic, settings = self.traffic, self.settings
        if traffic.requests >= settings.max_requests:
            text = f"{traffic.requests} requests are in flight, which is as many as this gateway takes"
            raise Shed(text, retry_after_s=settings.retry_after_s)
        traffic.requests += 1
        try:
            yield
        finally:
            traffic.requests -= 1


def make_state(config: HeadwayConfig, backend: Backend, clock: Callable[[], float]) -> GatewayState:
    """The state of a new gateway. ConfigError, ProfileError."""
    prompts, traffic = make_prompts(config), Traffic(backend=backend)
    identity = identify(config, prompts)
    slo = Slo(ttft_s=config.slo.ttft_s, itl_s=config.slo.itl_s)
    metrics = GatewayMetrics(identity.model, identity.engine, slo, traffic)
    registry = CollectorRegistry()
    registry.register(metrics)
    if config.engine.kind == "vllm":
        registry.register(VllmMetrics(identity.model, traffic, metrics))
    return GatewayState(
        settings=config.gateway,
        identity=identity,
        prompts=prompts,
        traffic=traffic,
        metrics=metrics,
        registry=registry,
        promises=PromiseReader(
            config.slo.classes, lambda: metrics.slo, default_critical=config.routing.default_critical
        ),
        routes=Routes(config),
        clock=clock,
    )
