"""The settings of all of Headway: one YAML file for simulation and live operation.

    config = load_config("headway.yaml", {"slo.ttft_ms": 200})
    profile = resolve_profile(config.engine.profile)

`models` has the shape of the file, reads it and finds profile directories, `base` has what all
settings share, with the one exception, ConfigError.
"""

from headway.config.base import (
    ConfigError,
    NonNegativeFloat,
    PositiveFloat,
    ReplicaCount,
    Role,
    RoleName,
    Settings,
)
from headway.config.engine import (
    DEFAULT_KV_BYTES_PER_TOKEN,
    ENGINES,
    EngineSettings,
    PoolSettings,
    VllmSettings,
)
from headway.config.live import (
    CONNECTORS,
    GatewaySettings,
    KubernetesSettings,
    MetricsSettings,
    Right,
    TlsSettings,
    TracingSettings,
)
from headway.config.models import (
    ClientSettings,
    HeadwayConfig,
    SimulationSettings,
    SloSettings,
    config_tree,
    embedded_profiles,
    json_schema,
    load_config,
    resolve_profile,
)
from headway.config.planner import POLICIES, PlannerSettings
from headway.config.routing import (
    RoutingSettings,
)
