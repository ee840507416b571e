"""One tree of settings for simulation and live operation, in the shape of the YAML file, and how it is read.

Every key has a default; an unknown key is an error. Milliseconds appear only in keys that end in `_ms`;
the properties beside them give seconds. Values are checked here as far as they can be without looking
outside this package: policies and predictors are checked by their own registries.

Overrides are dotted keys, as command-line flags set them.
"""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    Field,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    create_model,
    field_validator,
    model_validator,
)

from headway.config.base import (
    MILLISECONDS,
    ConfigError,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    RoleName,
    Settings,
    every_fault,
    shown,
)
from headway.config.engine import EngineSettings, GpuTypeSettings, PoolSettings
from headway.config.live import ConnectorSettings, GatewaySettings, MetricsSettings, TracingSettings
from headway.config.planner import (
    FleetSettings,
    PlannerSettings,
    ShareSettings,
    planner_model,
    time_zone,
)
from headway.config.routing import RoutingSettings, SloClass
from headway.config.yaml_file import read_yaml

DISAGGREGATED: frozenset[RoleName] = frozenset({"prefill", "decode"})


class CrashSettings(Settings):
    """One replica of `role` dies at `at_s` seconds of simulated time."""

    at_s: NonNegativeFloat
    """Seconds of simulated time."""
    role: RoleName
    """The role of the replica that dies."""


Speed = Annotated[PositiveFloat, Field(ge=1e-3, le=1e3)]
"""Over the profile's: 0.7 makes what is profiled take 1 / 0.7 times as long."""


EITHER = {
    "initial": "'sized', 'min' or positive replica counts such as {prefill: 2, decode: 3}",
    "capacity_gpus": "a number of GPUs or steps by second such as {0: 40, 1800: 10}",
    "prefill_speed": "a number from 0.001 to 1000 or steps by second such as {0: 1, 1800: 0.7}",
    "decode_speed": "a number from 0.001 to 1000 or steps by second such as {0: 1, 1800: 0.7}",
}
"""Settings of several forms, in words."""


def _one_message(
    value: Any,  # noqa: ANN401 - whatever the file holds
    validate: ValidatorFunctionWrapHandler,
    info: ValidationInfo,
) -> Any:  # noqa: ANN401 - one form of several
    """One line for all forms, where pydantic would have one for each."""
    try:
        return validate(value)
    except ValidationError as error:
        wanted = EITHER[info.field_name or ""]
        raise ValueError(f"should be {wanted}, not {shown(value)}") from error


class SlowReplicaSettings(Settings):
    """A share of the replicas runs slower than the others."""

    share: NonNegativeFloat = Field(le=1.0)
    """Of the replicas."""
    speed: Speed
    """Theirs beside the others', for their life."""


class SimulatedEngineSettings(Settings):
    """What simulated engines do, while everything else believes `engine.profile`."""

    profile: str | None = None
    """The profile by which simulated engines run; null: `engine.profile`."""
    prefill_speed: Speed | Mapping[NonNegativeFloat, Speed] = 1.0
    """Over that profile's: a number, or steps by second of the run, such as {0: 1, 1800: 0.7}; 1 before
    the first."""
    decode_speed: Speed | Mapping[NonNegativeFloat, Speed] = 1.0
    """The same for decoding."""
    slow_replicas: SlowReplicaSettings | None = None
    """Null: none."""
    began_s: NonNegativeFloat | None = None
    """Live: seconds since 1970 from which steps count; null: when the application is made."""
    queueing_ms: NonNegativeFloat = Field(default=0.0, le=1e7)
    """What each request waits outside of the engine, as in a network or a gateway."""

    _forms = field_validator("prefill_speed", "decode_speed", mode="wrap")(_one_message)

    @property
    def speeds_change(self) -> bool:
        """True if a speed has steps."""
        return isinstance(self.prefill_speed, Mapping) or isinstance(self.decode_speed, Mapping)

    @property
    def queueing_s(self) -> float:
        """The same in seconds."""
        return self.queueing_ms * MILLISECONDS


