"""From settings to a router."""

from collections.abc import Mapping

import numpy as np

from headway.config import HeadwayConfig
from headway.config.roles import Role
from headway.routing.fleet import Fleet
from headway.routing.gpu_profiles import GpuProfile, surfaces_in
from headway.routing.handover import Handovers
from headway.routing.latency import Latency
from headway.routing.offloading import Offloading
from headway.routing.prefix import PrefixIndex
from headway.routing.profiles import make_handler, make_pipelines
from headway.routing.question import Knowledge
from headway.routing.router import Router
from headway.routing.rules import EngineRulesLike
from headway.routing.scheduler import Scheduler
from headway.routing.sessions import Sessions
from headway.routing.stale import drop_stale_cache
from headway.routing.surface_capacity import capacity_table
from headway.routing.types import RequestSlo


def make_router(
    config: HeadwayConfig,
    profiles: Mapping[str, GpuProfile],
    rules: EngineRulesLike,
    generator: np.random.Generator,
) -> Router:
    """The router of a deployment.

    `profiles` are the engines' by GPU type, "" for replicas whose type has none of its own; those of AIBrix
    say nothing of latencies. Raises RoutingError for settings that cannot be routed by.
    """
    drop_stale_cache()
    settings = config.routing
    pipelines = make_pipelines(settings)
    fleet = Fleet()
    latency = Latency(surfaces_in(profiles), rules, quantile=settings.prediction.use == "quantile")
    know = Knowledge(
        roles=(Role.MIXED,) if Role.MIXED.value in config.pools else (Role.PREFILL, Role.DECODE),
        fleet=fleet,
        rules=rules,
        prefixes=PrefixIndex(rules.prefix_cache_tokens // rules.block_tokens),
        sessions=Sessions(),
        latency=latency,
        handovers=Handovers(fleet, latency),
        capacity=capacity_table(profiles, rules),
        slo=RequestSlo(ttft_s=config.slo.ttft_s, tpot_s=config.slo.itl_s),
        generator=generator,
    )
    offloading = Offloading(know, settings.offload)
    scheduler = Scheduler(know, pipelines, settings.fallback, offloading)
    return Router(settings, pipelines, make_handler(settings, pipelines), know, scheduler)
