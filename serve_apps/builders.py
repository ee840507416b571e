"""Settings -> Serve application: which deployments there are, and with which options.

    Gateway (ingress) ── Prefill, Decode | Mixed
                      └─ ControlPlane

Replica counts begin at `min_replicas`, or at 1, which shows that the engine starts, or as they are where an
application is changed; from then on they are the planner's. Draining lasts longer than a request may, so that
a scale-down cuts no stream off; it ends with the last stream, not after that time.
"""

import time
from collections.abc import Mapping
from typing import Any

from ray import serve
from ray.serve.config import RequestRouterConfig

from actors.names import CONTROL_PLANE, GATEWAY
from actors.routing_actors import stateless_profile
from headway.config import ConfigError, HeadwayConfig
from headway.engine.kinds import engine_kind, engines_per_gpu, shared_gpus_asked
from headway.planning import Role
from serve_apps.arguments import Topology, read_arguments
from serve_apps.compat_serve import HeadwayRouter
from serve_apps.control_plane import DRAINING_MARGIN_S, MOST_ONGOING, ControlPlane, deployment
from serve_apps.deployments import Decode, EngineFactory, EngineReplica, Mixed, Prefill
from serve_apps.engines import make_engine
from serve_apps.gateway_host import Gateway
from serve_apps.tracing.spans import check_tracing

ENGINES: Mapping[Role, type[EngineReplica]] = {Role.PREFILL: Prefill, Role.DECODE: Decode, Role.MIXED: Mixed}
LEAN_REPLICA = {
    # The main part of Serve's RAY_SERVE_THROUGHPUT_OPTIMIZED: no thread to hand every call to and from.
    "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",
    "RAY_SERVE_FREEZE_GC_ON_STARTUP": "1",
}
SWITCH: Mapping[Any, bool] = {True: True, False: False, "true": True, "false": False}

REPLACED_AFTER = 100
"""`max_surge_percent` of what costs nothing: the old replica goes when the new one runs."""

STATS_PERIOD_S = 0.5
STATS_TIMEOUT_S = 5.0


def application(
    config: HeadwayConfig, make: EngineFactory = make_engine, *, control_plane: bool = True
) -> serve.Application:
    """The application of these settings; without a control plane its counts stay. `make` is for tests.

    ConfigError: it asks for traces, and the extra is missing.
    """
    check_tracing(config.tracing)
    config = _begun(config)
    engines = {role: _engine(config, Role(role), {}).bind(config, make) for role in sorted(config.pools)}
    gateway = gateway_deployment(Gateway, config)
    # Settings over these, which a Serve config file may set.
    plane = plane_deployment(ControlPlane, {})
    return gateway.bind(config, engines, [plane.bind(config)] if control_plane else [])


def engines_alone(
    config: HeadwayConfig, make: EngineFactory = make_engine, counts: Mapping[str, int] | None = None
) -> serve.Application:
    """The engines of these settings, which a gateway elsewhere calls. ConfigError as `application`.

    `counts` are the replicas that there are, by deployment.
    """
    check_tracing(config.tracing)
    config = _begun(config)
    first, *others = (_engine(config, Role(role), counts or {}) for role in sorted(config.pools))
    return first.bind(config, make, *(each.bind(config, make) for each in others))


def gateway_deployment(
    kind: type, config: HeadwayConfig, told: Mapping[str, Any] | None = None
) -> serve.Deployment:
    """The gateways of these settings; `told` is their `user_config`."""
    return deployment(
        kind,
        name=GATEWAY,
        num_replicas=config.gateway.replicas,
        max_replicas_per_node=config.gateway.max_per_node,
        # A node that is full has no room for the next one beside the old one.
        max_surge_percent=REPLACED_AFTER if config.gateway.max_per_node is None else 0,
        max_ongoing_requests=MOST_ONGOING,
        user_config=told,
        graceful_shutdown_timeout_s=config.gateway.request_timeout_s + DRAINING_MARGIN_S,
        ray_actor_options={"num_cpus": 0, "runtime_env": {"env_vars": LEAN_REPLICA}},
    )