class ClientSettings(Settings):
    """Clients that give up and come again; to them that is one request, judged from its first arrival."""

    patience_s: PositiveFloat | None = Field(default=None, le=1e9)
    """Seconds for which a client waits for its first token; null: as long as it takes."""
    retries: NonNegativeInt = Field(default=0, le=1000)
    """How often it tries again at most, after it gave up or its request was shed or failed."""
    retry_after_s: NonNegativeFloat = Field(default=10.0, le=1e6)
    """After how many seconds, give or take a quarter."""


class LoadSettings(Settings):
    """The requests of one deployment of a fleet that is simulated (`headway simulate --fleet`)."""

    trace: str | None = None
    """A trace as `headway simulate` takes it: a file, beside this one or where the path leads, or a
    generated load."""
    start_s: NonNegativeFloat = Field(default=0.0, le=1e9)
    """Seconds of the trace that are left out."""
    duration_s: PositiveFloat | None = Field(default=None, le=1e9)
    """Seconds that are used after those; null: all."""
    rate_scale: PositiveFloat = Field(default=1.0, le=1e6)
    """Makes requests come so many times as often."""


class SimulationSettings(Settings):
    """The start of a simulation, and what befalls it."""

    load: LoadSettings = LoadSettings()
    seed: NonNegativeInt = Field(default=0, lt=2**63)
    """Of everything that is drawn."""
    start_up_delay_s: NonNegativeFloat = Field(default=60.0, le=1e6)
    """Mean seconds from the decision for a replica until it is ready."""
    start_up_delay_cv: NonNegativeFloat = Field(default=0.0, le=10)
    """Coefficient of variation of that delay, lognormal; 0: always the mean."""
    loads_at_once: PositiveInt | None = None
    """Replicas that start at the same time, of all deployments on a common budget, as they share the
    bandwidth by which models are loaded; the next one waits for the first to be ready. Those that wake do
    not count. null: any number."""
    initial: Literal["sized", "min"] | Mapping[RoleName, PositiveInt] = "sized"
    """The fleet at time 0: sized for the first interval's load (mixed pools: the fewest replicas that
    keep the promise in a replay of it), each pool's minimum, or counts per role. A static fleet begins as
    itself."""
    begins_at: datetime = datetime(1970, 1, 1, tzinfo=UTC)
    """The date and time of second 0 of the trace, for `pools.ROLE.schedule`, such as 2026-03-29T06:00; in
    `planner.time_zone` unless it names another."""
    drain_limit_s: NonNegativeFloat = Field(default=14_400.0, le=1e9)
    """Seconds after the trace in which requests may still end; those that have not count as failed."""
    crashes: tuple[CrashSettings, ...] = ()
    """Replicas that die."""
    clients: ClientSettings = ClientSettings()
    """Their patience; by default they wait."""
    engine: SimulatedEngineSettings = SimulatedEngineSettings()
    reports: bool = True
    """Whether a router hears of engines' loads (each 0.5 s) and of output tokens under way (each second), as
    live; false: of its own placements and their ends alone."""
    capacity_gpus: NonNegativeInt | Mapping[NonNegativeFloat, NonNegativeInt] | None = None
    """GPUs of the cluster, or steps by second such as {0: 40, 1800: 10}; null: any number. Replicas
    beyond them stay starting, in the order in which they were ordered, and cost nothing until they have
    their GPUs; a capacity that falls takes none away."""

    gpus_per_node: PositiveInt | None = None
    """GPUs of each node of a common budget (`simulate --fleet`), of which a replica has its own on one; null:
    all are on one node."""

    _forms = field_validator("initial", "capacity_gpus", mode="wrap")(_one_message)


