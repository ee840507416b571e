"""Settings of routing: the scheduling profile, the queue, SLO-aware scoring, offload and latency prediction.

`plugins` and `scheduling_profiles` have the form of llm-d's EndpointPickerConfig, whose spelling
of keys (`pluginRef`, `schedulingProfiles`) is accepted beside ours. Which plugins and built-in profiles there
are is the business of `headway.routing`, which also checks references.
"""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import AliasChoices, ConfigDict, Field, field_validator, model_validator

from headway.config.base import (
    MILLISECONDS,
    MOST_TOKENS,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    Settings,
)


class PluginSettings(Settings):
    """One plugin: its type, the name that profiles refer to (else the type), and its parameters."""

    type: str
    """Built in (docs/routing.md#profiles), or of an installed package
    (docs/extending.md#a-scheduling-plugin)."""
    name: str | None = None
    """What profiles call it; null: its type."""
    parameters: Mapping[str, Any] = {}
    """Of this plugin; the type checks them."""

    @property
    def reference(self) -> str:
        """The name that profiles use."""
        return self.name or self.type


class PluginReference(Settings):
    """A plugin's part in a profile; `weight` counts for scorers."""

    model_config = ConfigDict(populate_by_name=True)

    plugin_ref: str = Field(validation_alias=AliasChoices("plugin_ref", "pluginRef"))
    """The name of a plugin; also spelled `pluginRef`."""
    weight: NonNegativeFloat = 1.0
    """Of a scorer."""


class SchedulingProfile(Settings):
    """A named pipeline: filters, scorers and a picker, in order."""

    name: str
    """What `routing.profile` calls it."""
    plugins: tuple[PluginReference, ...]
    """Filters, scorers and at most one picker, in order."""


class QueueSettings(Settings):
    """The router's own queue, in which requests wait until a replica has room."""

    max_requests: PositiveInt = 100_000
    """Requests that may be held; beyond that they are shed."""
    max_wait_s: PositiveFloat = 60.0
    """Seconds that a request may be held, then it is shed; as long it waits, with every profile, while a
    pool has no replica at all (then 503)."""


class SaturationSettings(Settings):
    """When a replica has as much queued as it may have: it gets nothing more while others have less, with
    every profile; where all have it, requests are held (docs/routing.md#saturation)."""

    max_waiting: PositiveInt | None = None
    """Requests that may wait there beyond a full batch, and prompts that it has not computed; null: as many
    as a batch holds, `engine.max_batch_size`."""
    max_queue_s: PositiveFloat | None = None
    """Seconds that the prompts queued there may take, by its profile; null: the longest TTFT SLO of the
    deployment and its classes, at least 10 s."""
    kv_usage: PositiveFloat = Field(default=0.95, le=1.0)
    """The share of its KV cache from which on it is saturated, as its engine reports it."""
    preempted_s: NonNegativeFloat = 2.0
    """Seconds for which it is saturated after its engine threw a request out of the batch."""


class OffloadSettings(Settings):
    """Elastic prefill offload between mixed replicas, after agentic-kvc's offload design."""

    mode: Literal["never", "always", "heuristic", "cost"] = "never"
    """For mixed replicas: whether, and by which rule, a long prompt is computed on another replica
    (docs/offload.md)."""
    warm_tokens: PositiveInt = Field(default=1024, le=MOST_TOKENS)
    """Uncached prompt tokens up to which a request is WARM: short enough to compute where it is decoded."""
    heavy_tokens: PositiveInt = Field(default=8192, le=MOST_TOKENS)
    """Uncached prompt tokens from which a request is HEAVY: long enough to move."""
    deadline_factor: PositiveFloat = 3.0
    """An offloaded prefill is given up after this many times its predicted time, and colocated."""
    deadline_slack_ms: NonNegativeFloat = 1000.0
    """Milliseconds on top of that."""

    @property
    def deadline_slack_s(self) -> float:
        """The slack in seconds."""
        return self.deadline_slack_ms * MILLISECONDS

    @model_validator(mode="after")
    def _classes_in_order(self) -> "OffloadSettings":
        if self.warm_tokens >= self.heavy_tokens:
            raise ValueError(
                f"warm_tokens {self.warm_tokens} should be below heavy_tokens {self.heavy_tokens}"
            )
        return self


class PredictionSettings(Settings):
    """Latency prediction: the profile is the prior, what is measured corrects it."""

    learn: bool = True
    """Live: correct the profile's predictions by what is measured."""
    retrain_interval_s: PositiveFloat = 10.0
    """Seconds between two trainings."""
    window_samples: PositiveInt = Field(default=5000, le=1_000_000)
    """Samples kept for training, newest first within each stratum."""


