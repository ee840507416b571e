"""The settings of all of Headway: one YAML file for simulation and live operation.

    config = load_config("headway.yaml", {"slo.ttft_ms": 200})
    profile = resolve_profile(config.engine.profile)

`models` has the shape of the file, `loading` reads it, `profiles` finds profile directories,
`errors` has the one exception.
"""

from headway.config.base import RoleName
from headway.config.engine import (
    DEFAULT_KV_BYTES_PER_TOKEN,
    EngineSettings,
    GpuTypeSettings,
    KvTransfer,
    PoolSettings,
    RefinementSettings,
    VllmSettings,
)
from headway.config.errors import ConfigError
from headway.config.live import ConnectorSettings, GatewaySettings, KubernetesSettings, MetricsSettings
from headway.config.loading import json_schema, load_config
from headway.config.models import HeadwayConfig, SloSettings
from headway.config.planner import (
    HeadwaySettings,
    PlannerSettings,
    StaticFleet,
    TargetOngoing,
    ThresholdSettings,
)
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
    "DEFAULT_KV_BYTES_PER_TOKEN",
    "ConfigError",
    "ConnectorSettings",
    "Crash",
    "EngineSettings",
    "GatewaySettings",
    "GpuTypeSettings",
    "HeadwayConfig",
    "HeadwaySettings",
    "KubernetesSettings",
    "KvTransfer",
    "MetricsSettings",
    "OffloadSettings",
    "PlannerSettings",
    "PluginSettings",
    "PoolSettings",
    "RefinementSettings",
    "Role",
    "RoleName",
    "RoutingSettings",
    "SchedulingProfile",
    "SimulationSettings",
    "SloClass",
    "SloSettings",
    "StaticFleet",
    "TargetOngoing",
    "ThresholdSettings",
    "VllmSettings",
    "embedded_profiles",
    "json_schema",
    "load_config",
    "resolve_profile",
]