class SloSettings(Settings):
    """Latency targets of the deployment, and the share of requests that should meet them."""

    ttft_ms: PositiveFloat = 300.0
    """Target of a request's time to first token, queueing included."""
    itl_ms: PositiveFloat = 20.0
    """Target of the time between tokens; a request is held to it by its mean, its TPOT."""
    attainment: PositiveFloat = Field(default=0.99, le=1.0)
    """Share of the requests that should meet both."""
    classes: Mapping[str, SloClass] = {}
    """Classes of requests by name, with promises of their own; clients name them in the header
    `x-headway-slo-class`."""

    @property
    def ttft_s(self) -> float:
        """Target of the time to first token, in seconds."""
        return self.ttft_ms * MILLISECONDS

    @property
    def itl_s(self) -> float:
        """Target of the time between tokens, in seconds."""
        return self.itl_ms * MILLISECONDS


def _disaggregated_pools() -> Mapping[RoleName, PoolSettings]:
    return {"prefill": PoolSettings(), "decode": PoolSettings()}


class HeadwayConfig(Settings):
    """All settings of Headway."""

    model: str = Field(default="llama-3.1-8b", min_length=1)
    """The model's name, as clients and metrics have it."""
    aliases: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """Further names by which clients may ask our gateway for it; answers and metrics have `model`."""
    spillover: str | None = None
    """In a fleet: the deployment of the same model, on other GPUs, that takes the requests for which there is
    no place here."""
    slo: SloSettings = SloSettings()
    engine: EngineSettings = EngineSettings()
    pools: Mapping[RoleName, PoolSettings] = Field(default_factory=_disaggregated_pools)
    """Either prefill and decode (one of them left out gets its defaults), or mixed alone."""
    gpu_types: Mapping[str, GpuTypeSettings] = {}
    """By name: what `headway recommend` chooses among. Advice, `compare`, `status` and `simulate --fleet
    --least` take prices from it."""
    planner: PlannerSettings = PlannerSettings()
    fleet: FleetSettings = FleetSettings()
    share: ShareSettings = ShareSettings()
    metrics: MetricsSettings = MetricsSettings()
    connector: ConnectorSettings = ConnectorSettings()
    routing: RoutingSettings = RoutingSettings()
    gateway: GatewaySettings = GatewaySettings()
    tracing: TracingSettings = TracingSettings()
    simulation: SimulationSettings = SimulationSettings()

    @property
    def begins_s(self) -> float:
        """Seconds since 1970 at second 0 of a simulation."""
        begins = self.simulation.begins_at
        zone = begins.tzinfo or time_zone(self.planner.time_zone)
        return begins.replace(tzinfo=zone).timestamp()

    def price_per_gpu_hour(self) -> float | None:
        """Of a GPU: as stated, or of the GPU type with the same profile, or of the only type; else None."""
        if self.planner.advice.price_per_gpu_hour is not None:
            return self.planner.advice.price_per_gpu_hour
        types = list(self.gpu_types.values())
        same = [each for each in types if each.profile == self.engine.profile] or types
        return same[0].price_per_gpu_hour if len(same) == 1 else None

    @field_validator("pools", mode="before")
    @classmethod
    def _complete_a_disaggregated_pair(cls, pools: Any) -> Any:  # noqa: ANN401 - whatever the file holds
        if isinstance(pools, Mapping) and set(pools) <= DISAGGREGATED:
            return {role: pools.get(role, {}) for role in ("prefill", "decode")}
        return pools

    @field_validator("pools")
    @classmethod
    def _one_topology(cls, pools: Mapping[RoleName, PoolSettings]) -> Mapping[RoleName, PoolSettings]:
        if set(pools) not in (DISAGGREGATED, {"mixed"}):
            raise ValueError(f"should be prefill and decode, or mixed alone; not {', '.join(sorted(pools))}")
        return pools

    @model_validator(mode="after")
    def _simulation_uses_known_pools(self) -> "HeadwayConfig":
        initial = self.simulation.initial
        named = set(initial) if isinstance(initial, Mapping) else set()
        named |= {crash.role for crash in self.simulation.crashes}
        if strangers := sorted(named - set(self.pools)):
            raise ValueError(f"simulation names {', '.join(strangers)}, but pools has no such role")
        return self

    @model_validator(mode="after")
    def _host_memory_can_be_counted(self) -> "HeadwayConfig":
        sleeps = next((role for role, pool in self.pools.items() if pool.sleepers), None)
        if self.fleet.host_memory is not None and sleeps and self.engine.sleep.memory is None:
            raise ValueError(
                f"engine.sleep.memory is missing: fleet.host_memory counts it for pools.{sleeps}.sleepers"
            )
        return self

    @model_validator(mode="after")
    def _advice_compares_with_a_whole_fleet(self) -> "HeadwayConfig":
        against = self.planner.advice.against
        if against and set(against) != set(self.pools):
            needed, given = ", ".join(sorted(self.pools)), ", ".join(sorted(against))
            raise ValueError(f"planner.advice.against should have {needed}; it has {given}")
        return self