class TenantSettings(Settings):
    """One tenant: its share of what the router holds, and what its requests may ask for."""

    weight: float = Field(default=1.0, ge=1e-6, le=1e6)
    """Its share while requests of several wait: of a key beside others, of a user beside its key's others."""
    may_be_critical: bool = True
    """Whether its requests may claim to be critical; else they are served as those that are not."""
    least_ttft_ms: PositiveFloat | None = None
    """The tightest TTFT SLO of its requests: a tighter one is taken for this; null: any."""
    least_tpot_ms: PositiveFloat | None = None
    """Likewise for the mean time per output token of a request."""
    per_user: bool = False
    """Whether each `user` that its requests name is a tenant of its own, KEY/USER, with these settings; they
    share what the key gets."""


ANY_TENANT = "*"
"""Settings of tenants that have none of their own."""

_OTHER_TENANT = TenantSettings()


LIVE_PROFILE, SIMULATED_PROFILE = "slo", "least_load"


class RoutingSettings(Settings):
    """The way of requests to their replicas."""

    model_config = ConfigDict(populate_by_name=True)

    profile: str | None = None
    """A scheduling profile: random, round_robin, least_load, bin_pack, prefix, default, slo, pull,
    pull_bin_pack, or one of `routing.scheduling_profiles`; null: `slo`, in simulations `least_load`, which is
    compiled."""
    fallback: str = "default"
    """The profile of requests that an SLO-aware one cannot judge, for want of a prediction; it needs none
    itself."""
    plugins: tuple[PluginSettings, ...] = ()
    """Plugins with names or parameters of their own."""
    scheduling_profiles: tuple[SchedulingProfile, ...] = Field(
        default=(), validation_alias=AliasChoices("scheduling_profiles", "schedulingProfiles")
    )
    """Profiles of your own; also spelled `schedulingProfiles`."""
    queue: QueueSettings = QueueSettings()
    saturation: SaturationSettings = SaturationSettings()
    offload: OffloadSettings = OffloadSettings()
    prediction: PredictionSettings = PredictionSettings()
    gpu_profiles: Mapping[str, str] = {}
    """By GPU type, as replicas report it: a profile directory, an embedded profile, or a JSON profile of
    AIBrix (docs/routing.md)."""
    tenants: Mapping[str, TenantSettings] = {}
    """By the name of an API key, or KEY/USER (docs/howto/tenants.md); `*`: those of any other, and of
    requests without a key."""
    default_critical: bool = False
    """Live: whether a request that says nothing of it is critical."""
    own_process: bool = False
    """Live: of a fleet, whether the router of this deployment has a process of its own, for a model with more
    than some hundred requests a second."""
    call_timeout_ms: PositiveFloat = 250.0
    """Live: milliseconds after which a gateway places a request by itself."""

    @property
    def live_profile(self) -> str:
        """The profile of live requests."""
        return self.profile or LIVE_PROFILE

    @property
    def simulated_profile(self) -> str:
        """The profile of simulated requests."""
        return self.profile or SIMULATED_PROFILE

    def tenant(self, name: str) -> TenantSettings:
        """The settings of the tenant `KEY` or `KEY/USER`."""
        return self.tenants.get(self.tenant_named(name), _OTHER_TENANT)

    def tenant_named(self, name: str) -> str:
        """The name in `tenants` whose settings are those of the tenant `KEY` or `KEY/USER`; else `*`."""
        if name in self.tenants:
            return name
        key = name.partition("/")[0]
        return key if key in self.tenants else ANY_TENANT

    @field_validator("gpu_profiles")
    @classmethod
    def _typed(cls, profiles: Mapping[str, str]) -> Mapping[str, str]:
        if "" in profiles:
            raise ValueError("a GPU type has a name; replicas of no named type have engine.profile")
        return profiles

    @field_validator("scheduling_profiles")
    @classmethod
    def _told_apart(cls, profiles: tuple[SchedulingProfile, ...]) -> tuple[SchedulingProfile, ...]:
        names = [profile.name for profile in profiles]
        if repeated := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"a second profile named {repeated!r}")
        return profiles


class SloClass(Settings):
    """A class of requests: what they are promised, and what share of simulated requests they are."""

    ttft_ms: PositiveFloat | None = None
    """What the class is promised; null: `slo.ttft_ms`."""
    tpot_ms: PositiveFloat | None = None
    """Likewise for the mean time per output token of a request; null: `slo.itl_ms`."""
    attainment: PositiveFloat | None = Field(default=None, le=1.0)
    """Share of its requests that should meet both, for the policy `headway`; null: `slo.attainment`."""
    critical: bool = False
    """Whether its requests count as three others, and are served late rather than shed while they may
    wait."""
    share: NonNegativeFloat = Field(default=1.0, le=1e9)
    """Simulation: this class's part of the requests, relative to the other classes' shares."""
    tenant: str = ""
    """Simulation: whose requests these are (`routing.tenants`)."""
