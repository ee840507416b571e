"""The settings of all of Headway: one YAML file for simulation and live operation.

    config = load_config("headway.yaml", {"slo.ttft_ms": 200})
    profile = resolve_profile(config.engine.profile)

`models` has the shape of the file, `loading` reads it, `profiles` finds profile directories,
`errors` has the one exception.
"""

from headway.config.base import (
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ReplicaCount,
    RoleName,
    Settings,
)
from headway.config.engine import (
    DEFAULT_KV_BYTES_PER_TOKEN,
    ENGINES,
    EngineSettings,
    GpuTypeSettings,
    KvTransfer,
    PoolSettings,
    RefinementSettings,
    VllmSettings,
)
from headway.config.errors import ConfigError
from headway.config.live import (
    CONNECTORS,
    ConnectorSettings,
    GatewaySettings,
    KubernetesSettings,
    MetricsSettings,
)
from headway.config.loading import json_schema, load_config
from headway.config.models import HeadwayConfig, SloSettings
from headway.config.planner import POLICIES, PlannerSettings
from headway.config.profiles import embedded_profiles, resolve_profile
from headway.config.roles import Role
from headway.config.routing import (
    OffloadSettings,
    PluginSettings,
    RoutingSettings,
    SchedulingProfile,
    SloClass,
)
from headway.config.simulation import Crash, SimulationSettings

__all__ = [
    "CONNECTORS",
    "DEFAULT_KV_BYTES_PER_TOKEN",
    "ENGINES",
    "POLICIES",
    "ConfigError",
    "ConnectorSettings",
    "Crash",
    "EngineSettings",
    "GatewaySettings",
    "GpuTypeSettings",
    "HeadwayConfig",
    "KubernetesSettings",
    "KvTransfer",
    "MetricsSettings",
    "NonNegativeFloat",
    "NonNegativeInt",
    "OffloadSettings",
    "PlannerSettings",
    "PluginSettings",
    "PoolSettings",
    "PositiveFloat",
    "PositiveInt",
    "RefinementSettings",
    "ReplicaCount",
    "Role",
    "RoleName",
    "RoutingSettings",
    "SchedulingProfile",
    "Settings",
    "SimulationSettings",
    "SloClass",
    "SloSettings",
    "VllmSettings",
    "embedded_profiles",
    "json_schema",
    "load_config",
    "resolve_profile",
]