OPTIONS = "options"
"""What an error names as its source when an override, not the file, holds the fault."""

DEFAULTS: Mapping[str, Any] = {}


def load_config(path: str | Path | None = None, overrides: Mapping[str, Any] = DEFAULTS) -> HeadwayConfig:
    """Settings from a YAML file (None: the defaults) with overrides such as `{"slo.ttft_ms": 200}`.

    An override of None means "not given". An override of a key below `pools.mixed` or `pools.prefill`
    adds that pool. ConfigError has one line: source, dotted key, what is wrong; its `faults` have all.
    """
    source = str(path) if path is not None else OPTIONS
    tree = config_tree(path, overrides)
    if "deployments" in tree:
        raise ConfigError(
            f"{source}: deployments: this file is of a fleet, and here one deployment is needed"
        )
    if tree.get("spillover") is not None:
        raise ConfigError(f"{source}: spillover: names another deployment, and only a fleet has several")
    given = [key for key, value in overrides.items() if value is not None]

    def place(key: str) -> str:
        named = OPTIONS if any(_under(key, each) for each in given) else source
        return f"{named}: {key}" if key else named

    return validated(tree, place, "deployments")


def validated(tree: Mapping[str, Any], place: Callable[[str], str], *others: str) -> HeadwayConfig:
    """The settings that such keys mean; `place` says where a dotted key stands. ConfigError, of which hints
    know `others` that may stand at the top, too.
    """
    try:
        return HeadwayConfig.model_validate(tree)
    except ValidationError as error:
        schema = json_schema()
        found = every_fault(
            error, {**schema, "properties": schema["properties"] | {key: {} for key in others}}
        )
        # Of the settings together there is no key.
        faults = [f"{place(key).removesuffix(': ')}: {fault}" for key, fault in found]
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        raise ConfigError(faults[0] + more, faults) from error


def config_tree(path: str | Path | None = None, overrides: Mapping[str, Any] = DEFAULTS) -> dict[str, Any]:
    """What `load_config` validates, as a file would hold it: the keys of the file, with overrides over them.

    ConfigError where the file cannot be read.
    """
    tree = read_yaml(Path(path)) if path is not None else {}
    for key, value in overrides.items():
        if value is not None:
            tree = with_key(tree, key, value)
    return tree


@cache
def json_schema() -> dict[str, Any]:
    """The JSON schema of the configuration file."""
    planner = planner_model()
    whole = create_model(
        "HeadwayConfig", __base__=HeadwayConfig, __doc__=HeadwayConfig.__doc__, planner=(planner, planner())
    )
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **whole.model_json_schema()}


def with_key(tree: Mapping[str, Any], key: str, value: Any) -> dict[str, Any]:  # noqa: ANN401 - any setting
    """A tree of settings with another value at a dotted key."""
    head, _, rest = key.partition(".")
    if not rest:
        return {**tree, head: value}
    below = tree.get(head)
    return {**tree, head: with_key(below if isinstance(below, Mapping) else {}, rest, value)}


def _under(key: str, override: str) -> bool:
    return key == override or key.startswith(override + ".")
