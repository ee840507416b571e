"""The state that all requests of one gateway share: settings, the model's identity, counts and traffic."""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from random import Random
from typing import Any

from prometheus_client import CollectorRegistry

from headway.config import GatewaySettings, HeadwayConfig, resolve_profile
from headway.engine.kinds import engine_kind
from headway.planning import Role, Slo
from interp import load_profile
from serve_apps.access import Holder
from serve_apps.faults import UnknownModel
from serve_apps.gateway.admission import Places, Quotas, Tenants
from serve_apps.gateway.backend import Backend
from serve_apps.gateway.fleet import Fleet
from serve_apps.gateway.metrics import GatewayMetrics, TenantCounts, Traffic
from serve_apps.gateway.prompts import Accuracy, Prompts, make_prompts
from serve_apps.gateway.reading import Bodies, CallReader
from serve_apps.gateway.repeats import Repeats, RetryBudgets
from serve_apps.gateway.request_record import RecentRequests
from serve_apps.gateway.slo_targets import Routes, SloTargetReader
from serve_apps.tracing.gateway_spans import Tracing, make_tracing
from serve_apps.tracing.spans import SpanCounts


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The model served. `max_tokens` bounds input and output of one request together."""

    model: str
    engine: str
    simulated: bool
    max_tokens: int
    text_counts: Accuracy
    created: int
    adapters: Sequence[str] = ()
    aliases: Sequence[str] = ()

    @property
    def names(self) -> Sequence[str]:
        """All models that clients may ask for, this one first."""
        return (self.model, *self.aliases, *self.adapters)

    def check(self, model: str | None) -> None:
        """UnknownModel for any model but this one and its adapters; no name stands for the one served."""
        if model is not None and model not in self.names:
            text = f"The model {model!r} does not exist here; {self.model!r} does"
            raise UnknownModel(text, param="model")

    def entry(self, name: str) -> dict[str, Any]:
        """A model as `/v1/models` lists it; an adapter and an alias have a `parent`."""
        return {
            "id": name,
            **({} if name == self.model else {"parent": self.model}),
            "object": "model",
            "created": self.created,
            "owned_by": "headway",
            "engine": self.engine,
            "simulated": self.simulated,
            "max_model_tokens": self.max_tokens,
            "token_count": self.text_counts,
        }


def identify(config: HeadwayConfig, prompts: Prompts) -> Identity:
    """The identity that the settings give; ConfigError or ProfileError where the profile can't be used.

    A request may be as long as the model was made for, or where that is unknown, as a replica's KV cache.
    """
    capacity = prompts.max_tokens or _kv_capacity(config)
    return Identity(
        model=config.model,
        engine=config.engine.kind,
        simulated=engine_kind(config).simulated,
        max_tokens=min(config.engine.max_model_tokens or capacity, capacity),
        text_counts=prompts.accuracy,
        created=int(time.time()),
        adapters=tuple(engine_kind(config).adapters(config)),
        aliases=config.aliases,
    )


def _kv_capacity(config: HeadwayConfig) -> int:
    """Tokens that the KV cache of one replica holds."""
    return int(load_profile(resolve_profile(config.engine.profile)).decode.table.max_kv_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayState:
    """Settings, identity, counts and traffic of one gateway."""

    settings: GatewaySettings
    identity: Identity
    prompts: Prompts
    traffic: Traffic
    metrics: GatewayMetrics
    registry: CollectorRegistry
    fleet: Fleet
    """The other gateways of the application, where there are any."""
    slo_targets: SloTargetReader
    tenants: Tenants
    routes: Routes
    calls: CallReader
    bodies: Bodies
    quotas: Quotas
    repeats: Repeats
    retry_budgets: RetryBudgets
    records: RecentRequests
    tracing: Tracing | None
    """None: no request is traced."""
    clock: Callable[[], float]
    random: Random = field(default_factory=Random)

    @property
    def slo(self) -> Slo:
        """The targets that requests are judged by."""
        return self.metrics.slo

    def set_slo(self, ttft_s: float, itl_s: float) -> None:
        """Judge the requests that end from now on by other targets."""
        self.metrics.slo = Slo(ttft_s=ttft_s, itl_s=itl_s)

    def slots(self, count: int, holder: Holder) -> AbstractContextManager[None]:
        """Requests in flight, of the holder of a key; Shed where there are too many already."""
        return self.traffic.places.some(count, holder.name, holder.limits, alone=holder.alone)


def make_state(
    config: HeadwayConfig, backend: Backend, clock: Callable[[], float], quotas: Quotas | None = None
) -> GatewayState:
    """The state of a new gateway; what keys use is in `quotas`, or in new ones. ConfigError, ProfileError."""
    kind, prompts = engine_kind(config), make_prompts(config)
    identity = identify(config, prompts)
    places = Places(config.gateway.max_requests)
    traffic = Traffic(backend=backend, places=places)
    slo = Slo(ttft_s=config.slo.ttft_s, itl_s=config.slo.itl_s)
    metrics = GatewayMetrics(identity.model, identity.engine, slo, traffic, simulated=identity.simulated)
    metrics.of_tenants = TenantCounts(config.routing)
    # A counter that begins with its first miss would hide that miss from a rate.
    metrics.slo_class_requests.update(
        {(name, met): 0 for name in config.slo.classes for met in (True, False)}
    )
    gateway, registry = config.gateway, CollectorRegistry()
    records = RecentRequests(gateway.kept_requests, gateway.request_log, clock=clock)
    registry.register(metrics)
    tracing = make_tracing(config)
    if tracing is not None:
        registry.register(SpanCounts(identity.model, tracing.export.counts))
    if (collector := kind.collector) is not None:
        registry.register(collector(identity.model, traffic, metrics))
    return GatewayState(
        settings=config.gateway,
        identity=identity,
        prompts=prompts,
        traffic=traffic,
        metrics=metrics,
        registry=registry,
        fleet=Fleet(registry, metrics, records),
        slo_targets=SloTargetReader(
            config.slo.classes, lambda: metrics.slo, default_critical=config.routing.default_critical
        ),
        tenants=Tenants(config.routing, lambda: metrics.slo),
        routes=Routes(config),
        bodies=Bodies(),
        quotas=quotas or Quotas(clock, config.gateway.replicas),
        repeats=Repeats(clock),
        retry_budgets=RetryBudgets(gateway.retry_budget, clock),
        records=records,
        tracing=tracing,
        calls=CallReader(separate=Role.MIXED.value not in config.pools, places=config.gateway.max_requests),
        clock=clock,
    )
