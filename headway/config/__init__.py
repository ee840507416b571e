"""The settings of all of Headway: one YAML file for simulation and live operation.

    config = load_config("headway.yaml", {"slo.ttft_ms": 200})
    profile = resolve_profile(config.engine.profile)

`models` has the shape of the file and reads it, `profile_names` finds profile directories, `base` has what
all settings share, with the one exception, ConfigError.
"""

from headway.config.base import (
    ConfigError,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ReplicaCount,
    Role,
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
from headway.config.fleet import FleetConfig, is_fleet, load_fleet
from headway.config.live import (
    CONNECTORS,
    ConnectorSettings,
    GatewaySettings,
    KubernetesSettings,
    MetricsSettings,
    Right,
    TlsSettings,
    TracingSettings,
)
from headway.config.models import (
    ClientSettings,
    CrashSettings,
    HeadwayConfig,
    SimulationSettings,
    SloSettings,
    config_tree,
    json_schema,
    load_config,
)
from headway.config.planner import POLICIES, FleetSettings, PlannerSettings, ShareSettings, time_zone
from headway.config.profile_names import embedded_profiles, resolve_profile
from headway.config.routing import (
    OffloadSettings,
    PluginSettings,
    RoutingSettings,
    SchedulingProfile,
    SloClass,
)

__all__ = [
    "CONNECTORS",
    "DEFAULT_KV_BYTES_PER_TOKEN",
    "ENGINES",
    "POLICIES",
    "ClientSettings",
    "ConfigError",
    "ConnectorSettings",
    "CrashSettings",
    "EngineSettings",
    "FleetConfig",
    "FleetSettings",
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
    "Right",
    "Role",
    "RoleName",
    "RoutingSettings",
    "SchedulingProfile",
    "Settings",
    "ShareSettings",
    "SimulationSettings",
    "SloClass",
    "SloSettings",
    "TlsSettings",
    "TracingSettings",
    "VllmSettings",
    "config_tree",
    "embedded_profiles",
    "is_fleet",
    "json_schema",
    "load_config",
    "load_fleet",
    "resolve_profile",
    "time_zone",
]