def plane_deployment(kind: type, told: Mapping[str, Any]) -> serve.Deployment:
    """The replica that keeps the actors; `told` is its `user_config`."""
    return deployment(
        kind,
        name=CONTROL_PLANE,
        num_replicas=1,
        max_surge_percent=REPLACED_AFTER,
        user_config=told,
        graceful_shutdown_timeout_s=DRAINING_MARGIN_S,
        ray_actor_options={"num_cpus": 0},
    )


def _begun(config: HeadwayConfig) -> HeadwayConfig:
    """The settings with the time from which steps of simulated speeds count, the same for all replicas."""
    engine = config.simulation.engine
    if engine.began_s is not None or not engine.speeds_change:
        return config
    begun = engine.model_copy(update={"began_s": time.time()})
    simulation = config.simulation.model_copy(update={"engine": begun})
    return config.model_copy(update={"simulation": simulation})


def build_application(arguments: Mapping[str, Any], topology: Topology) -> serve.Application:
    """The application of a builder's arguments; `control_plane=false` leaves the control plane out."""
    settings = dict(arguments)
    control_plane = settings.pop("control_plane", True)
    if control_plane not in SWITCH:
        raise ConfigError(f"options: control_plane: should be true or false, not {control_plane!r}")
    return application(read_arguments(settings, topology), control_plane=SWITCH[control_plane])


def _engine(config: HeadwayConfig, role: Role, counts: Mapping[str, int]) -> serve.Deployment:
    pool, name = config.pools[role.value], ENGINES[role].__name__
    routing = {
        "request_router_class": HeadwayRouter,
        "request_router_kwargs": {"profile": stateless_profile(config)},
        "request_routing_stats_period_s": STATS_PERIOD_S,
        "request_routing_stats_timeout_s": STATS_TIMEOUT_S,
    }
    return deployment(
        ENGINES[role],
        name=name,
        num_replicas=max(1, pool.min_replicas, pool.sleepers, min(pool.max_replicas, counts.get(name, 0))),
        max_ongoing_requests=MOST_ONGOING,
        graceful_shutdown_timeout_s=config.gateway.request_timeout_s + DRAINING_MARGIN_S,
        request_router_config=RequestRouterConfig.model_validate(routing),
        max_surge_percent=0 if _asks_for_gpus(config, role) else REPLACED_AFTER,
        **_resources(config, role),
    )


def _asks_for_gpus(config: HeadwayConfig, role: Role) -> bool:
    """True for engines that may have no room for one more while the old one runs."""
    needed = engine_kind(config).resources(config, role)
    return bool(needed.gpus or needed.bundles)


def _resources(config: HeadwayConfig, role: Role) -> dict[str, Any]:
    """Serve's request to Ray: for the replica's actor, or in a placement group on one node.

    In a group the first bundle holds what the pool asks for besides GPUs, and the actor takes none of it:
    Serve refuses an actor that asks for more than its bundle has.
    """
    needed = engine_kind(config).resources(config, role)
    options: dict[str, Any] = {"num_cpus": 0, "runtime_env": {"env_vars": LEAN_REPLICA}}
    shared = shared_gpus_asked(config, role)
    if needed.gpus is not None:
        options["num_gpus"] = 0 if shared else needed.gpus / engines_per_gpu(config, role)
    asked = {**config.pools[role.value].resources, **shared}
    if needed.bundles:
        first, *others = needed.bundles
        group = {
            "placement_group_bundles": [{**first, **asked}, *others],
            "placement_group_strategy": "STRICT_PACK",
        }
        return {"ray_actor_options": options, **group}
    options["num_cpus"] = asked.pop("CPU", 0)
    if memory := asked.pop("memory", 0):
        options["memory"] = memory
    return {"ray_actor_options": options | ({"resources": asked} if asked else {})}
